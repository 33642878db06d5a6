//! Connections of a process in userspace mode that captured them by routes, while a mode runs whose
//! rules would send their next packet elsewhere.

use tokio::task::spawn_blocking;

use crate::modes::{cleanup::Running, userspace};

/// Keeps these connections working. Must be called before the first sync of the mode that is about
/// to run.
pub(super) async fn prepare(running: Running) {
    // On a blocking thread, as there may be thousands of connections.
    let prepared = spawn_blocking(move || userspace::prepare_successor(&running));
    // Fails only while the runtime is shutting down.
    let Ok(prepared) = prepared.await else {
        return;
    };
    for (family, prepared) in prepared {
        match prepared {
            Ok(None) => {}
            Ok(Some(prepared)) if prepared.left_out > 0 => tracing::warn!(
                "{family}: {} open connections exceed the limit; their next packet may reset them",
                prepared.left_out
            ),
            Ok(Some(prepared)) => tracing::info!(
                connections = prepared.added,
                "{family}: open connections of userspace mode continue until that process ends"
            ),
            Err(error) => tracing::warn!(
                "{family}: open connections of userspace mode with local capture end now, because \
                 Tripod {error}; to preserve them, the kernel needs nf_tables, ctnetlink and \
                 tcp_diag"
            ),
        }
    }
}
