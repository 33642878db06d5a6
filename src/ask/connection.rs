//! One question over the unix socket of the running proxy.

use std::{
    io::{self, Write},
    path::Path,
    sync::Once,
    time::Duration,
};

use http_body_util::{BodyExt, Empty, Limited};
use hyper::{Request, StatusCode, body::Bytes, client::conn::http1, header::HOST};
use hyper_util::rt::TokioIo;
use netlink::unix_listeners;
use serde::de::DeserializeOwned;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::UnixStream,
    time::timeout,
};

use super::{UNREACHABLE, read};
use crate::{cli::Unwritable, status_api::Refused};

/// How long an answer may take.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Longest answer, in bytes; a page of the API has a few MiB at most.
const LONGEST: usize = 64 << 20;

/// Why there is no answer, or why it cannot be printed.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) why: String,
    /// The exit status for it.
    pub(super) status: u8,
}

impl Failure {
    /// The proxy refuses the question, or has no such object.
    pub(super) fn refused(why: String) -> Failure {
        Failure { why, status: 1 }
    }

    /// There is no answer, or none that can be used: nothing answers, or the proxy serves others or
    /// is shutting down.
    pub(super) fn unanswered(why: String) -> Failure {
        let status = UNREACHABLE;
        Failure { why, status }
    }
}

impl From<Failure> for String {
    fn from(failure: Failure) -> String {
        failure.why
    }
}

impl From<Unwritable> for Failure {
    fn from(error: Unwritable) -> Failure {
        let why = error.to_string();
        Failure { why, status: 1 }
    }
}

/// The socket of the running proxy, and how long it may take to answer.
pub(super) struct Connection<'a> {
    socket: &'a Path,
    patience: Duration,
}

impl<'a> Connection<'a> {
    pub(super) fn new(socket: &'a Path) -> Connection<'a> {
        Connection {
            socket,
            patience: PATIENCE,
        }
    }

    /// Returns the same connection, on which an answer may take no longer than `most`.
    pub(super) fn within(self, most: Duration) -> Connection<'a> {
        Connection {
            patience: self.patience.min(most),
            ..self
        }
    }

    /// Returns whether a process listens there, even if it is stopped or busy.
    pub(super) async fn is_listened_on(&self) -> bool {
        match UnixStream::connect(self.socket).await {
            Ok(_) => true,
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        }
    }

    /// Sends a GET of `path` to the proxy, and parses its answer.
    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        let unreachable = |why: String| self.unreachable(&why);
        let stream = UnixStream::connect(self.socket)
            .await
            .map_err(|error| self.cannot_connect(&error))?;
        self.warn_if_elsewhere();
        let answer = timeout(self.patience, exchange(stream, path)).await;
        let patience = self.patience.as_secs_f64();
        let answer = answer.map_err(|_| unreachable(format!("no answer within {patience} s")))?;
        let (status, body) = answer.map_err(unreachable)?;
        if status == StatusCode::OK {
            return read(&body);
        }
        let refused = serde_json::from_slice::<Refused>(&body);
        let why = refused.map_or_else(|_| status.to_string(), |refused| refused.error);
        Err(
            if status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error() {
                Failure::unanswered(why)
            } else {
                Failure::refused(why)
            },
        )
    }

    /// Warns once of an answer about another network namespace, whose processes may share the folder
    /// of the socket.
    fn warn_if_elsewhere(&self) {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            if unix_listeners::is_elsewhere(self.socket) {
                // The reader may have closed its end.
                let _ = writeln!(
                    io::stderr(),
                    "warning: the Tripod that answers at {} serves another network namespace; \
                     --status-socket names the socket of another one",
                    self.socket.display()
                );
            }
        });
    }

    fn unreachable(&self, why: &str) -> Failure {
        let socket = self.socket.display();
        Failure::unanswered(format!("Tripod does not answer at {socket}: {why}"))
    }

    fn cannot_connect(&self, error: &io::Error) -> Failure {
        let socket = self.socket.display();
        let remedy = match error.kind() {
            // The queue of connections is full (unix(7), `connect` of a non-blocking socket).
            io::ErrorKind::WouldBlock => {
                "a Tripod runs there, but accepts no connection: it is stopped or hangs; see its \
                 log, or restart it"
            }
            io::ErrorKind::PermissionDenied => {
                return Failure::unanswered(format!(
                    "Tripod answers only root, and the user as which it runs, at {socket}: run \
                     this command as root, for example with sudo"
                ));
            }
            io::ErrorKind::ConnectionRefused => {
                "the Tripod that answered there has ended: see its log, or start it again"
            }
            _ => {
                "is Tripod running on this node? Start it, or give the path of its \
                 --status-socket; in a cluster, run this command in its pod: kubectl -n \
                 kube-system exec POD -- tripod status"
            }
        };
        Failure::unanswered(format!("no Tripod answers at {socket} ({error}): {remedy}"))
    }
}

/// Sends a GET of `path`. Returns the status and the body of the answer.
///
/// # Errors
/// Says why there is no answer.
pub async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    path: &str,
) -> Result<(StatusCode, Bytes), String> {
    let words = |error: hyper::Error| error.to_string();
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(words)?;
    let request = Request::get(path)
        .header(HOST, "localhost")
        .body(Empty::<Bytes>::new())
        .map_err(|error| error.to_string())?;
    let answer = async {
        let response = sender.send_request(request).await.map_err(words)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), LONGEST).collect().await;
        let body = body.map_err(|error| error.to_string())?;
        Ok((status, body.to_bytes()))
    };
    tokio::pin!(connection, answer);
    let mut open = true;
    loop {
        tokio::select! {
            answer = &mut answer => return answer,
            // The answer may be complete when the connection ends.
            _ = &mut connection, if open => open = false,
        }
    }
}
