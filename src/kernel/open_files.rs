//! The number of descriptors that this process may open, and has open.

use std::fs;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Raises the soft limit to the hard one (`getrlimit(2)`, RLIMIT_NOFILE). Returns the resulting
/// limit.
pub fn raise_limit() -> usize {
    let limit = match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok((soft, hard)) if soft < hard => match setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
            Ok(()) => hard,
            Err(_) => soft,
        },
        Ok((soft, _)) => soft,
        // Every Linux has had at least this since 2.6.39.
        Err(_) => 1024,
    };
    usize::try_from(limit).unwrap_or(usize::MAX)
}

/// Descriptors that this process has open (`proc_pid_fd(5)`).
const OPEN: &str = "/proc/self/fd";

/// The number of descriptors that this process has open. Before Linux 6.2 counting takes a while if
/// there are thousands.
pub fn number() -> Option<usize> {
    number_if_cheap().or_else(list)
}

/// Returns the same if the kernel reports it directly.
pub fn number_if_cheap() -> Option<usize> {
    // Since Linux 6.2 it is the folder's size, which was 0 before.
    let size = fs::metadata(OPEN).ok()?.len();
    usize::try_from(size).ok().filter(|size| *size > 0)
}

/// Counts the descriptors that the folder lists.
fn list() -> Option<usize> {
    Some(fs::read_dir(OPEN).ok()?.count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_descriptors_are_counted() {
        let counts = || [number_if_cheap(), list(), number()];
        let before = counts();
        let more: Vec<_> = (0..500).map(|_| fs::File::open("/dev/null")).collect();
        let after = counts();
        assert!(after[1].is_some(), "/proc");
        assert!(after[2].is_some(), "one of both");
        for (before, after) in before.into_iter().zip(after) {
            let Some((before, after)) = before.zip(after) else {
                continue;
            };
            // Other tests open and close some meanwhile.
            assert!((before + 250..before + 750).contains(&after), "{after}");
        }
        drop(more);
    }
}
