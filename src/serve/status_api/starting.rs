//! The API from the start of the process on.

use std::sync::{Arc, OnceLock};

use hyper::StatusCode;
use net::PerFamily;

use super::{StatusApi, json, refused, status};
use crate::{
    runner::health::Health,
    serve::http::{Answer, Answers, Asked},
    status_api::HEALTH_PATH,
};

/// The API of a process that may still be finding out what its kernel can do, which may take long.
/// Meanwhile it answers probes of the pod; otherwise the kubelet would restart it again and again.
#[derive(Debug)]
pub struct StartingApi {
    health: Arc<Health>,
    api: OnceLock<Arc<StatusApi>>,
}

impl StartingApi {
    /// Returns the API of a process about which only its health is known.
    pub fn new(health: Arc<Health>) -> StartingApi {
        StartingApi {
            health,
            api: OnceLock::new(),
        }
    }

    /// Lets `api` answer from now on.
    pub fn is_known(&self, api: Arc<StatusApi>) {
        // It is set only once.
        let _ = self.api.set(api);
    }
}

impl Answers for StartingApi {
    async fn answer(&self, asked: Asked<'_>) -> Answer {
        match self.api.get() {
            Some(api) => api.answer(asked).await,
            None if asked.path == HEALTH_PATH => {
                json(&status::health(&PerFamily::default(), &self.health))
            }
            None => {
                let why = "this process is starting and has not examined the kernel yet; its log \
                           says what it waits for";
                refused(StatusCode::SERVICE_UNAVAILABLE, why)
            }
        }
    }
}
