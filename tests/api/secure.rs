//! The secure metrics address of the program: access by user, changing certificates, and an
//! unreachable API server.

use std::{io, path::Path, time::Duration};

use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper::{body::Bytes, client::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, sleep, timeout},
};
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};

use super::{
    lists::shop,
    program::{command, in_sandbox},
    reviews::Reviews,
    tcp_server::TcpServer,
    tls::{self, Authority},
};
use crate::lab::Tripod;

pub const ADDRESS: &str = "127.0.0.1:10250";
const HOST: &str = "127.0.0.1";
const SOON: Duration = Duration::from_secs(30);

/// An answer: its status, its head in words, and its body.
#[derive(Debug)]
pub struct Got {
    pub status: u16,
    head: String,
    pub body: String,
}

/// Sends one request over TLS to the address, with this `Authorization`.
pub async fn ask(
    tls: &TlsConnector,
    method: &str,
    path: &str,
    authorization: Option<&str>,
) -> io::Result<Got> {
    let stream = TcpStream::connect(ADDRESS).await?;
    let stream = tls.connect(ServerName::try_from(HOST).expect("an address"), stream);
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream.await?))
        .await
        .map_err(io::Error::other)?;
    let connection = tokio::spawn(connection);
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header("Host", HOST);
    if let Some(authorization) = authorization {
        request = request.header("Authorization", authorization);
    }
    let request = request.body(Empty::<Bytes>::new()).expect("a request");
    let answer = sender
        .send_request(request)
        .await
        .map_err(io::Error::other)?;
    let (head, body) = answer.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    connection.abort();
    Ok(Got {
        status: head.status.as_u16(),
        head: format!("{:?}", head.headers),
        body: String::from_utf8_lossy(&body).into_owned(),
    })
}

async fn get(tls: &TlsConnector, path: &str, token: &str) -> io::Result<Got> {
    ask(tls, "GET", path, Some(&format!("Bearer {token}"))).await
}

/// Repeats the request until `content` is as expected.
pub async fn until(
    what: &str,
    mut asked: impl AsyncFnMut() -> io::Result<Got>,
    content: impl Fn(&Got) -> bool,
) -> Got {
    let deadline = Instant::now() + SOON;
    loop {
        let got = asked().await;
        match got {
            Ok(got) if content(&got) => return got,
            got => assert!(Instant::now() < deadline, "{what}: {got:?}"),
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// A server that knows a user who may read metrics, one who may read everything that the tests
/// request, and one who may read nothing.
pub async fn cluster(name: &str) -> TcpServer {
    let tcp = TcpServer::open(shop(), name, &Authority::new(), false).await;
    let of_admin = [
        "/",
        "/metrics",
        "/proxyMode",
        "/v1/status",
        "/v1/services",
        "/v1/diff",
        "/none",
    ];
    let mut rights = vec![("scraper", "/metrics")];
    rights.extend(of_admin.map(|path| ("admin", path)));
    tcp.server.script().reviews = Reviews {
        users: vec![("t1", "scraper"), ("t2", "admin"), ("t3", "nobody")],
        rights,
        ..Reviews::default()
    };
    tcp
}

/// Starts the program with that address, and these flags.
pub fn start(tcp: &TcpServer, flags: &[&str]) -> Tripod {
    let mut command = command(tcp);
    command.arg(format!("--metrics-secure-bind-address={ADDRESS}"));
    command.args(flags);
    Tripod::spawn(command)
}

/// Method, path and `Authorization` of a request, the status of its answer, and words in the
/// answer.
const ANSWERS: [(&str, &str, Option<&str>, u16, &str); 20] = [
    ("GET", "/metrics", None, 401, "bearer token"),
    ("GET", "/metrics", Some("Bearer t4"), 401, "bearer token"),
    ("GET", "/metrics", Some("Bearer "), 401, "bearer token"),
    ("GET", "/metrics", Some("Basic dDE6"), 401, "bearer token"),
    ("GET", "/v1/status", None, 401, "bearer token"),
    (
        "GET",
        "/metrics",
        Some("Bearer t3"),
        403,
        "nobody may not get /metrics",
    ),
    (
        "GET",
        "/v1/status",
        Some("Bearer t1"),
        403,
        "scraper may not get /v1/status",
    ),
    (
        "GET",
        "/metrics/../v1/status",
        Some("Bearer t1"),
        403,
        "may not get",
    ),
    (
        "POST",
        "/metrics",
        Some("Bearer t2"),
        403,
        "admin may not post /metrics",
    ),
    (
        "GET",
        "/metrics",
        Some("Bearer t1"),
        200,
        "tripod_build_info",
    ),
    (
        "GET",
        "/metrics",
        Some("bearer t2"),
        200,
        "tripod_build_info",
    ),
    ("GET", "/proxyMode", Some("Bearer t2"), 200, "userspace"),
    (
        "GET",
        "/v1/status",
        Some("Bearer t2"),
        200,
        "tripod.proxy/v1",
    ),
    (
        "GET",
        "/v1/services?continue=a/b/c/TCP/IPv4",
        Some("Bearer t2"),
        200,
        "ServicePortList",
    ),
    ("GET", "/none", Some("Bearer t2"), 404, "not found"),
    ("GET", "/", Some("Bearer t2"), 200, "<!doctype html>"),
    ("GET", "/", Some("Bearer t1"), 403, "scraper may not get /"),
    ("GET", "/", None, 401, "bearer token"),
    ("GET", "/healthz", None, 200, "ok"),
    ("GET", "/healthz/ping", Some("Bearer t4"), 200, "ok"),
];

#[test]
fn each_gets_what_the_api_server_lets_it() {
    in_sandbox(async || {
        let tcp = cluster("secure").await;
        let tripod = start(&tcp, &[]);
        let anyone = tls::trusting_anyone();
        let healthz = async || ask(&anyone, "GET", "/healthz", None).await;
        until("it serves", healthz, |got| got.status == 200).await;
        for (method, path, authorization, status, words) in ANSWERS {
            let got = ask(&anyone, method, path, authorization).await;
            let got = got.expect("an answer");
            assert_eq!(
                got.status, status,
                "{method} {path} {authorization:?}: {got:?}"
            );
            assert!(got.body.contains(words), "{method} {path}: {got:?}");
            let challenged = got.head.to_lowercase().contains("www-authenticate");
            assert_eq!(challenged, status == 401, "{got:?}");
            if status >= 400 && status != 404 {
                assert!(!got.body.contains("front"), "{got:?}");
            }
        }
        // Each answer of the API server is also used for later requests.
        let (tokens, access) = {
            let script = tcp.server.script();
            (script.reviews.tokens, script.reviews.access.len())
        };
        assert_eq!(tokens, 4);
        for _ in 0..5 {
            let got = get(&anyone, "/metrics", "t1").await.expect("an answer");
            assert_eq!(got.status, 200);
        }
        {
            let script = tcp.server.script();
            assert_eq!(script.reviews.tokens, tokens);
            assert_eq!(script.reviews.access.len(), access);
        }
        plain_http_is_refused().await;
        assert_eq!(tripod.logged(&["ERROR"]), 0);
    });
}

/// A client that does not speak TLS gets a TLS alert (RFC 8446, section 6) or nothing.
async fn plain_http_is_refused() {
    let mut stream = TcpStream::connect(ADDRESS).await.expect("a connection");
    let request = b"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer t1\r\n\r\n";
    let _ = stream.write_all(request).await;
    let mut answer = Vec::new();
    let ended = timeout(SOON, stream.read_to_end(&mut answer)).await;
    ended.expect("the connection ends").ok();
    let alert = 21;
    assert!(
        matches!(answer.first(), None | Some(&21)),
        "{alert} is not in {answer:?}"
    );
    assert!(answer.len() < 16, "{answer:?}");
}

#[test]
fn without_the_api_server_only_those_whom_it_let_may_read() {
    in_sandbox(async || {
        let tcp = cluster("secure-outage").await;
        let tripod = start(&tcp, &[]);
        let anyone = tls::trusting_anyone();
        let known = async || get(&anyone, "/metrics", "t1").await;
        until("it serves", known, |got| got.status == 200).await;
        tcp.server.down();
        for (token, path) in [("t2", "/metrics"), ("t4", "/metrics"), ("t1", "/v1/status")] {
            let got = get(&anyone, path, token).await.expect("an answer");
            assert_eq!(got.status, 503, "{token} {path}: {got:?}");
            assert!(
                got.body.contains("the API server did not answer a"),
                "{got:?}"
            );
        }
        let got = get(&anyone, "/metrics", "t1").await.expect("an answer");
        assert_eq!(got.status, 200, "{got:?}");
        let got = ask(&anyone, "GET", "/healthz", None)
            .await
            .expect("an answer");
        assert_eq!(got.status, 200, "{got:?}");
        tripod.logs_once(&["WARN", "access to the secure metrics address is denied"]);
        tcp.server.up();
        let again = async || get(&anyone, "/metrics", "t2").await;
        until("it is asked again", again, |got| got.status == 200).await;
        tripod.logs_once(&["INFO", "answers again who has access"]);
    });
}

#[test]
fn certificates_are_read_again_when_their_files_change() {
    in_sandbox(async || {
        let tcp = cluster("secure-files").await;
        let old = Authority::new();
        let write = |authority: &Authority, certificate: bool, key: bool| {
            let identity = authority.identity(HOST);
            if certificate {
                tcp.write("tls.crt", &identity.certificate);
            }
            if key {
                tcp.write("tls.key", &identity.key);
            }
        };
        let flag = |name: &str, file: &Path| format!("--{name}={}", file.display());
        let certificate = flag("tls-cert-file", &tcp.file("tls.crt"));
        let key = flag("tls-private-key-file", &tcp.file("tls.key"));
        // They may be missing at the start.
        let tripod = start(&tcp, &[&certificate, &key]);
        tripod.logs_once(&["ERROR", "tls.crt", "not served"]);
        write(&old, true, true);
        let trusting = old.connector();
        let with_old = async || get(&trusting, "/metrics", "t1").await;
        until("it serves", with_old, |got| got.status == 200).await;

        // The certificate is written before its key: they do not match.
        let new = Authority::new();
        let identity = new.identity(HOST);
        tcp.write("tls.crt", &identity.certificate);
        assert_eq!(with_old().await.expect("the old one").status, 200);
        tripod.logs_once(&["WARN", "tls.crt", "stays in use"]);
        tcp.write("tls.key", "-----BEGIN half a key");
        assert_eq!(with_old().await.expect("the old one").status, 200);
        tcp.write("tls.key", &identity.key);
        let trusting = new.connector();
        let with_new = async || get(&trusting, "/metrics", "t1").await;
        until("the new one is used", with_new, |got| got.status == 200).await;
        with_old().await.expect_err("the old one is gone");
    });
}

#[test]
fn it_takes_an_api_server_and_both_files() {
    let run = |flags: &[&str]| {
        let mut command = std::process::Command::new(crate::lab::tripod_binary());
        let output = command.args(flags).output().expect("running tripod");
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let secure = "--metrics-secure-bind-address=127.0.0.1:1";
    let text = run(&[secure, "--manifests=/nowhere"]);
    assert!(text.contains("needs an API server"), "{text}");
    let text = run(&[secure, "--tls-cert-file=/nowhere"]);
    assert!(text.contains("also needs --tls-private-key-file"), "{text}");
    let text = run(&["--metrics-secure-bind-address=127.0.0.1"]);
    assert!(text.contains("IP address, with a port"), "{text}");
}
