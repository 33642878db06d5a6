//! `tripod render`: what a mode would do, for a folder of manifests.

use std::{io::Write, path::Path};

use super::{Done, probe};
use crate::{
    cli::Settings,
    modes::{render, verdict},
    node::{self, NodePorts},
    services::Tracker,
    watch,
};

pub(super) async fn render(settings: &Settings, folder: &Path) -> Done {
    std::fs::read_dir(folder)
        .map_err(|e| format!("cannot read --manifests {}: {e}", folder.display()))?;
    let mut tracker = Tracker::new(&node::name(&settings.configuration.hostname_override)?);
    let objects = watch::manifests::spawn(folder).recv().await;
    tracker.apply(objects.unwrap_or_default().events);
    let text = text(settings, &mut tracker)?;
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(())
}

/// Returns what the mode of the settings would do for the objects of `tracker`.
///
/// # Errors
/// When no kernel could run that mode with these settings, or it has no such text.
pub(super) fn text(
    settings: &Settings,
    tracker: &mut Tracker,
) -> Result<String, Box<dyn std::error::Error>> {
    let requirements = probe::requirements(settings);
    let kernel = probe::imagine(settings, &requirements);
    let effective = &settings.effective;
    let verdict = verdict::verdict(effective.mode, &kernel, &requirements);
    if !verdict.can_run() {
        return Err(verdict.to_string().into());
    }
    let node_ports = NodePorts::new(&effective.node_ports, effective.node_ip);
    let node = tracker.node().cloned();
    node_ports.update(node.as_deref());
    // The machine that prints this need not be the node that it is for.
    let own = node.iter().flat_map(|node| node.addresses.iter());
    let served = node_ports.served();
    let own = own.filter(|ip| served.contains(ip));
    tracker.set_node_addresses(own.copied().collect());
    let choices = render::Choices {
        configuration: &settings.configuration,
        effective,
        kernel: &kernel,
        dispatch: settings.own.iptables_dispatch,
        served: &served,
        loopback: node_ports.loopback(),
        counted: &settings.own.counted(),
    };
    Ok(render::render(effective.mode, tracker.map(), &choices)?)
}
