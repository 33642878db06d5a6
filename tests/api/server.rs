//! A server that speaks the API's protocol, and fails as a test requests.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    io::{self, Write},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use http::{HeaderMap, HeaderValue, Request, Response};
use hyper::{
    body::Incoming,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{mpsc, watch},
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;

use super::{
    cluster::{Cluster, Selector, bookmark, kind_of},
    feed::Feed,
    query,
    reviews::Reviews,
    single,
};

/// The server; clones are the same one.
#[derive(Clone)]
pub struct Server {
    cluster: Arc<Mutex<Cluster>>,
    script: Arc<Mutex<Script>>,
    /// Counts all changes that watchers should notice.
    stir: Arc<watch::Sender<u64>>,
    connections: Arc<Mutex<JoinSet<()>>>,
}

/// Its behaviour.
#[derive(Default)]
pub struct Script {
    /// It lists by watch; otherwise it refuses to, as servers without the
    /// WatchList feature do.
    pub streaming: bool,
    /// It answers expired versions with the HTTP status 410; otherwise with
    /// an ERROR event.
    pub gone_as_status: bool,
    /// It requires this token.
    pub token: Option<String>,
    /// It accepts no connection.
    pub down: bool,
    /// How long it takes to refuse a connection.
    pub refuse_after: Duration,
    /// How long each answer and each event takes.
    pub slow: Duration,
    /// Connections that were refused.
    pub refused: u32,
    /// Answers to the next requests, whatever they are: collection, HTTP status, `Retry-After`. A
    /// path that begins with * matches the end of one.
    pub refuse: Vec<(&'static str, u16, Option<u32>)>,
    /// The next event of that collection is cut in the middle.
    pub cut: Option<&'static str>,
    /// The next page of that collection is answered with 410.
    pub expire_page: Option<&'static str>,
    /// Pages of that collection are answered with these bytes, compressed if the flag is set.
    pub page: Option<(&'static str, Bytes, bool)>,
    /// The next streaming list of that collection ends before it is complete.
    pub break_list: Option<&'static str>,
    /// Each streaming list is answered with 200, some events and this.
    pub fail_streams: Option<&'static str>,
    /// Watches of that collection from a version up to this one are answered only with this.
    pub fail_watches: Option<(&'static str, u64, &'static str)>,
    /// All requests: time, verb and collection.
    pub calls: Vec<(tokio::time::Instant, &'static str, String)>,
    /// Queries of all requests.
    pub queries: Vec<String>,
    /// Protocols of all connections, by their names in ALPN.
    pub protocols: Vec<String>,
    /// Connections that are open.
    pub open: u32,
    /// Number of compressed answers.
    pub compressed: u32,
    /// The rights, and the requested reviews.
    pub reviews: Reviews,
    /// Adds the server's fields to a created object.
    pub admit: Option<fn(&mut Value, u64)>,
    /// Counts up; watches with an older number end.
    watches: u64,
    pages: BTreeMap<String, (u64, Vec<Value>)>,
}

impl Script {
    /// Records a request. Returns the answer of one that is refused.
    pub fn refusal<T>(
        &mut self,
        verb: &'static str,
        request: &Request<T>,
    ) -> Option<Response<Feed>> {
        let path = request.uri().path().to_owned();
        let call = (tokio::time::Instant::now(), verb, path.clone());
        self.calls.push(call);
        let text = request.uri().query().unwrap_or_default();
        self.queries.push(format!("{path} {text}"));
        let expected = self.token.as_ref().map(|token| format!("Bearer {token}"));
        let given = request.headers().get("authorization");
        let given = given.and_then(|value| value.to_str().ok());
        if expected.is_some() && given != expected.as_deref() {
            return Some(status(401, "Unauthorized", None));
        }
        let is_meant = |of: &str| match of.strip_prefix('*') {
            Some(end) => path.ends_with(end),
            None => of == path,
        };
        let at = self.refuse.iter().position(|(of, ..)| is_meant(of))?;
        let (_, code, retry_after) = self.refuse.remove(at);
        Some(status(code, "Scripted", retry_after))
    }
}

impl Server {
    pub fn new() -> Server {
        Server {
            cluster: Arc::default(),
            script: Arc::new(Mutex::new(Script {
                streaming: true,
                ..Script::default()
            })),
            stir: Arc::new(watch::Sender::new(0)),
            connections: Arc::default(),
        }
    }

    /// Changes the stored objects, and wakes watchers.
    pub fn change<T>(&self, change: impl FnOnce(&mut Cluster) -> T) -> T {
        let result = change(&mut self.cluster.lock().unwrap());
        self.stir.send_modify(|count| *count += 1);
        result
    }

    /// Reads the stored objects.
    pub fn inspect<T>(&self, inspect: impl FnOnce(&Cluster) -> T) -> T {
        inspect(&self.cluster.lock().unwrap())
    }

    /// Returns a receiver that counts the changes.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.stir.subscribe()
    }

    /// Its behaviour, which can be changed.
    pub fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().unwrap()
    }

    /// Ends all watches in an orderly way.
    pub fn end_watches(&self) {
        self.script().watches += 1;
        self.stir.send_modify(|count| *count += 1);
    }

    /// Goes down: every connection breaks, and no new one opens.
    pub fn down(&self) {
        self.script().down = true;
        self.connections.lock().unwrap().abort_all();
    }

    /// Accepts connections again.
    pub fn up(&self) {
        self.script().down = false;
    }

    /// Serves one connection without TLS.
    pub fn serve_plain(&self, socket: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let server = self.clone();
        self.connections.lock().unwrap().spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let answer = server.answer(request);
                async move { Ok::<_, Infallible>(answer) }
            });
            let http = http1::Builder::new();
            let _ = http.serve_connection(TokioIo::new(socket), service).await;
        });
    }

    /// Serves one connection.
    pub fn serve<S>(&self, socket: S, tls: TlsAcceptor)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let server = self.clone();
        self.connections.lock().unwrap().spawn(async move {
            let Ok(stream) = tls.accept(socket).await else {
                return;
            };
            let protocol = stream.get_ref().1.alpn_protocol().unwrap_or(b"http/1.1");
            let protocol = String::from_utf8_lossy(protocol).into_owned();
            server.script().protocols.push(protocol.clone());
            let _open = Open::count(&server);
            let service = service_fn(move |request: Request<Incoming>| {
                let server = server.clone();
                async move {
                    let headers = request.headers().clone();
                    let slow = server.script().slow;
                    tokio::time::sleep(slow).await;
                    let answer = if Reviews::are_asked(&request) {
                        server.review(request).await
                    } else if single::is_asked(&request) {
                        server.single(request).await
                    } else {
                        server.answer(request)
                    };
                    let mut answer = server.compress(&headers, answer).await;
                    let json = HeaderValue::from_static("application/json");
                    answer.headers_mut().insert("content-type", json);
                    Ok::<_, Infallible>(answer)
                }
            });
            let stream = TokioIo::new(stream);
            if protocol == "h2" {
                let http = http2::Builder::new(TokioExecutor::new());
                let _ = http.serve_connection(stream, service).await;
            } else {
                let http = http1::Builder::new();
                let _ = http.serve_connection(stream, service).await;
            }
        });
    }

    fn answer(&self, request: Request<Incoming>) -> Response<Feed> {
        let path = request.uri().path().to_owned();
        let query = query::parse(request.uri().query().unwrap_or_default());
        let get = |key: &str| query.get(key).map(String::as_str);
        let watch = get("watch") == Some("true");
        let mut script = self.script();
        if let Some(refused) = script.refusal(if watch { "watch" } else { "list" }, &request) {
            return refused;
        }
        let mut selector = Selector::parse(get("labelSelector"), get("fieldSelector"));
        let accepted = request.headers().get("accept");
        let accepted = accepted.and_then(|value| value.to_str().ok());
        selector.metadata_alone = accepted.is_some_and(|a| a.contains("as=PartialObjectMetadata"));
        if !watch {
            return self.page(&mut script, &path, &selector, get("limit"), get("continue"));
        }
        let initial = get("sendInitialEvents") == Some("true");
        if initial && !script.streaming {
            return status(422, "Invalid", None);
        }
        assert_eq!(get("allowWatchBookmarks"), Some("true"));
        if initial {
            assert_eq!(get("resourceVersionMatch"), Some("NotOlderThan"));
        }
        let version = get("resourceVersion").unwrap_or_default().parse();
        let from = (!initial).then(|| version.unwrap_or(0));
        self.watch(&mut script, path, selector, from)
    }

    /// Serves a watch of the changes after version `from`; if `None`, it begins with the present
    /// objects (a streaming list).
    fn watch(
        &self,
        script: &mut Script,
        path: String,
        selector: Selector,
        from: Option<u64>,
    ) -> Response<Feed> {
        let cluster = self.cluster.lock().unwrap();
        let mut first = Vec::new();
        let at = match from {
            None => {
                let objects = cluster.list(&path, &selector);
                let added = objects.iter();
                first.extend(added.map(|object| json!({"type": "ADDED", "object": object})));
                if script.break_list.take_if(|of| **of == *path).is_some() {
                    first.pop();
                    return Response::new(Feed::of(lines(&first)));
                }
                if let Some(text) = script.fail_streams {
                    let mut begun = lines(&first[..first.len().min(1)]);
                    begun.extend_from_slice(text.as_bytes());
                    return Response::new(Feed::of(begun));
                }
                first.push(bookmark(&path, cluster.version, true));
                cluster.now()
            }
            Some(version)
                if let Some((of, last, text)) = script.fail_watches
                    && of == path
                    && version <= last =>
            {
                return Response::new(Feed::of(text.into()));
            }
            Some(version) if version < cluster.compacted => {
                if script.gone_as_status {
                    return status(410, "Expired", None);
                }
                let gone = json!({"kind": "Status", "status": "Failure", "code": 410,
                    "reason": "Expired", "message": "too old resource version"});
                let event = json!({"type": "ERROR", "object": gone});
                return Response::new(Feed::of(lines(&[event])));
            }
            Some(version) => cluster.since(version),
        };
        let (sender, feed) = mpsc::channel(1);
        let number = script.watches;
        let watcher = Watcher {
            server: self.clone(),
            path,
            selector,
            at,
            number,
            sender,
        };
        tokio::spawn(watcher.run(first));
        Response::new(Feed::Live(feed))
    }

    /// Compresses the answers that real servers compress: all large ones except watches.
    async fn compress(&self, request: &HeaderMap, answer: Response<Feed>) -> Response<Feed> {
        let accepts = request.get("accept-encoding");
        if !accepts.is_some_and(|value| value.to_str().unwrap().contains("gzip")) {
            return answer;
        }
        let (mut head, body) = answer.into_parts();
        let bytes = match body {
            Feed::Whole(Some(bytes))
                if bytes.len() > 128 << 10 && !head.headers.contains_key("content-encoding") =>
            {
                bytes
            }
            other => return Response::from_parts(head, other),
        };
        self.script().compressed += 1;
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&bytes).unwrap();
        head.headers
            .insert("content-encoding", "gzip".parse().unwrap());
        Response::from_parts(head, Feed::of(encoder.finish().unwrap()))
    }

    fn page(
        &self,
        script: &mut Script,
        path: &str,
        selector: &Selector,
        limit: Option<&str>,
        token: Option<&str>,
    ) -> Response<Feed> {
        if let Some((_, bytes, gzip)) = script.page.as_ref().filter(|(of, ..)| *of == path) {
            let mut answer = Response::new(Feed::Whole(Some(bytes.clone())));
            if *gzip {
                let encoding = "gzip".parse().unwrap();
                answer.headers_mut().insert("content-encoding", encoding);
            }
            return answer;
        }
        let cluster = self.cluster.lock().unwrap();
        let (version, mut items) = match token {
            Some(_) if script.expire_page.take_if(|of| **of == *path).is_some() => {
                return status(410, "Expired", None);
            }
            Some(token) => match script.pages.remove(token) {
                Some(rest) => rest,
                None => return status(410, "Expired", None),
            },
            None => (cluster.version, cluster.list(path, selector)),
        };
        let limit: usize = limit.map_or(usize::MAX, |limit| limit.parse().unwrap());
        let rest = items.split_off(limit.min(items.len()));
        let mut metadata = json!({"resourceVersion": version.to_string()});
        if !rest.is_empty() {
            let token = format!("{path}@{}", rest.len());
            metadata["continue"] = json!(token);
            script.pages.insert(token, (version, rest));
        }
        // Items of a list do not repeat their kind.
        for item in &mut items {
            let item = item.as_object_mut().unwrap();
            item.remove("kind");
            item.remove("apiVersion");
        }
        let (kind, api_version) = kind_of(path);
        let list = json!({"kind": format!("{kind}List"), "apiVersion": api_version,
            "metadata": metadata, "items": items});
        Response::new(Feed::of(list.to_string().into_bytes()))
    }
}

/// Counts an open connection while it lives.
struct Open(Server);

impl Open {
    fn count(server: &Server) -> Open {
        server.script().open += 1;
        Open(server.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.script().open -= 1;
    }
}

struct Watcher {
    server: Server,
    path: String,
    selector: Selector,
    at: usize,
    number: u64,
    sender: mpsc::Sender<io::Result<Bytes>>,
}

impl Watcher {
    async fn run(mut self, first: Vec<Value>) {
        let mut stir = self.server.stir.subscribe();
        if self.send(first).await.is_err() {
            return;
        }
        loop {
            if self.server.script().watches != self.number {
                return;
            }
            let events = {
                let cluster = self.server.cluster.lock().unwrap();
                let events = cluster.events(self.at, &self.path, &self.selector);
                self.at = cluster.now();
                events
            };
            if !events.is_empty() {
                let slow = self.server.script().slow;
                tokio::time::sleep(slow).await;
            }
            if self.send(events).await.is_err() {
                return;
            }
            tokio::select! {
                changed = stir.changed() => if changed.is_err() { return },
                () = self.sender.closed() => return,
            }
        }
    }

    /// Sends each line in two pieces, because a line need not arrive in one.
    async fn send(&self, events: Vec<Value>) -> Result<(), ()> {
        for event in events {
            let line = Bytes::from(lines(&[event]));
            let (half, rest) = (line.slice(..line.len() / 2), line.slice(line.len() / 2..));
            let cut = self.server.script().cut.take_if(|of| **of == *self.path);
            let rest = match cut {
                None => Ok(rest),
                Some(_) => Err(io::Error::other("cut")),
            };
            let cut = rest.is_err();
            self.sender.send(Ok(half)).await.map_err(|_| ())?;
            if cut {
                // The first half must be on the wire before the connection breaks.
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            self.sender.send(rest).await.map_err(|_| ())?;
            if cut {
                return Err(());
            }
        }
        Ok(())
    }
}

fn lines(events: &[Value]) -> Vec<u8> {
    let lines: String = events.iter().map(|event| format!("{event}\n")).collect();
    lines.into_bytes()
}

pub(super) fn status(code: u16, reason: &str, retry_after: Option<u32>) -> Response<Feed> {
    let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
        "code": code, "reason": reason, "message": format!("scripted {code}")});
    let mut response = Response::builder().status(code);
    if let Some(seconds) = retry_after {
        response = response.header("Retry-After", seconds);
    }
    response
        .body(Feed::of(body.to_string().into_bytes()))
        .unwrap()
}
