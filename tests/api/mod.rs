//! Objects from an API server, over its wire protocol: a test server with TLS, chunked watches,
//! paging and bookmarks goes through everything that happens to real ones. In most tests Tokio's
//! clock runs ahead, so that minutes take no time.

mod bodies;
pub mod cluster;
mod feed;
mod forward_proxy;
pub mod monitoring;
mod objects;
mod pipe;
mod query;
mod recorder;
mod reviews;
pub mod server;
mod single;
pub mod tcp_server;
pub mod tls;

mod alerts;
mod connection;
mod credentials;
mod crowd;
mod events;
mod lists;
mod metrics;
mod outages;
mod plugin;
mod program;
mod recovery;
mod secure;

use prometheus::Registry;
use tripod::api_client::{Access, AccessError, Connection, RequestMetrics};

/// Access to the server whose requests are not counted.
async fn open(connection: Connection) -> Result<Access, AccessError> {
    let metrics = RequestMetrics::register(&Registry::new()).expect("metrics");
    Access::open(connection, metrics).await
}
