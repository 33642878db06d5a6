//! A unix socket that root alone may use. One that an ended process left behind is
//! replaced; that of a living one is not.

use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::fs::{DirBuilderExt, FileTypeExt},
    path::{Path, PathBuf},
    time::Duration,
};

use nix::sys::stat::{Mode, fchmod};
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::UnixListener;

use super::bind::until_open;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 32;

/// Pause before a socket that could not be opened is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// Returns a listener at `path`, trying again until it can be opened.
pub(super) async fn listen(path: PathBuf) -> UnixListener {
    let log = |error: &io::Error| {
        tracing::warn!(
            "the unix socket {} cannot be opened: {error}; tripod status and tripod services get \
             no answer there. Traffic is carried all the same. --status-socket names another \
             path, or none",
            path.display()
        );
    };
    let serving = format!("answering at {}", path.display());
    until_open(|| open(&path), AGAIN, log, &serving).await
}

/// Opens the socket, in a folder that is made if there is none.
fn open(path: &Path) -> io::Result<UnixListener> {
    if let Some(folder) = path.parent() {
        DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(folder)?;
    }
    remove_stale(path)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM.cloexec().nonblocking(), None)?;
    // The file is made with the mode of the socket (`unix_bind_bsd` in
    // `net/unix/af_unix.c`), so there is no moment in which others may connect.
    fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR)?;
    socket.bind(&SockAddr::unix(path)?)?;
    socket.listen(BACKLOG)?;
    UnixListener::from_std(socket.into())
}

/// Removes the socket of a process that ended.
fn remove_stale(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(io::Error::other("there is a file that is no socket"));
        }
        Ok(_) => {}
    }
    let client = Socket::new(Domain::UNIX, Type::STREAM.cloexec().nonblocking(), None)?;
    match client.connect(&SockAddr::unix(path)?) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        // Also where so many wait that no more can (EAGAIN, see unix(7)).
        _ => Err(io::Error::other("another process answers there")),
    }
}
