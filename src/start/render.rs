//! `tripod render`: what a mode would do, for a folder of manifests.

use std::{fmt, net::IpAddr, path::Path};

use super::{Done, probe};
use crate::{
    cli::{self, Settings},
    kernel::probe::Kernel,
    modes::{render, verdict},
    net::ModeName,
    node::{self, NodePorts},
    services::Tracker,
    watch,
};

pub(super) async fn render(settings: &Settings, folder: &Path) -> Done {
    let text = text(settings, &mut read(settings, folder).await?)?;
    cli::put(&text)?;
    Ok(())
}

/// Reads the objects of a folder of manifests, for the node of the settings.
///
/// # Errors
/// When the folder cannot be read, or the node has no name; in words.
pub(super) async fn read(settings: &Settings, folder: &Path) -> Result<Tracker, String> {
    std::fs::read_dir(folder)
        .map_err(|e| format!("cannot read --manifests {}: {e}", folder.display()))?;
    let mut tracker = Tracker::new(&node::name(&settings.configuration.hostname_override)?);
    let objects = watch::manifests::spawn(folder).recv().await;
    tracker.apply(objects.unwrap_or_default().events);
    Ok(tracker)
}

/// Returns what the mode of the settings would do for the objects of `tracker`.
///
/// # Errors
/// When no kernel could run that mode with these settings.
pub(super) fn text(
    settings: &Settings,
    tracker: &mut Tracker,
) -> Result<String, Box<dyn std::error::Error>> {
    let requirements = probe::requirements(settings);
    let kernel = probe::imagine(settings, &requirements);
    let mode = settings.effective.mode;
    let verdict = verdict::verdict(mode, &kernel, &requirements);
    if !verdict.can_run() {
        return Err(verdict.to_string().into());
    }
    Ok(text_of(
        mode,
        &kernel,
        settings,
        tracker,
        OwnAddresses::Object,
    )?)
}

/// What the node's own addresses are known from.
#[derive(Clone, Copy, Debug)]
pub(super) enum OwnAddresses<'a> {
    /// From its Node object: the machine that prints need not be that node.
    Object,
    /// From its interfaces.
    Listed(&'a [IpAddr]),
}

/// Returns what `mode` would do in that kernel for the objects of `tracker`, on a node with
/// `own` addresses.
///
/// # Errors
/// When the text could not be written.
pub(super) fn text_of(
    mode: ModeName,
    kernel: &Kernel,
    settings: &Settings,
    tracker: &mut Tracker,
    own: OwnAddresses<'_>,
) -> Result<String, fmt::Error> {
    let effective = &settings.effective;
    let node_ports = NodePorts::new(&effective.node_ports, effective.node_ip);
    let node = tracker.node().cloned();
    node_ports.update(node.as_ref());
    let own = match own {
        OwnAddresses::Object => node.as_ref().map_or(&[][..], |node| &node.addresses),
        OwnAddresses::Listed(own) => own,
    };
    let served = node_ports.served();
    let serving = own.iter().filter(|ip| served.contains(ip));
    tracker.set_node_addresses(serving.copied().collect());
    let choices = render::Choices {
        configuration: &settings.configuration,
        effective,
        kernel,
        dispatch: settings.own.iptables_dispatch,
        addresses: own,
        served: &served,
        loopback: node_ports.loopback(),
        counted: &settings.own.counted(),
    };
    render::render(mode, tracker.map(), &choices)
}
