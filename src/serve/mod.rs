//! HTTP servers for information about Tripod: probes, metrics, pages for people, and the
//! health-check ports of Services.

mod bind;
mod certificate;
mod connections;
pub mod endpoint_metrics;
#[cfg(any(test, fuzzing))]
mod fuzz;
mod healthz;
mod http;
mod introspection;
mod listeners;
mod openmetrics;
mod page;
mod process;
mod protobuf;
mod secure;
pub mod service_health;
pub mod state_metrics;
mod status_api;
mod tcp;
mod unix;
mod zpages;

#[cfg(test)]
mod exposition;
#[cfg(test)]
mod tests;

use std::{path::PathBuf, sync::Arc};

use prometheus::Registry;

#[cfg(any(test, fuzzing))]
pub use self::fuzz::read_anything;
pub use self::{
    bind::{Bind, BindError},
    certificate::{CertificateError, Identity},
    introspection::{Gate, Introspection, Running},
    listeners::{Listeners, Successor},
    secure::{Secure, serve as secure_metrics},
    status_api::{About, DialsAsked, PortTraffic, StartingApi, StatusApi, TrafficSource},
};
use self::{
    connections::Connections,
    healthz::Probes,
    http::{Answers, Methods},
};
use crate::runner::health::Health;

/// Registers the metrics of probes with `registry`. Returns the task to run: it serves `/healthz`
/// and `/livez` at `at`, and ends only if the address cannot be bound and `hard_fail` is set.
///
/// # Errors
/// When `registry` has metrics of these names already.
pub fn health(
    at: Bind,
    health: Arc<Health>,
    registry: &Registry,
) -> Result<impl Future<Output = Result<(), Error>> + use<>, Error> {
    let probes = Probes::register(health, registry)?;
    Ok(async move { serve(at, "/healthz", Methods::Any, Arc::new(probes)).await })
}

/// Serves metrics and pages for people at `at`. Ends only if the address cannot be bound and
/// `hard_fail` is set.
///
/// # Errors
/// Says why it cannot be bound.
pub async fn metrics(at: Bind, about: Arc<Introspection>) -> Result<(), Error> {
    serve(at, "/metrics", Methods::Read, about).await
}

/// Serves `what` at `at`, and binds it again when another program has closed the listener.
async fn serve(
    mut at: Bind,
    what: &'static str,
    methods: Methods,
    answers: Arc<impl Answers>,
) -> Result<(), Error> {
    let open = Arc::new(Connections::default());
    loop {
        let listener = at.listen(what).await?;
        http::serve(listener, Arc::clone(&open), methods, Arc::clone(&answers)).await;
        // The first attempt has shown whether it can be bound at all.
        at.hard_fail = false;
    }
}

/// Serves the API of the running proxy on the unix socket `path`, which only the user of this
/// process may use; never ends. If the socket cannot be opened, that is retried.
pub async fn status(path: PathBuf, api: Arc<StartingApi>) {
    let open = Arc::new(Connections::default());
    loop {
        let listener = unix::listen(path.clone()).await;
        http::serve(listener, Arc::clone(&open), Methods::Read, Arc::clone(&api)).await;
    }
}

/// Why a server cannot run at all.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Its address cannot be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// Its certificate cannot be used.
    #[error("the secure metrics address: {0}")]
    Certificate(#[from] CertificateError),
    /// Its thread cannot run.
    #[error("the thread of the secure metrics address: {0}")]
    Thread(#[source] std::io::Error),
    /// Its metrics cannot be registered.
    #[error("metrics: {0}")]
    Metrics(#[from] prometheus::Error),
}
