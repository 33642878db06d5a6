//! A filter of system calls, `seccomp(2)`, for all threads of this process and for the
//! programs that it starts.
//!
//! A call that is not listed fails with ENOSYS, as on a kernel that does not have it, and ends
//! nothing: the standard library, glibc and programs that try newer calls first then fall back to
//! older ones. A program of another architecture than this one, such as a 32-bit one, is killed.

mod groups;
mod needed;

use std::env::consts::ARCH;

use nix::libc;
use seccompiler::{BackendError, BpfProgram, SeccompAction, SeccompFilter};

use super::Task;

/// Applies the filter for `task` to every thread.
///
/// # Errors
/// When this kernel has no such filters, or does not let this process install one.
pub(super) fn restrict(task: Task) -> Result<(), String> {
    let program = program(task).map_err(|error| error.to_string())?;
    seccompiler::apply_filter_all_threads(&program).map_err(|error| error.to_string())
}

fn program(task: Task) -> Result<BpfProgram, BackendError> {
    let missing = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
    let needed = needed::needed(task)?;
    SeccompFilter::new(needed, missing, SeccompAction::Allow, ARCH.try_into()?)?.try_into()
}

#[cfg(test)]
mod tests {
    use std::{io, net::UdpSocket, os::unix::net::UnixDatagram, process::Command, thread};

    use nix::{
        errno::Errno,
        fcntl::OFlag,
        sched::{CloneFlags, unshare},
        sys::{
            inotify::{InitFlags, Inotify},
            wait::waitpid,
        },
        unistd::{ForkResult, fork, pipe2},
    };
    use socket2::{Domain, Socket, Type};

    use super::{super::Serving, *};
    use crate::kernel::io_uring::{Ring, or_skip};

    /// Runs `test` in a thread that has the filter for `task`, which lasts as long as the thread.
    fn filtered(task: Task, test: impl FnOnce() + Send) {
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                seccompiler::apply_filter(&program(task).expect("a filter")).expect("applied");
                test();
            });
            thread.join().expect("the test passes");
        });
    }

    #[test]
    fn calls_that_are_not_listed_are_missing_here_and_in_programs() {
        let serving = Serving {
            programs: true,
            ..Serving::default()
        };
        filtered(Task::Serve(serving), || {
            assert_eq!(unshare(CloneFlags::CLONE_NEWNS), Err(Errno::ENOSYS));
            assert_eq!(nix::mount::umount("/nowhere"), Err(Errno::ENOSYS));
            let script = "cat /proc/self/status | grep Seccomp: && ! unshare -Un true";
            let shell = Command::new("sh").args(["-c", script]).output();
            let shell = shell.expect("a shell");
            // SECCOMP_MODE_FILTER, `proc_pid_status(5)`.
            assert_eq!(String::from_utf8_lossy(&shell.stdout), "Seccomp:\t2\n");
            let errors = String::from_utf8_lossy(&shell.stderr).into_owned();
            assert!(errors.contains("not implemented"), "{errors}");
        });
    }

    #[test]
    fn rings_that_were_made_before_can_be_used_and_no_others_made() {
        for rings in [true, false] {
            let Some(mut ring) = or_skip(Ring::new()) else {
                return;
            };
            let serving = Serving {
                rings,
                ..Serving::default()
            };
            filtered(Task::Serve(serving), move || {
                let enabled = ring.enable().map_err(|error| error.raw_os_error());
                let used = ring.submit().map_err(|error| error.raw_os_error());
                let missing = Err(Some(libc::ENOSYS));
                let expected = if rings { Ok(()) } else { missing };
                assert_eq!((enabled, used), (expected, expected), "{rings}");
                assert_eq!(Ring::new().unwrap_err().raw_os_error(), Some(libc::ENOSYS));
            });
        }
    }

    /// Each task, and whether it may start programs, move bytes through pipes, notice changes of
    /// files and open sockets of the network.
    #[test]
    fn each_task_makes_the_calls_that_it_needs() {
        let serve = |programs, watches_files| {
            Task::Serve(Serving {
                programs,
                watches_files,
                ..Serving::default()
            })
        };
        for (task, programs, pipes, inotify, network) in [
            (Task::Hold, false, false, false, false),
            (serve(false, false), false, true, false, true),
            (serve(false, true), false, true, true, true),
            (serve(true, false), true, true, false, true),
            (serve(true, true), true, true, true, true),
        ] {
            filtered(task, || {
                let missing = |errno: Errno| assert_eq!(errno, Errno::ENOSYS, "{task:?}");
                let started = Command::new("true").status().map(drop);
                assert_eq!(started.is_ok(), programs, "{task:?}: {started:?}");
                // SAFETY: the child calls nothing but _exit(2).
                match unsafe { fork() } {
                    // SAFETY: it does not return.
                    Ok(ForkResult::Child) => unsafe { libc::_exit(0) },
                    Ok(ForkResult::Parent { child }) => {
                        assert!(programs, "{task:?} makes processes");
                        waitpid(child, None).expect("its end");
                    }
                    Err(errno) => {
                        assert!(!programs, "{task:?} makes no processes");
                        missing(errno);
                        assert_eq!(waitpid(None, None), Err(Errno::ENOSYS), "{task:?}");
                    }
                }
                let pipe = pipe2(OFlag::O_CLOEXEC).map(drop);
                assert_eq!(pipe.is_ok(), pipes, "{task:?}");
                pipe.err().map(missing);
                let instance = Inotify::init(InitFlags::IN_CLOEXEC).map(drop);
                assert_eq!(instance.is_ok(), inotify, "{task:?}");
                instance.err().map(missing);
                let socket = UdpSocket::bind("127.0.0.1:0").map(drop);
                assert_eq!(socket.is_ok(), network, "{task:?}: {socket:?}");
                // A packet socket, which only a program opens.
                let packets = Socket::new(Domain::PACKET, Type::DGRAM, None);
                let errno = packets.err().and_then(|error| error.raw_os_error());
                let is_missing = errno == Some(libc::ENOSYS);
                assert_eq!(is_missing, !programs, "{task:?}");
                // Calls that every task makes.
                UnixDatagram::pair().expect("a pair");
                let thread = thread::Builder::new().spawn(|| std::fs::read("/proc/self/status"));
                let read: io::Result<_> = thread.expect("a thread").join().expect("its end");
                assert!(read.is_ok());
            });
        }
    }
}
