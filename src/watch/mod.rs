//! The sources of objects: the API server, or a folder of manifests. Both produce the same events.

use std::{fmt, path::PathBuf, sync::Arc};

use tokio::sync::mpsc::Sender;

use crate::{
    api_client::{Access, AccessError, Connection, RequestMetrics},
    services::Batch,
};

pub mod api;
mod health;
mod kind;
pub mod manifests;

pub use health::{KindHealth, SourceHealth};

/// Source of the objects: the API server or a folder of manifests.
#[derive(Clone)]
pub enum Source {
    /// A folder of manifests.
    Folder(PathBuf),
    /// The API server.
    Cluster(Access),
}

impl Source {
    /// Returns the folder if one is given, else the API server, requests to which
    /// will count in `metrics`.
    ///
    /// # Errors
    /// When there is no folder, and no connection to an API server can be
    /// configured.
    pub async fn open(
        folder: Option<PathBuf>,
        cluster: Connection,
        metrics: RequestMetrics,
    ) -> Result<Source, AccessError> {
        match folder {
            Some(folder) => Ok(Source::Folder(folder)),
            None => Ok(Source::Cluster(Access::open(cluster, metrics).await?)),
        }
    }

    /// Follows the objects that a proxy needs, and sends them to `batches`: the first batch is the
    /// complete state, each later one contains changes. `settings` select the objects to request
    /// from the API server; in a folder all are read anyway.
    pub fn follow(&self, settings: api::Settings, batches: Sender<Batch>) {
        match self {
            Source::Folder(folder) => {
                manifests::spawn(folder, Arc::clone(&settings.health), batches);
            }
            Source::Cluster(access) => api::spawn(access.clone(), settings, batches),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Folder(folder) => write!(f, "manifests in {}", folder.display()),
            Source::Cluster(_) => f.write_str("the API server"),
        }
    }
}
