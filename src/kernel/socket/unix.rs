//! Unix sockets for root alone. A socket that an ended process left behind is replaced; that of a
//! living one is not.

use std::{
    fs::{self, DirBuilder},
    io,
    os::{
        fd::AsFd,
        unix::fs::{DirBuilderExt, FileTypeExt},
    },
    path::Path,
};

use nix::{
    getsockopt_impl, libc,
    sys::{
        socket::{getsockopt, sockopt::GetStruct},
        stat::{Mode, fchmod},
    },
};
use socket2::{Domain, SockAddr, Socket, Type};

/// Number of connections that may wait to be accepted.
const BACKLOG: i32 = 32;

/// Mode of a folder for processes of its user alone.
pub const PRIVATE: u32 = 0o700;

/// Mode of a folder in which everybody may read other files.
pub const READABLE: u32 = 0o755;

/// Opens a non-blocking listening socket of this `kind`. A missing folder is created with the mode
/// `folder_mode`; missing folders above it can be read by all.
///
/// # Errors
/// When another process listens there (`AddrInUse`), a file that is no socket is in the way, or the
/// kernel refuses it.
pub fn listen(path: &Path, kind: Type, folder_mode: u32) -> io::Result<Socket> {
    make_folder(path, folder_mode)?;
    if !remove_unused(path)? {
        return Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            "another process answers there",
        ));
    }
    let socket = Socket::new(Domain::UNIX, kind.cloexec().nonblocking(), None)?;
    // The file is made with the mode of the socket (`unix_bind_bsd` in
    // `net/unix/af_unix.c`), so there is no moment in which others may connect.
    fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR)?;
    socket.bind(&SockAddr::unix(path)?)?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}

/// Creates the folder of a socket at `path` if it is missing, with this `mode`; missing folders
/// above it can be read by all.
///
/// # Errors
/// When the kernel refuses it.
pub fn make_folder(path: &Path, mode: u32) -> io::Result<()> {
    let Some(folder) = path.parent() else {
        return Ok(());
    };
    if let Some(above) = folder.parent() {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o755).create(above)?;
    }
    DirBuilder::new().recursive(true).mode(mode).create(folder)
}

/// Removes the socket at `path` if the process that made it has ended. Returns whether there is
/// none now: the socket of a living process stays.
///
/// # Errors
/// When a file that is no socket is there, or it cannot be examined or removed.
pub fn remove_unused(path: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        Err(error) => return Err(error),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(io::Error::other("there is a file that is no socket"));
        }
        Ok(_) => {}
    }
    if is_listened_on(path)? {
        return Ok(false);
    }
    fs::remove_file(path).map(|()| true)
}

/// Returns whether a process listens on the socket at `path`.
///
/// # Errors
/// When no socket can be made.
pub fn is_listened_on(path: &Path) -> io::Result<bool> {
    let kind = Type::STREAM.cloexec().nonblocking();
    let client = Socket::new(Domain::UNIX, kind, None)?;
    match client.connect(&SockAddr::unix(path)?) {
        Err(error) => Ok(!matches!(
            error.kind(),
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound
        )),
        // A process also listens if the socket has another type (EPROTOTYPE: `unix_find_bsd` in
        // `net/unix/af_unix.c` has found its process then), or if its queue is full (EAGAIN, see
        // unix(7)).
        Ok(()) => Ok(true),
    }
}

/// The identity of a network namespace: no other one has the same until the machine is restarted
/// (Linux 5.14).
#[derive(Clone, Copy, Debug)]
struct Cookie;

getsockopt_impl!(
    Cookie,
    libc::SOL_SOCKET,
    libc::SO_NETNS_COOKIE,
    u64,
    GetStruct<u64>
);

/// Returns whether the process that has connected is in the same network namespace as this one, to
/// which a socket belongs that is accepted here (`unix_stream_connect` in `net/unix/af_unix.c`). An
/// older kernel does not tell; then true is assumed.
pub fn is_of_this_namespace(accepted: &impl AsFd) -> bool {
    let own = Socket::new(Domain::UNIX, Type::STREAM.cloexec(), None);
    let own = own.ok().and_then(|own| getsockopt(&own, Cookie).ok());
    let theirs = getsockopt(accepted, Cookie).ok();
    own.is_none() || theirs.is_none() || own == theirs
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use testing::in_namespace;

    use super::*;

    #[test]
    fn a_socket_goes_with_its_process_alone() {
        let name = format!("tripod-unix-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let path = folder.join("socket");
        for kind in [Type::STREAM, Type::SEQPACKET] {
            let socket = listen(&path, kind, 0o700).unwrap();
            assert!(!remove_unused(&path).unwrap(), "{kind:?}");
            assert!(is_listened_on(&path).unwrap(), "{kind:?}");
            let why = listen(&path, kind, 0o700).unwrap_err().to_string();
            assert!(why.contains("another process answers"), "{why}");
            drop(socket);
            assert!(!is_listened_on(&path).unwrap(), "{kind:?}");
            assert!(path.exists());
            assert!(remove_unused(&path).unwrap(), "{kind:?}");
            assert!(!path.exists());
            assert!(remove_unused(&path).unwrap(), "there was none");
            assert!(!is_listened_on(&path).unwrap(), "there is none");
        }
        fs::write(&path, "").unwrap();
        assert!(remove_unused(&path).is_err(), "it is no socket");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn who_connects_from_another_network_namespace_is_recognized() {
        let path = std::env::temp_dir().join(format!("tripod-from-{}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let accepted = |connect: &dyn Fn()| {
            connect();
            is_of_this_namespace(&listener.accept().unwrap().0)
        };
        let there = path.clone();
        assert!(accepted(&|| drop(UnixStream::connect(&there).unwrap())));
        if testing::is_root("making a network namespace") {
            assert!(!accepted(&|| {
                let there = there.clone();
                in_namespace(move || drop(UnixStream::connect(&there).unwrap()));
            }));
        }
        fs::remove_file(&path).unwrap();
    }
}
