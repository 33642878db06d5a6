//! What Tripod serves about itself over HTTP: probes, metrics, pages for
//! people, and the health-check ports of Services.

mod bind;
mod connections;
mod healthz;
mod http;
mod introspection;
mod process;
pub mod service_health;
mod status_api;
mod unix;
mod zpages;

#[cfg(test)]
mod exposition;
#[cfg(test)]
mod tests;

use std::{path::PathBuf, sync::Arc};

use prometheus::Registry;

pub use self::{
    bind::{Bind, BindError},
    introspection::{Introspection, Running},
    status_api::{About, PortTraffic, StatusApi, TrafficSource},
};
use self::{connections::Connections, healthz::Probes};
use crate::runner::health::Health;

/// Registers the metrics of probes with `registry`. Returns the task to run: it
/// serves `/healthz` and `/livez` at `at`, and ends only when the address
/// cannot be bound and that is to be final.
///
/// # Errors
/// When `registry` has metrics of these names already.
pub fn health(
    at: Bind,
    health: Arc<Health>,
    registry: &Registry,
) -> Result<impl Future<Output = Result<(), Error>> + use<>, Error> {
    let probes = Probes::register(health, registry)?;
    Ok(async move {
        let listener = at.listen("/healthz").await?;
        let open = Arc::new(Connections::default());
        http::serve(listener, open, move |asked| probes.answer(asked)).await;
        Ok(())
    })
}

/// Registers the metrics that describe this process. Returns the task to run:
/// it serves metrics and pages for people at `at`, and ends only when the
/// address cannot be bound and that is to be final.
///
/// # Errors
/// When the registry has metrics of these names already.
pub fn metrics(
    at: Bind,
    about: Introspection,
) -> Result<impl Future<Output = Result<(), Error>> + use<>, Error> {
    about.register()?;
    Ok(async move {
        let about = Arc::new(about);
        let listener = at.listen("/metrics").await?;
        let open = Arc::new(Connections::default());
        http::serve(listener, open, move |asked| about.answer(asked)).await;
        Ok(())
    })
}

/// Serves the API of the running proxy on the unix socket `path`, which only the
/// user of this process may use; does not end. A socket that cannot be opened is tried
/// again.
pub async fn status(path: PathBuf, api: Arc<StatusApi>) {
    let listener = unix::listen(path).await;
    let open = Arc::new(Connections::default());
    http::serve(listener, open, move |asked| api.answer(asked)).await;
}

/// Why something cannot be served at all.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Its address cannot be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// Its metrics cannot be registered.
    #[error("metrics: {0}")]
    Metrics(#[from] prometheus::Error),
}
