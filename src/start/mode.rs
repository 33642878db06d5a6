//! The mode that runs, whichever it is.

use crate::{
    modes::{Mode, ModeName, SyncError, SyncReport, userspace::Userspace},
    services::{Changes, ServiceMap},
};

/// One of the modes.
pub(super) enum Running {
    Userspace(Box<Userspace>),
}

impl Mode for Running {
    fn name(&self) -> ModeName {
        match self {
            Running::Userspace(mode) => mode.name(),
        }
    }

    async fn sync(&mut self, map: &ServiceMap, changes: &Changes) -> Result<SyncReport, SyncError> {
        match self {
            Running::Userspace(mode) => mode.sync(map, changes).await,
        }
    }

    async fn cleanup(&mut self) -> Result<(), SyncError> {
        match self {
            Running::Userspace(mode) => mode.cleanup().await,
        }
    }
}
