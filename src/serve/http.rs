//! A small HTTP/1.1 server: GET requests, answers that fit in memory, one answer per connection.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{ACCEPT, CONTENT_TYPE, HOST, HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use net::Family;
use netlink::{
    Protocol, Socket,
    connections::{self, Connection},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixListener, UnixStream},
    task::JoinSet,
    time::timeout,
};

use super::connections::{Answered, Connections};

/// How long a client may take for its request head.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Pause after a connection could not be accepted: most likely there are no free descriptors, and
/// some will be closed.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Lifetime of a connection, for the request and the answer.
const LIFETIME: Duration = Duration::from_secs(30);

/// Maximum length of the head of a request, in bytes.
const LONGEST_HEAD: usize = 16 << 10;

/// The parts of a request that an answer may depend on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Asked<'a> {
    /// The path, without query.
    pub(super) path: &'a str,
    /// The text after the path's question mark; empty if there is none.
    pub(super) query: &'a str,
    /// The `Accept` header; empty if there is none.
    pub(super) accept: &'a str,
    pub(super) peer: Peer,
    /// IP family of the connection; `None` if it has none, or no answer depends on it.
    pub(super) family: Option<Family>,
}

/// The sender of a request, which decides what it may read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Peer {
    /// A process of root, or of the user of this process: over a unix socket, or from a loopback
    /// address.
    OfRoot,
    /// Another process of this node, from a loopback address.
    OfNode,
    /// A client that the API server allows to read.
    Authorized,
    /// A client of unknown identity from elsewhere.
    #[default]
    Elsewhere,
}

/// Returns whether the `Host` of a request is localhost or an address. Any other name means that a
/// web page of that name, open in a browser on this node, has sent the request after its name was
/// made to resolve to a loopback address (DNS rebinding).
fn is_address(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next(),
        None => host.split(':').next(),
    };
    let name = name.unwrap_or_default();
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

/// Returns the media ranges of an `Accept` header, each with its parameters (RFC 9110, section
/// 12.5.1).
pub(super) fn media_ranges(accept: &str) -> impl Iterator<Item = (&str, BTreeMap<&str, &str>)> {
    accept.split(',').map(|range| {
        let mut parts = range.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default();
        (
            media,
            parts.filter_map(|part| part.split_once('=')).collect(),
        )
    })
}

/// A socket that accepts connections of clients.
pub(super) trait Listener: Send {
    /// The connection to one client.
    type Stream: Stream;
    /// Waits for the next client. Returns the connection, and where it comes from.
    fn next(&self) -> impl Future<Output = io::Result<(Self::Stream, IpAddr)>> + Send;
}

/// The connection to a client.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// Identifies the client. Returns the IP family of the connection as well; `None` over a unix
    /// socket, or if there is no connection any more.
    fn client(&self) -> (Peer, Option<Family>);
}

/// Returns whether the client of `stream`, which calls from a loopback address, is a process of
/// root or of the user of this process; false if that cannot be found out.
fn is_of_root(stream: &TcpStream) -> bool {
    let (Ok(here), Ok(there)) = (stream.local_addr(), stream.peer_addr()) else {
        return false;
    };
    let canonical = |at: SocketAddr| SocketAddr::new(at.ip().to_canonical(), at.port());
    let connection = Connection {
        local: canonical(there),
        remote: canonical(here),
    };
    let user = Socket::open(Protocol::SocketDiagnosis)
        .and_then(|mut socket| connections::user(&mut socket, connection));
    let own = nix::unistd::geteuid().as_raw();
    matches!(user, Ok(Some(user)) if user == 0 || user == own)
}

impl Stream for TcpStream {
    fn client(&self) -> (Peer, Option<Family>) {
        let Ok(from) = self.peer_addr() else {
            return (Peer::Elsewhere, None);
        };
        let ip = from.ip().to_canonical();
        let peer = match ip.is_loopback() {
            true if is_of_root(self) => Peer::OfRoot,
            true => Peer::OfNode,
            false => Peer::Elsewhere,
        };
        (peer, Some(Family::of(&ip)))
    }
}

impl Stream for UnixStream {
    /// The socket file is open to root and to the user of this process.
    fn client(&self) -> (Peer, Option<Family>) {
        (Peer::OfRoot, None)
    }
}

impl Listener for UnixListener {
    type Stream = UnixStream;

    /// All clients are on this node, and count as one.
    async fn next(&self) -> io::Result<(UnixStream, IpAddr)> {
        let (stream, _) = self.accept().await?;
        Ok((stream, Ipv4Addr::LOCALHOST.into()))
    }
}

/// Returns the identity to assume for a request of `peer` whose `Host` is `host`. Web pages do not
/// send requests over a unix socket, which has no IP family.
fn asking(peer: Peer, family: Option<Family>, host: Option<&str>) -> Peer {
    if family.is_none() || host.is_none_or(is_address) {
        peer
    } else {
        Peer::Elsewhere
    }
}

/// An answer to a GET request.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) kind: &'static str,
    pub(super) body: Vec<u8>,
    more: Option<(HeaderName, HeaderValue)>,
}

impl Answer {
    fn new(kind: &'static str, body: impl Into<Vec<u8>>) -> Answer {
        Answer {
            status: StatusCode::OK,
            kind,
            body: body.into(),
            more: None,
        }
    }

    /// Returns 200 with plain text.
    pub(super) fn text(body: impl Into<Vec<u8>>) -> Answer {
        Answer::new("text/plain; charset=utf-8", body)
    }

    /// Returns 200 with a page for browsers.
    pub(super) fn html(body: impl Into<Vec<u8>>) -> Answer {
        Answer::new("text/html; charset=utf-8", body)
    }

    /// Returns 200 with JSON.
    pub(super) fn json(body: impl Into<Vec<u8>>) -> Answer {
        Answer::new("application/json", body)
    }

    /// Returns 200 with metrics in the Prometheus text format, version 0.0.4.
    pub(super) fn metrics(body: String) -> Answer {
        Answer::new("text/plain; version=0.0.4; charset=utf-8", body)
    }

    /// Returns 200 with metrics in OpenMetrics, version 1.0.0.
    pub(super) fn openmetrics(body: String) -> Answer {
        let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        Answer::new(kind, body)
    }

    /// Returns 200 with metrics in Prometheus' protobuf format.
    pub(super) fn protobuf(body: Vec<u8>) -> Answer {
        let kind = "application/vnd.google.protobuf; \
                    proto=io.prometheus.client.MetricFamily; encoding=delimited";
        Answer::new(kind, body)
    }

    /// Returns 404 with plain text.
    pub(super) fn not_found() -> Answer {
        Answer::text("404 page not found\n").with_status(StatusCode::NOT_FOUND)
    }

    /// Changes the status.
    pub(super) fn with_status(self, status: StatusCode) -> Answer {
        Answer { status, ..self }
    }

    /// Adds a header, the only additional one that an answer may have.
    pub(super) fn with_header(self, name: HeaderName, value: HeaderValue) -> Answer {
        Answer {
            more: Some((name, value)),
            ..self
        }
    }

    fn into_response(self) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::from(self.body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.kind));
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        headers.extend(self.more);
        response
    }
}

/// Answers requests.
pub(super) trait Answers: Send + Sync + 'static {
    /// Answers a request. A wait ends with the lifetime of the connection.
    fn answer(&self, asked: Asked<'_>) -> impl Future<Output = Answer> + Send;
}

/// The methods of requests that are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Methods {
    /// GET and HEAD.
    Read,
    /// All of them, as kube-proxy does for probes: load balancers also ask with OPTIONS.
    Any,
}

/// Answers requests to `listener` with these `methods`, forever. Its connections count among `open`,
/// and are closed with it.
pub(super) async fn serve<L: Listener>(
    listener: L,
    open: Arc<Connections>,
    methods: Methods,
    answers: Arc<impl Answers>,
) {
    each_connection(listener, open, move |stream: L::Stream, answered| {
        let answers = Arc::clone(&answers);
        // Before the request is read: the client may close its socket afterwards.
        let (peer, family) = stream.client();
        answer_once(stream, answered, move |request| {
            let answers = Arc::clone(&answers);
            async move {
                let host = request.headers().get(HOST).map(|host| host.to_str());
                let peer = asking(peer, family, host.map(Result::unwrap_or_default));
                respond(&request, peer, family, methods, &*answers).await
            }
        })
    })
    .await;
}

/// Lets `serve` serve each connection to `listener`, until another program closes the listener in
/// the kernel (`ss -K`). Connections count among `open`, have a limited lifetime, and are closed
/// when this is dropped.
pub(super) async fn each_connection<L: Listener, F>(
    listener: L,
    open: Arc<Connections>,
    serve: impl Fn(L::Stream, Answered) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let mut connections = JoinSet::new();
    let number = open.listener();
    loop {
        let accepted = tokio::select! {
            accepted = listener.next() => accepted,
            Some(_) = connections.join_next() => continue,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            // It no longer listens (accept(2)).
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return,
            Err(_) => {
                tokio::time::sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        let mut place = open.enter(number, peer);
        let served = serve(stream, place.answered());
        connections.spawn(async move {
            tokio::select! {
                () = place.evicted() => {}
                _ = timeout(LIFETIME, served) => {}
            }
        });
        // If its request has arrived, it is answered before further connections displace it; and
        // syncs can run between the connections of a crowd.
        tokio::task::yield_now().await;
    }
}

/// Answers the first request of a connection, records the answer in `answered`, and closes the
/// connection. Further requests are not read, so nothing waits in memory for a client that does not
/// read its answers.
pub(super) async fn answer_once<F: Future<Output = Answer>>(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    answered: Answered,
    answer: impl Fn(Request<Incoming>) -> F,
) {
    let service = service_fn(|request: Request<Incoming>| {
        let answer = answer(request);
        let answered = &answered;
        async move {
            let answer = answer.await;
            answered.with(answer.body.len());
            Ok::<_, Infallible>(answer.into_response())
        }
    });
    // A client that breaks off is not logged.
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .keep_alive(false)
        // A client that has sent its request may close its sending side, as nc -N does.
        .half_close(true)
        .max_buf_size(LONGEST_HEAD)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

/// Answers a request of `peer`, if its method is one of `methods`.
pub(super) async fn respond(
    request: &Request<Incoming>,
    peer: Peer,
    family: Option<Family>,
    methods: Methods,
    answers: &impl Answers,
) -> Answer {
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    if methods == Methods::Read && !is_read {
        return Answer::text("only GET is served here\n")
            .with_status(StatusCode::METHOD_NOT_ALLOWED);
    }
    let accept = request.headers().get(ACCEPT);
    let asked = Asked {
        path: request.uri().path(),
        query: request.uri().query().unwrap_or_default(),
        accept: accept
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default(),
        peer,
        family,
    };
    answers.answer(asked).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_is_a_name_is_not_of_this_node() {
        for host in [
            "localhost:10249",
            "127.0.0.1",
            "[::1]:80",
            "LocalHost",
            "192.0.2.1:8080",
        ] {
            let peer = asking(Peer::OfNode, Some(Family::V4), Some(host));
            assert_eq!(peer, Peer::OfNode, "{host}");
        }
        let of_root = |family, host| asking(Peer::OfRoot, family, host);
        assert_eq!(of_root(Some(Family::V4), None), Peer::OfRoot);
        assert_eq!(of_root(None, Some("x")), Peer::OfRoot, "a unix socket");
        for host in [
            "example.org",
            "localhost.example.org",
            "",
            "127.0.0.1.example.org:10249",
        ] {
            let peer = of_root(Some(Family::V6), Some(host));
            assert_eq!(peer, Peer::Elsewhere, "{host}");
        }
    }
}
