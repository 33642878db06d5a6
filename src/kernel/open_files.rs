//! How many descriptors this process may open.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Raises the soft limit to the hard one (`getrlimit(2)`, RLIMIT_NOFILE). Returns the
/// limit that counts then.
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
