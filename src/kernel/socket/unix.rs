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

/// Opens a listening socket of this `kind` that does not block, in a folder that is
/// made if there is none, with the mode `folder_mode`; those above it are for all to
/// read.
///
/// # Errors
/// When another process answers there, a file that is no socket is in the way, or the
/// kernel refuses it.
pub fn listen(path: &Path, kind: Type, folder_mode: u32) -> io::Result<Socket> {
    if let Some(folder) = path.parent() {
        if let Some(above) = folder.parent() {
            DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create(above)?;
        }
        DirBuilder::new()
            .recursive(true)
            .mode(folder_mode)
            .create(folder)?;
    }
    remove_stale(path, kind)?;
    let socket = Socket::new(Domain::UNIX, kind.cloexec().nonblocking(), None)?;
    // The file is made with the mode of the socket (`unix_bind_bsd` in
    // `net/unix/af_unix.c`), so there is no moment in which others may connect.
    fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR)?;
    socket.bind(&SockAddr::unix(path)?)?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}

/// Removes the socket of a process that ended.
fn remove_stale(path: &Path, kind: Type) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(io::Error::other("there is a file that is no socket"));
        }
        Ok(_) => {}
    }
    let client = Socket::new(Domain::UNIX, kind.cloexec().nonblocking(), None)?;
    match client.connect(&SockAddr::unix(path)?) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        // Also where so many wait that no more can (EAGAIN, see unix(7)).
        _ => Err(io::Error::other("another process answers there")),
    }
}
