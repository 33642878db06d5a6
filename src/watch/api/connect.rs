//! The way to the server: TCP, TLS, who we are.

use std::time::Duration;

use http::{HeaderName, HeaderValue};
use hyper_util::{
    client::legacy::{Client as HttpClient, connect::HttpConnector},
    rt::TokioExecutor,
};
use kube::{
    Client, Config,
    client::{Body, ConfigExt},
};
use tower::ServiceBuilder;

/// How long a TCP connection may take to open; a TLS handshake is under the
/// time limit of the request.
const CONNECT: Duration = Duration::from_secs(10);

/// A server that vanished without a word (a node that lost its power, a
/// firewall that forgot the flow) is noticed after `PROBE_AFTER` plus
/// `PROBES` times `PROBE_EVERY`: watches may be silent for long, so nothing
/// else would tell.
const PROBE_AFTER: Duration = Duration::from_secs(15);
const PROBE_EVERY: Duration = Duration::from_secs(5);
const PROBES: u32 = 3;

/// A client for that configuration.
///
/// It is put together here rather than by `Client::try_from`, for three things
/// that the latter has not: TCP keep-alive, no retries of its own (they would
/// hide `Retry-After` and last for minutes), and no error line in the log for
/// each attempt during an outage.
pub(super) fn client(mut config: Config) -> Result<Client, kube::Error> {
    config.headers.push((
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
    let tls = config.rustls_https_connector_with_connector(tcp)?;
    let http = HttpClient::builder(TokioExecutor::new()).build::<_, Body>(tls);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(tower::BoxError::from)
        .service(http);
    Ok(Client::new(service, config.default_namespace))
}
