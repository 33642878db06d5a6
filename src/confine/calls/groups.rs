//! The system calls that Tripod makes, by purpose, and those that are made only by the programs
//! that it starts.

use nix::libc;

/// Memory, clocks, signals, and questions of a process about itself.
pub(super) const ITSELF: &[libc::c_long] = &[
    libc::SYS_brk,
    libc::SYS_capget,
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_get_robust_list,
    libc::SYS_getcpu,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getrandom,
    libc::SYS_getrusage,
    libc::SYS_gettid,
    libc::SYS_gettimeofday,
    libc::SYS_getuid,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
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
    libc::SYS_sigaltstack,
    libc::SYS_sysinfo,
    // abort(3) ends the process by this call.
    libc::SYS_tgkill,
    libc::SYS_uname,
];

/// Waiting for events.
pub(super) const EVENTS: &[libc::c_long] = &[
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_ppoll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
];

/// Reading files and folders, writing to open files, and creating and removing the files of unix
/// sockets.
pub(super) const FILES: &[libc::c_long] = &[
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fadvise64,
    libc::SYS_fchmod,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_ioctl,
    libc::SYS_lseek,
    libc::SYS_mkdirat,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_pread64,
    libc::SYS_read,
    libc::SYS_readlinkat,
    libc::SYS_readv,
    libc::SYS_statx,
    libc::SYS_unlinkat,
    libc::SYS_write,
    libc::SYS_writev,
    // Calls that newer architectures do not have.
    #[cfg(target_arch = "x86_64")]
    libc::SYS_access,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lstat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_mkdir,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_unlink,
];

/// Sockets that are open already.
pub(super) const SOCKETS: &[libc::c_long] = &[
    libc::SYS_accept4,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_listen,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    // The resolver asks for addresses of both families at once by this call.
    libc::SYS_sendmmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
];

/// Noticing changes of files: manifests, and the configuration.
pub(super) const WATCHED_FILES: &[libc::c_long] = &[
    libc::SYS_inotify_add_watch,
    libc::SYS_inotify_init1,
    libc::SYS_inotify_rm_watch,
];

/// Moving bytes from one connection to another through a pipe.
pub(super) const RELAYS: &[libc::c_long] = &[libc::SYS_pipe2, libc::SYS_splice];

/// Receiving and sending for many connections at once, by rings that were made earlier.
pub(super) const RINGS: &[libc::c_long] = &[libc::SYS_io_uring_enter];

/// Starting programs, and calls that only those make: iptables, modprobe, shells, credential
/// plugins. They create sockets and processes of every kind.
pub(super) const PROGRAMS: &[libc::c_long] = &[
    libc::SYS_accept,
    libc::SYS_capset,
    libc::SYS_chdir,
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_copy_file_range,
    libc::SYS_dup3,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_fchdir,
    libc::SYS_fchmodat,
    libc::SYS_fdatasync,
    libc::SYS_flock,
    libc::SYS_fstatfs,
    libc::SYS_fsync,
    libc::SYS_ftruncate,
    libc::SYS_getgroups,
    libc::SYS_getpgid,
    libc::SYS_getpriority,
    libc::SYS_getresgid,
    libc::SYS_getresuid,
    libc::SYS_getsid,
    libc::SYS_kill,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    libc::SYS_pipe2,
    libc::SYS_preadv,
    libc::SYS_pselect6,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_recvmmsg,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_rt_sigpending,
    libc::SYS_rt_sigsuspend,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_sendfile,
    libc::SYS_set_tid_address,
    libc::SYS_setitimer,
    libc::SYS_setpgid,
    libc::SYS_setsid,
    libc::SYS_signalfd4,
    libc::SYS_socket,
    libc::SYS_socketpair,
    libc::SYS_splice,
    libc::SYS_statfs,
    libc::SYS_tee,
    libc::SYS_timer_create,
    libc::SYS_timer_delete,
    libc::SYS_timer_settime,
    libc::SYS_times,
    libc::SYS_umask,
    libc::SYS_wait4,
    libc::SYS_waitid,
];

/// Calls of programs that newer architectures do not have.
#[cfg(target_arch = "x86_64")]
pub(super) const OLDER_OF_PROGRAMS: &[libc::c_long] = &[
    libc::SYS_alarm,
    libc::SYS_arch_prctl,
    libc::SYS_chmod,
    libc::SYS_dup2,
    libc::SYS_fork,
    libc::SYS_getdents,
    libc::SYS_getpgrp,
    libc::SYS_getrlimit,
    libc::SYS_pause,
    libc::SYS_pipe,
    libc::SYS_rename,
    libc::SYS_rmdir,
    libc::SYS_select,
    libc::SYS_time,
    libc::SYS_vfork,
];
#[cfg(not(target_arch = "x86_64"))]
pub(super) const OLDER_OF_PROGRAMS: &[libc::c_long] = &[];
