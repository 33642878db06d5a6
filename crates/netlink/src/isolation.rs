//! Namespaces that this process has to itself, for work that must leave no trace on the
//! host: they go when the process ends, however it ends.

use std::{
    fs::{self, File},
    io,
    os::{
        fd::AsRawFd,
        unix::{fs::MetadataExt, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::{self, Command},
    thread,
};

use nix::{
    errno::Errno,
    libc,
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
    unistd::{getegid, geteuid},
};
use tokio::sync::oneshot;

use super::links;
use crate::{Protocol, Socket};

/// Why there are no namespaces.
#[derive(Debug, thiserror::Error)]
#[error("cannot {operation}: {source}")]
pub struct Error {
    operation: String,
    source: io::Error,
}

fn failed(operation: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
    |source| Error {
        operation: operation.into(),
        source,
    }
}

fn errno(errno: Errno) -> io::Error {
    errno.into()
}

/// Number of the network namespace of the calling thread. No two namespaces have the same number at
/// the same time (`namespaces(7)`).
///
/// # Errors
/// Those of reading `/proc`.
pub fn network_namespace() -> io::Result<u64> {
    Ok(fs::metadata("/proc/thread-self/ns/net")?.ino())
}

/// Gives this process a network and a mount namespace of its own, in which loopback is
/// up. Where that takes more privileges than it has, it gets a user namespace, too, in
/// which it is root. The process must have one thread (`unshare(2)`).
///
/// # Errors
/// When the kernel does not allow it; the process may then be in some of them.
pub fn enter() -> Result<(), Error> {
    let flags = CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS;
    match unshare(flags) {
        Err(Errno::EPERM) => {
            let (uid, gid) = (geteuid(), getegid());
            unshare(flags | CloneFlags::CLONE_NEWUSER)
                .map_err(errno)
                .map_err(failed("make namespaces"))?;
            // user_namespaces(7): the groups of others may not be changed, or the kernel
            // refuses a map that an ordinary user writes.
            for (file, text) in [
                ("setgroups", "deny".to_owned()),
                ("uid_map", format!("0 {uid} 1")),
                ("gid_map", format!("0 {gid} 1")),
            ] {
                let path = Path::new("/proc/self").join(file);
                fs::write(&path, text).map_err(failed(format!("write {}", path.display())))?;
            }
        }
        made => made.map_err(errno).map_err(failed("make namespaces"))?,
    }
    // Later mounts are visible to this process alone.
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, private, None::<&str>)
        .map_err(errno)
        .map_err(failed("have mounts of its own"))?;
    loopback_up()
}

fn loopback_up() -> Result<(), Error> {
    // Loopback is the first link of every namespace.
    Socket::open(Protocol::Route)
        .and_then(|mut socket| links::set_up(&mut socket, 1))
        .map_err(|error| failed("set up loopback")(io::Error::other(error)))
}

/// Puts an empty file system over `/run`, for this process and its children. Returns the
/// path by which `path`, a folder or file that may be below it, is found then.
///
/// # Errors
/// When `path` does not exist, or something cannot be mounted.
pub fn empty_run(path: &Path) -> Result<PathBuf, Error> {
    let whole = fs::canonicalize(path).map_err(failed(format!("find {}", path.display())))?;
    // A file opened before the mount stays reachable after it.
    let opened = File::open(&whole).map_err(failed(format!("open {}", path.display())))?;
    let is_folder = whole.is_dir();
    mount(
        Some("tmpfs"),
        "/run",
        Some("tmpfs"),
        MsFlags::MS_NOSUID | MsFlags::MS_NODEV,
        Some("mode=0755"),
    )
    .map_err(errno)
    .map_err(failed("mount a file system at /run"))?;
    if !whole.starts_with("/run") {
        return Ok(whole);
    }
    let made = match whole.parent() {
        Some(above) if !is_folder => {
            fs::create_dir_all(above).and_then(|()| File::create(&whole).map(drop))
        }
        _ => fs::create_dir_all(&whole),
    };
    made.map_err(failed(format!("make {}", whole.display())))?;
    let source = format!("/proc/self/fd/{}", opened.as_raw_fd());
    let bind = MsFlags::MS_BIND | MsFlags::MS_REC;
    mount(Some(&*source), &whole, None::<&str>, bind, None::<&str>)
        .map_err(errno)
        .map_err(failed(format!("mount {}", whole.display())))?;
    Ok(whole)
}

/// Makes the kernel kill the child of `command` as soon as the thread that starts it ends, even if
/// that thread is killed itself.
pub fn die_with_parent(command: &mut Command) {
    let parent = process::id();
    let in_child = move || {
        // SAFETY: prctl(2) with PR_SET_PDEATHSIG reads its arguments alone, and getppid(2)
        // has none. Neither allocates nor takes a lock.
        let (set, now) = unsafe {
            let set = libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            (set, libc::getppid())
        };
        if set == -1 {
            return Err(io::Error::last_os_error());
        }
        // The parent may have ended before.
        if u32::try_from(now) == Ok(parent) {
            Ok(())
        } else {
            Err(io::ErrorKind::BrokenPipe.into())
        }
    };
    // SAFETY: between fork and exec the closure only makes the two system calls above,
    // which are safe there.
    unsafe { command.pre_exec(in_child) };
}

/// A network namespace in which a thread of this process runs a Tokio runtime; both end
/// with the process, and when this is dropped.
#[derive(Debug)]
pub struct NetworkNamespace {
    runtime: tokio::runtime::Handle,
    namespace: File,
    /// Dropped: the thread ends.
    _end: oneshot::Sender<()>,
}

impl NetworkNamespace {
    /// Makes a namespace with loopback up, in a thread of that name.
    ///
    /// # Errors
    /// When there can be no namespace or no thread.
    pub fn new(name: &str) -> Result<NetworkNamespace, Error> {
        let (sender, receiver) = std::sync::mpsc::channel();
        let (end, ended) = oneshot::channel();
        let inside = move || {
            let made = inside();
            let (runtime, made) = match made {
                Ok((runtime, namespace)) => {
                    let handle = runtime.handle().clone();
                    (Some(runtime), Ok((handle, namespace)))
                }
                Err(error) => (None, Err(error)),
            };
            let _ = sender.send(made);
            if let Some(runtime) = runtime {
                // An error means that the sender was dropped, which is the sign to end.
                let _ = runtime.block_on(ended);
            }
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(inside);
        thread.map_err(failed("start a thread"))?;
        let made = receiver.recv().map_err(|_| {
            let ended = io::Error::other("its thread ended");
            failed("make a network namespace")(ended)
        });
        let (runtime, namespace) = made??;
        Ok(NetworkNamespace {
            runtime,
            namespace,
            _end: end,
        })
    }

    /// Runs `work` there; the sockets that it makes are in this namespace.
    ///
    /// # Errors
    /// When `work` did not finish.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Error> {
        let done = self.runtime.spawn(work).await;
        done.map_err(|error| failed("finish what was begun")(io::Error::other(error)))
    }

    /// Begins `work` there, and does not wait for it.
    pub fn begin(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(work);
    }

    /// Returns the namespace, as netlink takes it (`IFLA_NET_NS_FD`).
    pub fn namespace(&self) -> &File {
        &self.namespace
    }
}

fn inside() -> Result<(tokio::runtime::Runtime, File), Error> {
    // unshare(2) concerns this thread only.
    unshare(CloneFlags::CLONE_NEWNET)
        .map_err(errno)
        .map_err(failed("make a network namespace"))?;
    loopback_up()?;
    let namespace = File::open("/proc/thread-self/ns/net");
    let namespace = namespace.map_err(failed("open a network namespace"))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    Ok((runtime.map_err(failed("start a runtime"))?, namespace))
}
