//! Times for people.

use jiff::Timestamp;

/// Formats the age of `at`, a time in RFC 3339: `12s`, `5m`, `3h`, `2d`.
pub(super) fn ago(at: &str) -> String {
    let Ok(at) = at.parse::<Timestamp>() else {
        return at.to_owned();
    };
    let seconds = Timestamp::now().duration_since(at).as_secs().max(0);
    let text = match seconds {
        0..=119 => format!("{seconds}s"),
        120..=7199 => format!("{}m", seconds / 60),
        7200..=172_799 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    };
    format!("{text} ago")
}

/// Returns a duration as text: `0.4 ms`, `12 ms`, `1.5 s`.
pub(super) fn length(seconds: f64) -> String {
    let milliseconds = seconds * 1e3;
    if milliseconds < 10.0 {
        format!("{milliseconds:.1} ms")
    } else if milliseconds < 1e3 {
        format!("{milliseconds:.0} ms")
    } else {
        format!("{seconds:.1} s")
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    #[test]
    fn times_have_one_unit() {
        for (seconds, text) in [
            (-5, "0s ago"),
            (3, "3s ago"),
            (150, "2m ago"),
            (7_300, "2h ago"),
            (200_000, "2d ago"),
        ] {
            let at = Timestamp::now() - SignedDuration::from_secs(seconds);
            assert_eq!(ago(&at.to_string()), text);
        }
        assert_eq!(ago("yesterday"), "yesterday");
        for (seconds, text) in [(0.0004, "0.4 ms"), (0.0123, "12 ms"), (1.5, "1.5 s")] {
            assert_eq!(length(seconds), text);
        }
    }
}
