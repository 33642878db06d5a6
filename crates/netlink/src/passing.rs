//! Temporary errors, which are no answer to a request.

use std::io;

use nix::errno::Errno;

/// Returns whether `errno` means a shortage (memory, processes, descriptors, buffers) or that
/// another program got in the way (a signal, a lock, a time-out). The same request may succeed the
/// next time.
pub fn is_passing(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::EAGAIN
            | Errno::EBUSY
            | Errno::EINTR
            | Errno::EMFILE
            | Errno::ENFILE
            | Errno::ENOBUFS
            | Errno::ENOMEM
            | Errno::ETIMEDOUT
            | Errno::ETXTBSY
    )
}

/// Returns the same for an error of the standard library, which has time-outs
/// of its own.
pub fn is_passing_io(error: &io::Error) -> bool {
    match error.raw_os_error() {
        Some(number) => is_passing(Errno::from_raw(number)),
        None => matches!(
            error.kind(),
            io::ErrorKind::TimedOut | io::ErrorKind::Interrupted | io::ErrorKind::OutOfMemory
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_passes_and_a_refusal_does_not() {
        let cases = [
            (Errno::EAGAIN, true),
            (Errno::ENOMEM, true),
            (Errno::EMFILE, true),
            (Errno::ETXTBSY, true),
            (Errno::EPERM, false),
            (Errno::ENOENT, false),
            (Errno::EOPNOTSUPP, false),
            (Errno::EINVAL, false),
        ];
        for (errno, passes) in cases {
            assert_eq!(is_passing(errno), passes, "{errno}");
            let error = io::Error::from_raw_os_error(errno as i32);
            assert_eq!(is_passing_io(&error), passes, "{errno}");
        }
        assert!(is_passing_io(&io::ErrorKind::TimedOut.into()));
        assert!(!is_passing_io(&io::ErrorKind::NotFound.into()));
    }
}
