//! A clock that is the same for all processes of this machine, and that nobody sets.

use std::{fs, time::Duration};

/// Returns the time since the machine started, including the time that it slept, to 10 ms
/// (`proc_uptime(5)`); `None` if it cannot be read.
pub fn uptime() -> Option<Duration> {
    parse(&fs::read_to_string("/proc/uptime").ok()?)
}

fn parse(text: &str) -> Option<Duration> {
    let seconds: f64 = text.split(' ').next()?.parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_number_counts() {
        assert_eq!(parse("12.50 40.00\n"), Some(Duration::from_millis(12_500)));
        for wrong in ["", "x 1", "-1 1", "inf 1"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
        let first = uptime().unwrap();
        assert!(uptime().unwrap() >= first);
    }
}
