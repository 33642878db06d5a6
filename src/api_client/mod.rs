//! The connection to the API server: credentials, TLS, proxies, HTTP/2, and the rate of
//! requests.

mod access;
mod budget;
mod causes;
mod connect;
mod counted;
mod credentials;
mod exec;
mod forward;
mod metrics;
mod proxy;
mod transports;
mod validity;

pub(crate) use self::counted::Streamed;
pub use self::{
    access::{Access, AccessError, Connection},
    causes::causes,
    credentials::{files as credential_files, names_program},
    exec::PluginError,
    metrics::RequestMetrics,
    proxy::ProxyError,
};
