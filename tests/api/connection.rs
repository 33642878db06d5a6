//! Connections to the server over TCP: protocols, compression, proxies.

use std::time::Duration;

use prometheus::{Registry, TextEncoder};
use serde_json::json;
use tripod::api_client::{Access, RequestMetrics};

use super::{
    forward_proxy::ForwardProxy,
    lists::shop,
    objects::{service, slice},
    recorder::Recorder,
    server::Server,
    tcp_server::TcpServer,
    tls::Authority,
};

const SOON: Duration = Duration::from_secs(20);
/// The server's name, which only a proxy can resolve.
const NAME: &str = "api.shop.invalid";

async fn recorder(tcp: &TcpServer) -> Recorder {
    Recorder::connect(tcp.connection()).await
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + SOON;
    while !holds() {
        assert!(
            tokio::time::Instant::now() < deadline,
            "not in time: {what}"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn all_kinds_share_one_connection_where_the_server_speaks_http2() {
    let authority = Authority::new();
    let tcp = TcpServer::open(shop(), "http2", &authority, false).await;
    let mut recorder = recorder(&tcp).await;
    assert_eq!(recorder.next(SOON).await, Some(5));
    until("one connection is left", || tcp.server.script().open == 1).await;
    let protocols = tcp.server.script().protocols.clone();
    assert!(protocols.iter().all(|name| name == "h2"), "{protocols:?}");
    // Each kind still receives its own changes, even when watches start again.
    for last in 3..6 {
        tcp.server.end_watches();
        tcp.server.change(|cluster| {
            cluster.put(service(&format!("new-{last}"), last));
            cluster.put(slice("back-x", "back", &[3, last]));
        });
        recorder.catches_up(&tcp.server, SOON).await;
    }
    assert_eq!(tcp.server.script().open, 1);
}

#[tokio::test]
async fn every_page_of_a_list_counts_in_the_rate_limit() {
    let server = shop();
    server.script().streaming = false;
    server.change(|cluster| {
        for i in 0..1100 {
            cluster.put(slice(&format!("many-{i}"), "front", &[7]));
        }
    });
    let tcp = TcpServer::open(server, "pages", &Authority::new(), false).await;
    let registry = Registry::new();
    let metrics = RequestMetrics::register(&registry).expect("metrics");
    let access = Access::open(tcp.connection(), metrics).await;
    let mut recorder = Recorder::start(access.expect("it can be used"));
    assert_eq!(recorder.next(SOON).await, Some(1105));
    let asked = tcp.server.script().calls.len();
    let text = TextEncoder::new().encode_to_string(&registry.gather());
    let text = text.expect("metrics are text");
    let waited = text.lines().find_map(|line| {
        let rest = line.strip_prefix("rest_client_rate_limiter_duration_seconds_count{")?;
        rest.rsplit_once("} ")?.1.parse::<usize>().ok()
    });
    assert!(
        waited.is_some_and(|turns| turns >= asked),
        "{asked} calls, {waited:?} turns\n{text}"
    );
}

#[tokio::test]
async fn requests_are_counted_by_what_was_answered() {
    let tcp = TcpServer::open(shop(), "counted", &Authority::new(), false).await;
    let registry = Registry::new();
    let metrics = RequestMetrics::register(&registry).expect("metrics");
    let access = Access::open(tcp.connection(), metrics).await;
    let mut recorder = Recorder::start(access.expect("it can be used"));
    assert_eq!(recorder.next(SOON).await, Some(5));
    let text = TextEncoder::new().encode_to_string(&registry.gather());
    let text = text.expect("metrics are text");
    let of_server = format!("code=\"200\",host=\"{}\",method=\"GET\"", tcp.address);
    let counted = text.lines().find_map(|line| {
        let rest = line.strip_prefix("rest_client_requests_total{")?;
        let number = rest.strip_prefix(&of_server)?.strip_prefix("} ")?;
        number.parse::<usize>().ok()
    });
    let asked = tcp.server.script().calls.len();
    assert!(
        counted.is_some_and(|n| (3..=asked).contains(&n)),
        "{asked} calls\n{text}"
    );
    let of_server = format!("host=\"{}\",verb=\"GET\"", tcp.address);
    for metric in ["rate_limiter_duration_seconds", "request_size_bytes"] {
        let count = format!("rest_client_{metric}_count{{{of_server}}} ");
        let counted = text.lines().find_map(|line| line.strip_prefix(&count));
        let counted = counted.and_then(|number| number.parse::<usize>().ok());
        assert!(counted.is_some_and(|n| n >= 3), "{metric}: {text}");
    }
}

#[tokio::test]
async fn a_server_without_http2_is_spoken_to_as_it_can() {
    let authority = Authority::new();
    let tcp = TcpServer::open(shop(), "http1", &authority, false).await;
    for protocols in [&[b"http/1.1" as &[u8]] as &[_], &[]] {
        tcp.speak(&authority, protocols);
        let mut recorder = recorder(&tcp).await;
        assert_eq!(recorder.next(SOON).await, Some(5));
    }
    let spoken = tcp.server.script().protocols.clone();
    assert!(spoken.iter().all(|name| name == "http/1.1"), "{spoken:?}");
}

#[tokio::test]
async fn lists_come_compressed() {
    for protocol in [b"h2" as &[u8], b"http/1.1"] {
        let authority = Authority::new();
        let server = shop();
        server.script().streaming = false;
        server.change(|cluster| {
            for i in 0..600 {
                cluster.put(slice(&format!("many-{i}"), "back", &[3]));
            }
        });
        let tcp = TcpServer::open(server, "compressed", &authority, false).await;
        tcp.speak(&authority, &[protocol]);
        let mut recorder = recorder(&tcp).await;
        assert_eq!(recorder.next(SOON).await, Some(605));
        recorder.catches_up(&tcp.server, Duration::ZERO).await;
        // The first page of 500 slices; the second one is small.
        assert_eq!(tcp.server.script().compressed, 1);
    }
}

/// A server, and a proxy that knows its address.
async fn behind(name: &str, scheme: &str, proxy: &str) -> (TcpServer, ForwardProxy) {
    let authority = Authority::new();
    let tcp = TcpServer::open(shop(), name, &authority, false).await;
    let forward = ForwardProxy::open("127.0.0.1", tcp.address, tcp.server.clone()).await;
    let proxy = proxy.replace("PROXY", &forward.address.to_string());
    tcp.configure(
        &format!(
            "server: \"{scheme}://{NAME}:6443\", certificate-authority: ca.crt, \
             tls-server-name: 127.0.0.1, proxy-url: \"{proxy}\""
        ),
        "tokenFile: token",
    );
    (tcp, forward)
}

#[tokio::test]
async fn a_proxy_is_asked_for_a_tunnel() {
    let (tcp, proxy) = behind("tunnel", "https", "http://user:pa%3ass@PROXY").await;
    let mut recorder = recorder(&tcp).await;
    assert_eq!(recorder.next(SOON).await, Some(5));
    let requests = proxy.requests();
    let expected = format!("CONNECT {NAME}:6443 HTTP/1.1\r\n");
    // base64 of `user:pa:ss`
    let authorization = "proxy-authorization: basic dxnlcjpwytpzcw==";
    for head in &requests {
        assert!(head.starts_with(&expected), "{requests:?}");
        assert!(head.to_lowercase().contains(authorization), "{requests:?}");
    }
    assert!(tcp.server.script().protocols.contains(&"h2".to_owned()));
}

#[tokio::test]
async fn a_proxy_passes_plain_requests_on() {
    let (tcp, proxy) = behind("plain", "http", "PROXY").await;
    let mut recorder = recorder(&tcp).await;
    assert_eq!(recorder.next(SOON).await, Some(5));
    let requests = proxy.requests();
    let expected = format!("GET http://{NAME}:6443/api");
    assert!(
        requests.iter().all(|head| head.starts_with(&expected)),
        "{requests:?}"
    );
    // Otherwise others could read it.
    let authorizes = |head: &String| head.to_lowercase().contains("authorization:");
    assert!(!requests.iter().any(authorizes), "{requests:?}");
}

#[tokio::test]
async fn a_socks_proxy_resolves_the_name() {
    let (tcp, proxy) = behind("socks", "https", "socks5://PROXY").await;
    let mut recorder = recorder(&tcp).await;
    assert_eq!(recorder.next(SOON).await, Some(5));
    assert!(proxy.requests().iter().all(|name| name == NAME));
}

#[tokio::test]
async fn a_proxy_that_cannot_be_used_is_named() {
    let (tcp, _proxy) = behind("ftp", "https", "ftp://PROXY").await;
    let error = match super::open(tcp.connection()).await {
        Ok(_) => panic!("it can be used"),
        Err(error) => error.to_string(),
    };
    for word in ["proxy-url", "\"ftp\"", "socks5"] {
        assert!(error.contains(word), "{error}");
    }
}

/// An object that is larger than the window of a stream does not block the others.
#[tokio::test]
async fn a_large_object_and_small_ones_come_side_by_side() {
    let authority = Authority::new();
    let server = Server::new();
    server.change(|cluster| {
        let mut large = service("large", 1);
        large["metadata"]["annotations"] = json!({"ballast": "x".repeat(8 << 20)});
        cluster.put(large);
        cluster.put(slice("large-x", "large", &[1]));
    });
    let tcp = TcpServer::open(server, "large", &authority, false).await;
    let mut recorder = recorder(&tcp).await;
    assert_eq!(recorder.next(SOON).await, Some(2));
    recorder.catches_up(&tcp.server, SOON).await;
}
