//! Connections that a process in userspace mode carries which captured by routes, beside a
//! mode whose rules would lead their next packet elsewhere.

use std::{collections::HashSet, net::SocketAddr};

use tokio::task::spawn_blocking;

use super::stale_state::Running;
use crate::{modes::userspace, net::Protocol, services::ServiceMap};

/// Has them go on; to be called before the mode that is about to run syncs for the first
/// time.
pub(super) async fn prepare(map: &ServiceMap, running: &Running) {
    let families = running.without_local_capture();
    if families.is_empty() {
        return;
    }
    // Not all that is called is captured: the node has the addresses of node ports anyway.
    let (mut called, mut node_ports) = (HashSet::new(), HashSet::new());
    for port in map
        .iter()
        .filter(|port| port.name.protocol == Protocol::Tcp)
    {
        called.extend(port.addresses().map(|ip| SocketAddr::new(ip, port.port)));
        node_ports.extend(port.node_port);
    }
    let is_called = move |at: SocketAddr| called.contains(&at) || node_ports.contains(&at.port());
    // There may be many thousands.
    let prepared = spawn_blocking(move || userspace::prepare_successor(&families, &is_called));
    // It fails only while the runtime is shutting down.
    let Ok(prepared) = prepared.await else {
        return;
    };
    for (family, prepared) in prepared {
        match prepared {
            Ok(None) => {}
            Ok(Some(prepared)) if prepared.left_out > 0 => tracing::warn!(
                "{family}: {} open connections of the process before this one are reset by the \
                 next packet, as they are too many",
                prepared.left_out
            ),
            Ok(Some(prepared)) => tracing::info!(
                connections = prepared.added,
                "{family}: open connections of userspace mode go on until that process ends"
            ),
            Err(error) => tracing::warn!(
                "{family}: open connections of userspace mode with local capture end now, \
                 because we {error}; to have them go on takes nf_tables, ctnetlink and tcp_diag \
                 in the kernel"
            ),
        }
    }
}
