//! The connection to the server: TCP, a proxy if need be, TLS, HTTP, credentials.

use std::{env, time::Duration};

use http::{HeaderName, HeaderValue, Uri, header::PROXY_AUTHORIZATION, uri::Scheme};
use hyper::rt::{Read, Write};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{
        Client as HttpClient,
        connect::{
            Connection, HttpConnector,
            proxy::{SocksV5, Tunnel},
        },
    },
    rt::{TokioExecutor, TokioTimer},
};
use kube::{
    Client, Config,
    client::{Body, ConfigExt},
};
use tower::{BoxError, Service, ServiceBuilder, ServiceExt};
use tower_http::decompression::DecompressionLayer;

use super::{
    counted::Counted,
    forward::Forwarded,
    metrics::RequestMetrics,
    proxy::{Proxy, ProxyKind},
};

/// How long a TCP connection may take to open; the TLS handshake counts in the time limit
/// of the request. A server that is back after an outage gets the next SYN packet within 3 s:
/// packets are sent again after 1 s and 3 s, and the pause between two tries is at most 2 s.
const CONNECT: Duration = Duration::from_secs(4);

/// A server that vanished silently (a node that lost its power, a firewall that forgot
/// the flow) is noticed after `PROBE_AFTER` plus `PROBES` times `PROBE_EVERY`: watches
/// may be silent for long, so nothing else would show it.
const PROBE_AFTER: Duration = Duration::from_secs(15);
const PROBE_EVERY: Duration = Duration::from_secs(5);
const PROBES: u32 = 3;

/// All watches share one HTTP/2 connection. Flow-control windows of one stream and of the
/// connection, in bytes: large enough that streams which are not read for a while cannot
/// stop the others, even if all of ours stand still.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 16 * STREAM_WINDOW;

/// Whether HTTP/2 is used if the server offers it, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Http2 {
    enabled: bool,
    /// After this time without a frame the server is sent a ping. TCP keep-alive does not
    /// show a dead server if something on the path answers in its place ...
    idle: Duration,
    /// ... and the server has this long to answer.
    patience: Duration,
}

impl Http2 {
    /// Returns client-go's settings, whose environment variables apply here as well
    /// (`configureHTTP2Transport` in `k8s.io/apimachinery/pkg/util/net/http.go`).
    pub(super) fn of_this_process() -> Http2 {
        let seconds = |name: &str, usual: u64| {
            let given = env::var(name).ok().and_then(|text| text.parse().ok());
            Duration::from_secs(given.unwrap_or(usual))
        };
        Http2 {
            enabled: env::var_os("DISABLE_HTTP2").is_none_or(|value| value.is_empty()),
            idle: seconds("HTTP2_READ_IDLE_TIMEOUT_SECONDS", 30),
            patience: seconds("HTTP2_PING_TIMEOUT_SECONDS", 15),
        }
    }
}

/// The settings common to all connections to the server.
pub(super) struct Settings {
    /// The server and our credentials.
    pub(super) config: Config,
    /// Whether HTTP/2 is used, and how.
    pub(super) http2: Http2,
    /// Counts the requests.
    pub(super) metrics: RequestMetrics,
}

/// Returns a client for these settings, through `proxy` if there is one.
///
/// It is not made by `Client::try_from`, which lacks: HTTP/2, TCP keep-alive, no retries
/// of its own (they would hide `Retry-After` and last for minutes), and no error line in
/// the log for each attempt during an outage.
///
/// # Errors
/// When credentials or certificates cannot be used.
pub(super) fn client(mut settings: Settings, proxy: Option<Proxy>) -> Result<Client, BoxError> {
    settings.config.headers.push((
        HeaderName::from_static("user-agent"),
        HeaderValue::from_static(concat!("tripod/", env!("CARGO_PKG_VERSION"))),
    ));
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT));
    tcp.set_keepalive(Some(PROBE_AFTER));
    tcp.set_keepalive_interval(Some(PROBE_EVERY));
    tcp.set_keepalive_retries(Some(PROBES));
    tcp.set_tcp_user_timeout(Some(PROBE_AFTER + PROBE_EVERY * PROBES));
    let Some(proxy) = proxy else {
        return over(tcp, settings);
    };
    match proxy.kind {
        ProxyKind::Http => through(tcp, &proxy, settings),
        ProxyKind::Https => {
            // The server's CA and our certificate for it do not apply to the proxy.
            let tls = Config::new(proxy.url.clone()).rustls_client_config()?;
            let tls = HttpsConnectorBuilder::new().with_tls_config(tls);
            let tls = tls.https_only().enable_http1().wrap_connector(tcp);
            through(tls, &proxy, settings)
        }
        ProxyKind::Socks5 => {
            let socks = SocksV5::new(proxy.url, tcp);
            match proxy.user {
                Some((name, password)) => over(socks.with_auth(name, password), settings),
                None => over(socks, settings),
            }
        }
    }
}

/// Returns a client through an HTTP proxy, to which `connector` connects.
fn through<C>(connector: C, proxy: &Proxy, mut settings: Settings) -> Result<Client, BoxError>
where
    C: Service<Uri> + Clone + Send + Sync + 'static,
    C::Response: Connection + Read + Write + Send + Unpin + 'static,
    C::Future: Send + 'static,
    C::Error: Into<BoxError>,
{
    let authorization = proxy.authorization();
    let url = proxy.url.clone();
    let config = &mut settings.config;
    if config.cluster_url.scheme() != Some(&Scheme::HTTPS) {
        let header = authorization.map(|value| (PROXY_AUTHORIZATION, value));
        config.headers.extend(header);
        let to_proxy = connector.map_request(move |_: Uri| url.clone());
        return over(to_proxy.map_response(Forwarded), settings);
    }
    let tunnel = Tunnel::new(url, connector);
    match authorization {
        Some(value) => over(tunnel.with_auth(value), settings),
        None => over(tunnel, settings),
    }
}

/// Returns a client over the connections that `connector` makes.
fn over<C>(connector: C, settings: Settings) -> Result<Client, BoxError>
where
    C: Service<Uri> + Clone + Send + Sync + 'static,
    C::Response: Connection + Read + Write + Send + Unpin + 'static,
    C::Future: Send + 'static,
    C::Error: Into<BoxError>,
{
    let Settings {
        config,
        http2,
        metrics,
    } = settings;
    let compression = DecompressionLayer::new().gzip(!config.disable_compression);
    let http = HttpClient::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .http2_initial_stream_window_size(STREAM_WINDOW)
        .http2_initial_connection_window_size(CONNECTION_WINDOW)
        // Pings may be turned off by 0, as in Go.
        .http2_keep_alive_interval(Some(http2.idle).filter(|idle| !idle.is_zero()))
        .http2_keep_alive_timeout(http2.patience)
        .build::<_, Body>(secured(connector, &config, http2)?);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .layer_fn(|inner| Counted::new(inner, metrics.clone()))
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .layer(compression)
        .map_err(BoxError::from)
        .service(http);
    Ok(Client::new(service, config.default_namespace))
}

/// Returns a connector with TLS where the URL requests it, and with HTTP/2 where both
/// sides speak it (ALPN, RFC 7301).
fn secured<C>(connector: C, config: &Config, http2: Http2) -> Result<HttpsConnector<C>, BoxError> {
    let tls = HttpsConnectorBuilder::new().with_tls_config(config.rustls_client_config()?);
    let mut tls = tls.https_or_http();
    if let Some(name) = config.tls_server_name.clone() {
        tls = tls.with_server_name_resolver(FixedServerNameResolver::new(name.try_into()?));
    }
    let tls = tls.enable_http1();
    Ok(if http2.enabled {
        tls.enable_http2().wrap_connector(connector)
    } else {
        tls.wrap_connector(connector)
    })
}
