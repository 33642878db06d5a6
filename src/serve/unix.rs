//! The unix socket of the running proxy's API.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use socket2::Type;
use tokio::net::UnixListener;

use super::bind::until_open;
use crate::kernel::socket::unix;

/// Pause before a socket that could not be opened is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// Returns a listener at `path`, retrying until it can be opened.
pub(super) async fn listen(path: PathBuf) -> UnixListener {
    let log = |error: &io::Error| {
        if error.kind() == io::ErrorKind::AddrInUse {
            tracing::info!(
                "another process answers queries at {} (tripod status) until it ends; then this \
                 one does, or at once at another path (--status-socket)",
                path.display()
            );
            return;
        }
        tracing::warn!(
            "cannot open the unix socket {}: {error}; tripod status and tripod services cannot use \
             it. Traffic is not affected. Choose another path, or none, with --status-socket",
            path.display()
        );
    };
    let serving = format!("answering queries at {}", path.display());
    until_open(|| open(&path), AGAIN, log, &serving).await
}

fn open(path: &Path) -> io::Result<UnixListener> {
    UnixListener::from_std(unix::listen(path, Type::STREAM, unix::READABLE)?.into())
}
