//! Durations as kube-proxy's flags and configuration write them: Go's
//! notation (`time.ParseDuration`), such as `250ms`, `1h15m` or `1.5s`.

use std::time::Duration;

use serde::Serializer;

/// Units with their length in nanoseconds; longer names first where one
/// begins with another.
const UNITS: [(&str, u128); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000), // U+00B5, micro sign
    ("μs", 1_000), // U+03BC, Greek letter mu
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Digits after the point that still count: nanoseconds of an hour.
const MAX_FRACTION: usize = 15;

/// Reads a duration.
///
/// # Errors
/// When the text is no duration, or one that is negative or too long; the error has an example.
pub fn parse(text: &str) -> Result<Duration, String> {
    let wrong = |what: &str| format!("{what}; write it like 250ms, 30s or 1h15m");
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = match text.strip_prefix('-') {
        Some(_) => return Err(wrong("a duration must not be negative")),
        None => text.strip_prefix('+').unwrap_or(text),
    };
    if rest.is_empty() {
        return Err(wrong("a duration is missing"));
    }
    let mut nanos: u128 = 0;
    while !rest.is_empty() {
        let number = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .map_or(rest, |end| &rest[..end]);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
            return Err(wrong("a number is missing or malformed"));
        }
        rest = &rest[number.len()..];
        // "m" must not hide "ms".
        let unit = rest
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .map_or(rest, |end| &rest[..end]);
        let Some((_, length)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            return Err(match unit {
                "" => wrong("the unit is missing"),
                _ => wrong(&format!("unknown unit {unit:?}")),
            });
        };
        rest = &rest[unit.len()..];
        let fraction = &fraction[..fraction.len().min(MAX_FRACTION)];
        let whole: u128 = match whole {
            "" => 0,
            digits => digits.parse().map_err(|_| wrong("too long"))?,
        };
        let tenths: u128 = format!("{fraction:0<MAX_FRACTION$}").parse().unwrap_or(0);
        nanos = whole
            .checked_mul(*length)
            .and_then(|n| n.checked_add(tenths * length / 10u128.pow(MAX_FRACTION as u32)))
            .and_then(|n| n.checked_add(nanos))
            .ok_or_else(|| wrong("too long"))?;
    }
    // Go's durations are signed 64-bit nanoseconds.
    match u64::try_from(nanos) {
        Ok(n) if i64::try_from(n).is_ok() => Ok(Duration::from_nanos(n)),
        _ => Err(wrong("too long")),
    }
}

/// Writes a duration the way Go prints it (`time.Duration.String`), which is
/// how kube-proxy writes its configuration: `0s`, `1.5ms`, `15m0s`, `24h0m0s`.
pub fn format(duration: Duration) -> String {
    const SECOND: u128 = 1_000_000_000;
    let nanos = duration.as_nanos();
    if nanos == 0 {
        return "0s".to_owned();
    }
    if nanos < SECOND {
        let (unit, length) = match nanos {
            1_000_000.. => ("ms", 1_000_000),
            1_000.. => ("µs", 1_000),
            _ => ("ns", 1),
        };
        return format!("{}{unit}", decimal(nanos, length));
    }
    let (minutes, rest) = (nanos / (60 * SECOND), nanos % (60 * SECOND));
    let seconds = decimal(rest, SECOND);
    match (minutes / 60, minutes % 60) {
        (0, 0) => format!("{seconds}s"),
        (0, minutes) => format!("{minutes}m{seconds}s"),
        (hours, minutes) => format!("{hours}h{minutes}m{seconds}s"),
    }
}

/// Returns `nanos` as a decimal number in units of `unit` nanoseconds, a power of ten.
fn decimal(nanos: u128, unit: u128) -> String {
    let digits = unit.ilog10() as usize;
    let fraction = format!("{:0digits$}", nanos % unit);
    match fraction.trim_end_matches('0') {
        "" => (nanos / unit).to_string(),
        fraction => format!("{}.{fraction}", nanos / unit),
    }
}

/// Writes a field as [`format`] does, for serde's `serialize_with`.
pub(crate) fn serialize<S: Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&format(*duration))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_durations_are_read() {
        for (text, nanos) in [
            ("0", 0),
            ("0s", 0),
            ("250ms", 250_000_000),
            ("1h15m", 4_500_000_000_000),
            ("1.5s", 1_500_000_000),
            (".5m", 30_000_000_000),
            ("1m0.25s", 60_250_000_000),
            ("3µs4ns", 3_004),
            ("+2us", 2_000),
            ("2562047h47m16.854775807s", i64::MAX as u64),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_nanos(nanos)), "{text}");
        }
    }

    #[test]
    fn everything_else_says_what_is_wrong() {
        for (text, word) in [
            ("", "missing"),
            ("5", "unit is missing"),
            ("5 s", "unknown unit"),
            ("5x", "unknown unit \"x\""),
            ("ms", "number"),
            (".s", "number"),
            ("1.2.3s", "number"),
            ("-1s", "negative"),
            ("2562048h", "too long"),
            ("99999999999999999999999999999999999999999h", "too long"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn durations_are_written_as_go_writes_them() {
        for (nanos, text) in [
            (0, "0s"),
            (1, "1ns"),
            (1_100, "1.1µs"),
            (2_200_000, "2.2ms"),
            (250_000_000, "250ms"),
            (1_000_000_000, "1s"),
            (1_500_000_000, "1.5s"),
            (60_000_000_000, "1m0s"),
            (900_000_000_000, "15m0s"),
            (3_661_000_000_001, "1h1m1.000000001s"),
            (86_400_000_000_000, "24h0m0s"),
        ] {
            assert_eq!(format(Duration::from_nanos(nanos)), text);
        }
    }

    proptest::proptest! {
        #[test]
        fn what_is_written_reads_the_same(nanos in 0..=i64::MAX as u64) {
            let duration = Duration::from_nanos(nanos);
            proptest::prop_assert_eq!(parse(&format(duration)), Ok(duration));
        }

        #[test]
        fn no_text_panics(text in "\\PC*") {
            let _ = parse(&text);
        }

        #[test]
        fn whole_milliseconds_survive(ms in 0u32..) {
            proptest::prop_assert_eq!(
                parse(&format!("{ms}ms")),
                Ok(Duration::from_millis(ms.into()))
            );
        }
    }
}
