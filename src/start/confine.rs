//! How far the process confines itself for what it was asked to do.

use std::path::Path;

use super::succession;
use crate::{
    api_client::credential_files,
    cli::{Job, Settings},
    confine::{self, Files, Task},
    net::ModeName,
};

/// The lock of the legacy iptables (`iptables(8)`).
const XTABLES_LOCK: &str = "/run/xtables.lock";

/// Confines the process at its start, while it has one thread, as far as that is known
/// then.
pub fn confine(settings: &Settings) {
    let task = match settings.job {
        Job::Serve => Task::Start,
        Job::Hold(_) => Task::Hold,
        _ => return,
    };
    to(settings, task);
}

/// Confines the process to what serves in `mode`. Threads that are there already keep what
/// they have: those that found out what the kernel can do have ended, and none of those
/// that stay may have been made.
pub(super) fn to_serve(settings: &Settings, mode: ModeName) {
    let task = match mode {
        ModeName::Userspace => Task::Relay,
        ModeName::Ipvs | ModeName::Nftables | ModeName::Iptables => Task::Serve,
    };
    to(settings, task);
}

fn to(settings: &Settings, task: Task) {
    confine::confine(settings.own.confinement, task, &files(settings));
}

fn files(settings: &Settings) -> Files<'_> {
    let own = &settings.own;
    let kubeconfig = settings.effective.kubeconfig.as_deref();
    let read = [
        own.manifests.as_deref(),
        kubeconfig,
        settings.file.as_ref().map(|file| file.path.as_path()),
        own.tls_cert_file.as_deref(),
        own.tls_private_key_file.as_deref(),
    ];
    let read = read.into_iter().flatten().map(Path::to_owned);
    let held = match &settings.job {
        Job::Hold(path) => Some(path.as_path()),
        _ => own.holder_socket.as_deref(),
    };
    let serves = matches!(settings.job, Job::Serve);
    let successors = serves.then_some(Path::new(succession::FIRST));
    let sockets = [own.status_socket.as_deref(), held, successors];
    Files {
        read: read.chain(credential_files(kubeconfig)).collect(),
        written: vec![Path::new(XTABLES_LOCK)],
        sockets: sockets.into_iter().flatten().collect(),
    }
}
