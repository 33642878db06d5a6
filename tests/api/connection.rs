//! How the server is reached, over TCP: protocols, compression, proxies.

use std::time::Duration;

use serde_json::json;
use tripod::{
    api_client::{Access, Connection},
    watch::api::Settings,
};

use super::{
    lists::shop,
    middleman::Middleman,
    objects::{service, slice},
    recorder::{NODE, Recorder},
    server::Server,
    site::Site,
    tls::Authority,
};

const SOON: Duration = Duration::from_secs(20);
/// The server's name, which only a proxy can resolve.
const NAME: &str = "api.shop.invalid";

fn connection(site: &Site) -> Connection {
    Connection {
        kubeconfig: Some(site.file("kubeconfig")),
        qps: 1000.0,
        ..Connection::default()
    }
}

async fn recorder(site: &Site) -> Recorder {
    let settings = Settings {
        first_pause: Duration::from_millis(20),
        longest_pause: Duration::from_millis(100),
        ..Settings::for_node(NODE)
    };
    let access = Access::open(connection(site)).await.unwrap();
    Recorder::with(access, settings)
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
    let site = Site::open(shop(), "http2", &authority, false).await;
    let mut recorder = recorder(&site).await;
    assert_eq!(recorder.next(SOON).await, Some(5));
    until("one connection is left", || site.server.script().open == 1).await;
    let protocols = site.server.script().protocols.clone();
    assert!(protocols.iter().all(|name| name == "h2"), "{protocols:?}");
    // Each kind still hears of its own, also when watches begin anew.
    for last in 3..6 {
        site.server.end_watches();
        site.server.change(|cluster| {
            cluster.put(service(&format!("new-{last}"), last));
            cluster.put(slice("back-x", "back", &[3, last]));
        });
        recorder.catches_up(&site.server, SOON).await;
    }
    assert_eq!(site.server.script().open, 1);
}

#[tokio::test]
async fn a_server_without_http2_is_spoken_to_as_it_can() {
    let authority = Authority::new();
    let site = Site::open(shop(), "http1", &authority, false).await;
    for protocols in [&[b"http/1.1" as &[u8]] as &[_], &[]] {
        site.speak(&authority, protocols);
        let mut recorder = recorder(&site).await;
        assert_eq!(recorder.next(SOON).await, Some(5));
    }
    let spoken = site.server.script().protocols.clone();
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
        let site = Site::open(server, "compressed", &authority, false).await;
        site.speak(&authority, &[protocol]);
        let mut recorder = recorder(&site).await;
        assert_eq!(recorder.next(SOON).await, Some(605));
        recorder.catches_up(&site.server, Duration::ZERO).await;
        // The first page of 500 slices; the second one is small.
        assert_eq!(site.server.script().compressed, 1);
    }
}

/// A server, and a proxy that knows where it is.
async fn behind(name: &str, scheme: &str, proxy: &str) -> (Site, Middleman) {
    let authority = Authority::new();
    let site = Site::open(shop(), name, &authority, false).await;
    let middleman = Middleman::open("127.0.0.1", site.address, site.server.clone()).await;
    let proxy = proxy.replace("PROXY", &middleman.address.to_string());
    site.configure(
        &format!(
            "server: \"{scheme}://{NAME}:6443\", certificate-authority: ca.crt, \
             tls-server-name: 127.0.0.1, proxy-url: \"{proxy}\""
        ),
        "tokenFile: token",
    );
    (site, middleman)
}

#[tokio::test]
async fn a_proxy_is_asked_for_a_tunnel() {
    let (site, proxy) = behind("tunnel", "https", "http://user:pa%3ass@PROXY").await;
    let mut recorder = recorder(&site).await;
    assert_eq!(recorder.next(SOON).await, Some(5));
    let asked = proxy.asked();
    let expected = format!("CONNECT {NAME}:6443 HTTP/1.1\r\n");
    // base64 of `user:pa:ss`
    let authorization = "proxy-authorization: basic dxnlcjpwytpzcw==";
    for head in &asked {
        assert!(head.starts_with(&expected), "{asked:?}");
        assert!(head.to_lowercase().contains(authorization), "{asked:?}");
    }
    assert!(site.server.script().protocols.contains(&"h2".to_owned()));
}

#[tokio::test]
async fn a_proxy_passes_plain_requests_on() {
    let (site, proxy) = behind("plain", "http", "PROXY").await;
    let mut recorder = recorder(&site).await;
    assert_eq!(recorder.next(SOON).await, Some(5));
    let asked = proxy.asked();
    let expected = format!("GET http://{NAME}:6443/api");
    assert!(
        asked.iter().all(|head| head.starts_with(&expected)),
        "{asked:?}"
    );
}

#[tokio::test]
async fn a_socks_proxy_resolves_the_name() {
    let (site, proxy) = behind("socks", "https", "socks5://PROXY").await;
    let mut recorder = recorder(&site).await;
    assert_eq!(recorder.next(SOON).await, Some(5));
    assert!(proxy.asked().iter().all(|name| name == NAME));
}

#[tokio::test]
async fn a_proxy_that_cannot_be_used_is_named() {
    let (site, _proxy) = behind("ftp", "https", "ftp://PROXY").await;
    let error = match Access::open(connection(&site)).await {
        Ok(_) => panic!("it can be used"),
        Err(error) => error.to_string(),
    };
    for word in ["proxy-url", "\"ftp\"", "socks5"] {
        assert!(error.contains(word), "{error}");
    }
}

/// An object that is larger than a stream may have under way does not keep the
/// others from coming.
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
    let site = Site::open(server, "large", &authority, false).await;
    let mut recorder = recorder(&site).await;
    assert_eq!(recorder.next(SOON).await, Some(2));
    recorder.catches_up(&site.server, SOON).await;
}
