//! Records that cannot be sent at once.

use std::{io, mem, time::Duration};

use nix::errno::Errno;

/// Pause before a record is sent again.
const AGAIN: Duration = Duration::from_secs(1);

/// Returns whether a record could not be sent because the kernel lacks memory (ENOBUFS, ENOMEM), or
/// because too many descriptors are on their way (ETOOMANYREFS, see unix(7)).
fn is_passing(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    matches!(
        errno,
        Some(Errno::ENOBUFS | Errno::ENOMEM | Errno::ETOOMANYREFS)
    )
}

/// Returns what `send` returns, which sends a record to `other` and is called again after a pause
/// while it returns an error that passes. That is logged if `is_late` is not set yet, which is set
/// then until a record is sent.
pub(crate) async fn when_possible<Sending>(
    is_late: &mut bool,
    other: &str,
    mut send: impl FnMut() -> Sending,
) -> io::Result<()>
where
    Sending: Future<Output = io::Result<()>>,
{
    loop {
        match send().await {
            Err(error) if is_passing(&error) => {
                if !mem::replace(is_late, true) {
                    tracing::warn!(
                        "sockets cannot be sent to {other} yet: {error}; trying again every \
                         second. If it lasts, raise the limits of this process (memory, ulimit -n)"
                    );
                }
                tokio::time::sleep(AGAIN).await;
            }
            done => {
                if done.is_ok() && mem::take(is_late) {
                    tracing::info!("sockets are sent to {other} again");
                }
                return done;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_cannot_be_sent_yet_is_sent_later() {
        let (passing, end) = ([Errno::ENOBUFS, Errno::ETOOMANYREFS], [Errno::EPIPE]);
        for (mut errors, expected) in [
            (passing.to_vec(), Ok(())),
            (
                [&passing[..], &end].concat(),
                Err(Some(Errno::EPIPE as i32)),
            ),
        ] {
            errors.reverse();
            let begun = tokio::time::Instant::now();
            let mut is_late = false;
            let send = || {
                let outcome = errors.pop().map_or(Ok(()), |errno| Err(errno.into()));
                std::future::ready(outcome)
            };
            let sent = when_possible(&mut is_late, "a proxy", send).await;
            let sent = sent.map_err(|error| error.raw_os_error());
            assert_eq!(sent, expected);
            assert_eq!((is_late, begun.elapsed()), (sent.is_err(), AGAIN * 2));
        }
        assert!(!is_passing(&Errno::EMSGSIZE.into()));
    }
}
