//! `tripod render`: prints the desired state of a mode for a folder of manifests.

use std::{collections::BTreeSet, fmt, net::IpAddr, path::Path, sync::Arc};

use super::{Done, probe};
use crate::{
    cli::{self, Settings},
    config::ModeName,
    kernel::probe::Kernel,
    modes::{render, verdict},
    node::{self, NodePorts},
    services::{Event, Object, Tracker},
    watch,
};

pub(super) async fn render(settings: &Settings) -> Done {
    let folder = settings.own.manifests.as_deref().unwrap_or(Path::new(""));
    let mut objects = read(settings, folder).await?;
    let text = text(settings, &mut objects.tracker)?;
    cli::put(&text)?;
    match objects.faults.len() {
        0 => Ok(()),
        faults => Err(format!(
            "{} has {faults} invalid parts, which are missing from the output: {}",
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
/// When the folder cannot be read, or the node has no name. The error is in words.
pub(super) async fn read(settings: &Settings, folder: &Path) -> Result<Objects, String> {
    watch::manifests::check(folder)?;
    let node = node::name(&settings.configuration.hostname_override)?;
    let mut tracker = Tracker::new(&node);
    let (events, faults) = watch::manifests::read(folder).await;
    let nodes = events.iter().filter_map(|event| match event {
        Event::Changed(Object::Node(node)) => Some(Arc::clone(&node.name)),
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

/// The desired state of the configured mode, for the objects of `tracker`.
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
    Ok(text_of(mode, &kernel, settings, tracker, None)?)
}

/// The desired state of `mode` in that kernel for the objects of `tracker`, on a node with its
/// `own` addresses; `None`: with those of its Node object, as the machine that renders need not be that
/// node.
///
/// # Errors
/// When the text cannot be written.
pub(super) fn text_of(
    mode: ModeName,
    kernel: &Kernel,
    settings: &Settings,
    tracker: &mut Tracker,
    own: Option<&[IpAddr]>,
) -> Result<String, fmt::Error> {
    let effective = &settings.effective;
    let node_ports = NodePorts::new(&effective.node_ports, effective.node_ip);
    let node = tracker.node().cloned();
    node_ports.update(node.as_ref());
    let own = own.unwrap_or_else(|| node.as_ref().map_or(&[][..], |node| &node.addresses));
    let served = node_ports.served();
    let serving = own.iter().filter(|ip| served.contains(ip));
    tracker.set_node_addresses(serving.copied().collect());
    let choices = render::Choices {
        configuration: &settings.configuration,
        effective,
        kernel,
        dispatch: settings.own.iptables_dispatch,
        capture: settings.own.capture,
        addresses: own,
        served: &served,
        loopback: node_ports.loopback(),
        counted: &settings.own.counted(),
    };
    render::render(mode, tracker.map(), &choices)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::{EndpointSlice, Loopback, Names, Node, Service};

    /// The desired state of userspace mode on a node with these flags.
    fn rendered(flags: &[&str]) -> String {
        let common = [
            "tripod",
            "render",
            "--proxy-mode=userspace",
            "--manifests=/m",
        ];
        let words = common.iter().chain(flags);
        let read = cli::read(words.map(Into::into), |_| unreachable!("no file"));
        let settings = read.expect("good flags");
        let names = &mut Names::default();
        let service = "{metadata: {name: web}, spec: {clusterIP: 10.96.0.1, type: NodePort, \
                       ports: [{port: 80, nodePort: 30080}]}}";
        let service = serde_saphyr::from_str(service).expect("yaml");
        let service = Service::reduce(&service, names).expect("good").object;
        let slice = "{metadata: {name: s, labels: {kubernetes.io/service-name: web}}, \
                     addressType: IPv4, ports: [{port: 8080}], \
                     endpoints: [{addresses: [10.1.0.1]}]}";
        let slice = serde_saphyr::from_str(slice).expect("yaml");
        let slice = EndpointSlice::reduce(&slice, Loopback::Refused, names)
            .expect("good")
            .object;
        let node = Node {
            name: "node".into(),
            zone: None,
            pod_cidrs: Box::default(),
            addresses: [[192, 0, 2, 1].into()].into(),
            deleting: false,
            to_be_deleted: false,
            weight: None,
        };
        let mut tracker = Tracker::new("node");
        tracker.apply([
            Event::Changed(Object::Service(Arc::new(service))),
            Event::Changed(Object::EndpointSlice(Arc::new(slice))),
            Event::Changed(Object::Node(Arc::new(node))),
        ]);
        text(&settings, &mut tracker).expect("it can run")
    }

    #[test]
    fn userspace_mode_shows_how_it_captures() {
        let listeners = [
            "# listen 10.96.0.1:80/TCP for default/web: 10.1.0.1:8080",
            "# listen IPv4 node port 30080/TCP for default/web: 10.1.0.1:8080",
        ];
        let redirect = [
            "# iptables-restore --noflush",
            "*nat",
            "-j TRIPOD-USERSPACE",
            "-d 10.96.0.1",
            "--dport 80 ",
            "--dport 30080",
            "--to-destination 192.0.2.1:32768",
            "*filter",
        ];
        let local = [
            "# IPv4 rule 77: ipproto 6 dport 80 lookup ",
            "# route local 10.96.0.1/32 table ",
            "# route prohibit 10.96.0.1/32 table ",
        ];
        for (flags, has, lacks) in [
            (&[][..], &redirect[..], &local[..]),
            (&["--userspace-capture=local"], &local, &redirect),
            (&["--without=nat"], &local, &redirect),
        ] {
            let text = rendered(flags);
            for words in listeners.iter().chain(has) {
                assert!(text.contains(words), "{flags:?}: no {words:?} in {text}");
            }
            for words in lacks {
                assert!(!text.contains(words), "{flags:?}: {words:?} in {text}");
            }
        }
    }
}
