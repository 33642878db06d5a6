//! `tripod render`: what a mode would do, for a folder of manifests.

use std::{collections::BTreeSet, fmt, net::IpAddr, path::Path, sync::Arc};

use super::{Done, probe};
use crate::{
    cli::{self, Settings},
    kernel::probe::Kernel,
    modes::{render, verdict},
    net::ModeName,
    node::{self, NodePorts},
    services::{Batch, Event, Tracker},
    watch,
};

pub(super) async fn render(settings: &Settings, folder: &Path) -> Done {
    let mut objects = read(settings, folder).await?;
    let text = text(settings, &mut objects.tracker)?;
    cli::put(&text)?;
    match objects.faults.len() {
        0 => Ok(()),
        faults => Err(format!(
            "{} has {faults} parts that cannot be used, and are not in what was printed: {}",
            folder.display(),
            objects.faults.join("; ")
        )
        .into()),
    }
}

/// The objects of a folder of manifests.
pub(super) struct Objects {
    /// The objects as the node of the settings sees them.
    pub(super) tracker: Tracker,
    /// The name of that node.
    pub(super) node: String,
    /// The names of all Nodes of the folder.
    pub(super) nodes: BTreeSet<Arc<str>>,
    /// Why parts of the folder cannot be used.
    pub(super) faults: Vec<String>,
}

/// Reads the objects of a folder of manifests, for the node of the settings.
///
/// # Errors
/// When the folder cannot be read, or the node has no name; in words.
pub(super) async fn read(settings: &Settings, folder: &Path) -> Result<Objects, String> {
    std::fs::read_dir(folder)
        .map_err(|e| format!("cannot read --manifests {}: {e}", folder.display()))?;
    let node = node::name(&settings.configuration.hostname_override)?;
    let mut tracker = Tracker::new(&node);
    let (Batch { events }, faults) = watch::manifests::read(folder).await;
    let nodes = events.iter().filter_map(|event| match event {
        Event::Node(node) => Some(Arc::clone(&node.name)),
        _ => None,
    });
    let nodes = nodes.collect();
    tracker.apply(events);
    tracker.log_all();
    Ok(Objects {
        tracker,
        node,
        nodes,
        faults,
    })
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
