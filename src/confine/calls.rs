//! A filter of system calls, `seccomp(2)`, for all threads of this process and for the
//! programs that it starts.
//!
//! A call that is not listed answers ENOSYS, as on a kernel that has not got it, and ends
//! nothing: what the standard library, glibc or a program tries first on newer kernels, it
//! then does in the older way. A program of another architecture than this one, such as a
//! 32-bit one, is killed.

use std::{collections::BTreeMap, env::consts::ARCH};

use nix::libc;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

/// Applies the filter to every thread.
///
/// # Errors
/// When this kernel has no such filters, or allows this process none.
pub(super) fn restrict() -> Result<(), String> {
    let program = program().map_err(|error| error.to_string())?;
    seccompiler::apply_filter_all_threads(&program).map_err(|error| error.to_string())
}

fn program() -> Result<BpfProgram, seccompiler::BackendError> {
    let all = [MEMORY, THREADS, EVENTS, FILES, SOCKETS, PROGRAMS, OLDER];
    let listed = all.iter().copied().flatten();
    // Without conditions: whatever the arguments are.
    let rules: BTreeMap<_, _> = listed.map(|call| (*call, Vec::new())).collect();
    let missing = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
    SeccompFilter::new(rules, missing, SeccompAction::Allow, ARCH.try_into()?)?.try_into()
}

const MEMORY: &[libc::c_long] = &[
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
];

/// Threads, signals, clocks, and what a process asks about itself.
const THREADS: &[libc::c_long] = &[
    libc::SYS_capget,
    libc::SYS_capset,
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    // Without its arguments, which a filter cannot see, it is what clone(2) is.
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_get_robust_list,
    libc::SYS_getcpu,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getgroups,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getrandom,
    libc::SYS_getresgid,
    libc::SYS_getresuid,
    libc::SYS_getrusage,
    libc::SYS_gettid,
    libc::SYS_gettimeofday,
    libc::SYS_getuid,
    libc::SYS_nanosleep,
    libc::SYS_prctl,
    libc::SYS_prlimit64,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_sigaltstack,
    libc::SYS_sysinfo,
    // By which abort(3) ends the process.
    libc::SYS_tgkill,
    libc::SYS_uname,
];

const EVENTS: &[libc::c_long] = &[
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_inotify_add_watch,
    libc::SYS_inotify_init1,
    libc::SYS_inotify_rm_watch,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
];

const FILES: &[libc::c_long] = &[
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_copy_file_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fadvise64,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fcntl,
    libc::SYS_fdatasync,
    libc::SYS_flock,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_fsync,
    libc::SYS_ftruncate,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_ioctl,
    libc::SYS_lseek,
    libc::SYS_mkdirat,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_pipe2,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_read,
    libc::SYS_readlinkat,
    libc::SYS_readv,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_sendfile,
    libc::SYS_splice,
    libc::SYS_statfs,
    libc::SYS_statx,
    libc::SYS_tee,
    libc::SYS_umask,
    libc::SYS_unlinkat,
    libc::SYS_write,
    libc::SYS_writev,
];

const SOCKETS: &[libc::c_long] = &[
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_listen,
    libc::SYS_recvfrom,
    libc::SYS_recvmmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendmmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    libc::SYS_socket,
    libc::SYS_socketpair,
];

/// Starting programs, and what those call at their start: iptables, modprobe, shells,
/// plugins that give credentials. Every mode may have to remove what iptables wrote.
const PROGRAMS: &[libc::c_long] = &[
    libc::SYS_chdir,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_fchdir,
    libc::SYS_getpgid,
    libc::SYS_getpriority,
    libc::SYS_getsid,
    libc::SYS_kill,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    libc::SYS_rt_sigpending,
    libc::SYS_rt_sigsuspend,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_setitimer,
    libc::SYS_setpgid,
    libc::SYS_setsid,
    libc::SYS_signalfd4,
    libc::SYS_timer_create,
    libc::SYS_timer_delete,
    libc::SYS_timer_settime,
    libc::SYS_times,
    libc::SYS_wait4,
    libc::SYS_waitid,
];

/// Forms of others that newer architectures have not got.
#[cfg(target_arch = "x86_64")]
const OLDER: &[libc::c_long] = &[
    libc::SYS_access,
    libc::SYS_alarm,
    libc::SYS_arch_prctl,
    libc::SYS_chmod,
    libc::SYS_dup2,
    libc::SYS_epoll_wait,
    libc::SYS_fork,
    libc::SYS_getdents,
    libc::SYS_getpgrp,
    libc::SYS_getrlimit,
    libc::SYS_lstat,
    libc::SYS_mkdir,
    libc::SYS_open,
    libc::SYS_pause,
    libc::SYS_pipe,
    libc::SYS_poll,
    libc::SYS_readlink,
    libc::SYS_rename,
    libc::SYS_rmdir,
    libc::SYS_select,
    libc::SYS_stat,
    libc::SYS_time,
    libc::SYS_unlink,
    libc::SYS_vfork,
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[libc::c_long] = &[];

#[cfg(test)]
mod tests {
    use std::process::Command;

    use nix::{
        errno::Errno,
        sched::{CloneFlags, unshare},
    };

    use super::*;

    /// In a thread, since the filter stays as long as that does.
    #[test]
    fn calls_that_are_not_listed_are_missing_here_and_in_programs() {
        let test = || {
            seccompiler::apply_filter(&program().expect("a filter")).expect("applied");
            assert_eq!(unshare(CloneFlags::CLONE_NEWNS), Err(Errno::ENOSYS));
            assert_eq!(nix::mount::umount("/nowhere"), Err(Errno::ENOSYS));
            let script = "cat /proc/self/status | grep Seccomp: && ! unshare -Un true";
            let shell = Command::new("sh").args(["-c", script]).output();
            let shell = shell.expect("a shell");
            // SECCOMP_MODE_FILTER, `proc_pid_status(5)`.
            assert_eq!(String::from_utf8_lossy(&shell.stdout), "Seccomp:\t2\n");
            let errors = String::from_utf8_lossy(&shell.stderr).into_owned();
            assert!(errors.contains("not implemented"), "{errors}");
        };
        std::thread::spawn(test).join().expect("the test passes");
    }
}
