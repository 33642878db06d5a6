//! Unix sockets that root alone may use. One that an ended process left behind is
//! replaced; that of a living one is not.

use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::fs::{DirBuilderExt, FileTypeExt},
    path::Path,
};

use nix::sys::stat::{Mode, fchmod};
use socket2::{Domain, SockAddr, Socket, Type};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 32;

/// Mode of a folder for processes of its user alone.
pub const PRIVATE: u32 = 0o700;

/// Mode of a folder in which everybody may read other files.
pub const READABLE: u32 = 0o755;

/// Opens a listening socket of this `kind` that does not block, in a folder that is
/// made if there is none, with the mode `folder_mode`; those above it can be read by
/// all.
///
/// # Errors
/// When another process answers there, a file that is no socket is in the way, or the
/// kernel refuses it.
pub fn listen(path: &Path, kind: Type, folder_mode: u32) -> io::Result<Socket> {
    make_folder(path, folder_mode)?;
    if !remove_unused(path)? {
        return Err(io::Error::other("another process answers there"));
    }
    let socket = Socket::new(Domain::UNIX, kind.cloexec().nonblocking(), None)?;
    // The file is made with the mode of the socket (`unix_bind_bsd` in
    // `net/unix/af_unix.c`), so there is no moment in which others may connect.
    fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR)?;
    socket.bind(&SockAddr::unix(path)?)?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}

/// Makes the folder of a socket at `path` if there is none, with this `mode`; those above it can be
/// read by all.
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

/// Removes the socket at `path` if the process that made it has ended. Returns whether
/// there is none now: one that a process has stays.
///
/// # Errors
/// When a file that is no socket is there, or it cannot be looked at or removed.
pub fn remove_unused(path: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        Err(error) => return Err(error),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(io::Error::other("there is a file that is no socket"));
        }
        Ok(_) => {}
    }
    let kind = Type::STREAM.cloexec().nonblocking();
    let client = Socket::new(Domain::UNIX, kind, None)?;
    match client.connect(&SockAddr::unix(path)?) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map(|()| true)
        }
        // Also where it is of another type (EPROTOTYPE: `unix_find_bsd` in
        // `net/unix/af_unix.c` has found its process then), or where so many wait that no
        // more can (EAGAIN, see unix(7)).
        _ => Ok(false),
    }
}

/// The unix sockets of the calling thread's network namespace (proc_pid_net(5)).
const TABLE: &str = "/proc/thread-self/net/unix";

/// Returns the paths of the sockets on which processes in this network namespace listen, as they
/// were bound, also of those in another mount namespace, as of a container.
///
/// # Errors
/// Those of reading the kernel's table.
pub fn listened_on() -> io::Result<Vec<String>> {
    // The names of abstract sockets are any bytes (unix(7)), and any process can bind one.
    let table = fs::read(TABLE)?;
    let table = String::from_utf8_lossy(&table);
    Ok(table.lines().filter_map(listener).collect())
}

/// Returns the path in a line of the table, if that is of a socket which listens
/// (`__SO_ACCEPTCON`, `unix_seq_show` of `net/unix/af_unix.c`).
fn listener(line: &str) -> Option<String> {
    let mut fields = line.split_ascii_whitespace();
    let listens = fields.nth(3)? == "00010000";
    fields.nth(3).filter(|_| listens).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;
    use crate::kernel::namespace::in_namespace;

    fn is_listened_on(path: &Path) -> bool {
        let mut all = listened_on().unwrap().into_iter();
        all.any(|name| Path::new(&name) == path)
    }

    #[test]
    fn a_socket_goes_with_its_process_alone() {
        let name = format!("tripod-unix-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let path = folder.join("socket");
        for kind in [Type::STREAM, Type::SEQPACKET] {
            let socket = listen(&path, kind, 0o700).unwrap();
            assert!(!remove_unused(&path).unwrap(), "{kind:?}");
            assert!(is_listened_on(&path), "{kind:?}");
            assert!(!is_listened_on(&folder));
            let why = listen(&path, kind, 0o700).unwrap_err().to_string();
            assert!(why.contains("another process answers"), "{why}");
            drop(socket);
            assert!(!is_listened_on(&path), "{kind:?}");
            assert!(path.exists());
            assert!(remove_unused(&path).unwrap(), "{kind:?}");
            assert!(!path.exists());
            assert!(remove_unused(&path).unwrap(), "there was none");
        }
        fs::write(&path, "").unwrap();
        assert!(remove_unused(&path).is_err(), "it is no socket");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn sockets_are_found_next_to_one_whose_name_is_no_text() {
        in_namespace(|| {
            let name = format!("tripod-unix-bytes-{}", std::process::id());
            let folder = std::env::temp_dir().join(name);
            let path = folder.join("socket");
            let others = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
            let name = std::ffi::OsStr::from_bytes(b"\0any \xff\n\xfe bytes");
            others.bind(&SockAddr::unix(name).unwrap()).unwrap();
            others.listen(1).unwrap();
            let _ours = listen(&path, Type::STREAM, 0o700).unwrap();
            assert!(is_listened_on(&path));
            fs::remove_dir_all(folder).unwrap();
        });
    }
}
