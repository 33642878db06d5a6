//! What Tripod serves about itself over HTTP.

mod http;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use prometheus::{Encoder, Registry, TextEncoder};

use self::http::Answer;
use crate::{modes::ModeName, runner::Health};

/// Pause before an address that could not be bound is tried again, as
/// kube-proxy does unless `--bind-address-hard-fail` is set.
const BIND_AGAIN: Duration = Duration::from_secs(5);

/// Serves `/healthz` and `/livez` on `address`, for ever.
pub async fn health(address: SocketAddr, health: Arc<Health>) {
    serve("healthz", address, move |path| match path {
        "/healthz" | "/livez" if health.is_synced() => Answer::text("ok"),
        "/healthz" | "/livez" => Answer::unavailable("the last sync did not succeed"),
        _ => Answer::not_found(),
    })
    .await
}

/// Serves `/metrics` and `/proxyMode` on `address`, for ever.
pub async fn metrics(address: SocketAddr, registry: Registry, mode: ModeName) {
    serve("metrics", address, move |path| match path {
        "/metrics" => {
            let mut text = Vec::new();
            match TextEncoder::new().encode(&registry.gather(), &mut text) {
                Ok(()) => Answer::metrics(text),
                Err(e) => Answer::unavailable(&e.to_string()),
            }
        }
        "/proxyMode" => Answer::text(&mode.to_string()),
        _ => Answer::not_found(),
    })
    .await
}

async fn serve(
    what: &'static str,
    address: SocketAddr,
    answer: impl Fn(&str) -> Answer + Clone + Send + Sync + 'static,
) {
    loop {
        if let Err(e) = http::serve(address, answer.clone()).await {
            tracing::error!(
                "cannot serve {what} on {address}, trying again every {} s: {e}",
                BIND_AGAIN.as_secs()
            );
        }
        tokio::time::sleep(BIND_AGAIN).await;
    }
}
