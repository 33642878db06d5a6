//! Tests a folder of manifests in network namespaces of this process: nothing of the host is
//! changed, and nothing is left when the process ends.

mod attempts;
mod network;
mod proxy;
mod servers;
mod subnets;

use std::{collections::BTreeSet, net::IpAddr, path::Path};

use net::Family;
use netlink::isolation;

use self::{
    attempts::{Attempts, THOROUGH},
    network::{Behind, Network, ips},
    proxy::Proxy,
    servers::At,
    subnets::Subnets,
};
use super::{
    declared::{Declared, Objects},
    report::Report,
};
use crate::{
    cli::Test, config::ModeName, kernel::open_files, node, services::AddressKind,
    status_api::Status, watch,
};

/// Tests `folder` as `asked`. This process must have only one thread, which is in other
/// namespaces afterwards.
///
/// # Errors
/// Why nothing could be tried.
pub(super) async fn run(folder: &Path, asked: &Test) -> Result<Report, String> {
    let name = folder.display();
    watch::manifests::check(folder)?;
    let own = node::name(asked.hostname_override.as_deref().unwrap_or_default())?;
    let folder = isolation::enter()
        .and_then(|()| isolation::empty_run(folder))
        .map_err(|error| {
            format!(
                "cannot create the namespaces of the test: {error}. Run it as root, in a container \
                 with CAP_SYS_ADMIN; or let other users create namespaces: sysctl -w \
                 user.max_user_namespaces=10000 kernel.unprivileged_userns_clone=1 \
                 kernel.apparmor_restrict_unprivileged_userns=0, as far as these settings exist"
            )
        })?;
    // Each server needs open files; if there are too few, the failing operation reports that.
    open_files::raise_limit();
    let (batch, faults) = watch::manifests::read(&folder).await;
    let objects = Objects::new(batch);
    let node = match &asked.hostname_override {
        Some(_) => own,
        None => objects.node(own),
    };
    let ports = objects.service_ports();
    if ports.is_empty() {
        return Err(format!(
            "{name} has no Service to test: it needs *.yaml, *.yml or *.json files with a Service \
             that has a clusterIP, and its EndpointSlices. The log above names what cannot be read"
        ));
    }
    let behind = behind(&ports, &node);
    let servers = [&behind.here, &behind.elsewhere].map(ips).concat();
    let frontends = ports.iter().flat_map(|port| &port.frontends);
    let used = frontends.filter_map(|frontend| frontend.ip).chain(servers);
    let used: Vec<IpAddr> = used.collect();
    let subnets = Subnets::beside(&used).ok_or("the folder uses all of 198.18.0.0/16")?;
    let network = Network::new(subnets, &behind).await;
    let network = network.map_err(|fault| fault.to_string())?;
    let families = network.families;
    let of_kernel = |at: BTreeSet<At>| -> BTreeSet<At> {
        let is_of = |(address, _): &At| families.contains(&Family::of(&address.ip()));
        at.into_iter().filter(is_of).collect()
    };
    servers::start(&network.here, of_kernel(behind.here)).await?;
    servers::start(&network.elsewhere, of_kernel(behind.elsewhere)).await?;
    let mut proxy = Proxy::start(&folder, asked.proxy_mode, &node, subnets)?;
    let status = proxy.synced().await?;
    let mode = mode(&status, asked.proxy_mode)?;
    let mut notes = notes(&status, &node);
    let checks = Attempts::run(network, subnets, (mode, node), ports).await;
    if checks.len() > THOROUGH {
        notes.push(format!(
            "more than {THOROUGH} checks: each ends when every endpoint has answered once"
        ));
    }
    let mut report = Report::new(mode, checks);
    (report.notes, report.faults) = (notes, faults);
    Ok(report)
}

/// Returns the running mode.
///
/// # Errors
/// When a different one was requested in `asked`.
fn mode(status: &Status, asked: Option<ModeName>) -> Result<ModeName, String> {
    let runs = &status.mode.name;
    let mode = ModeName::named(runs)
        .ok_or_else(|| format!("Tripod runs in a mode of another version: {runs}"))?;
    match asked.filter(|asked| *asked != mode) {
        None => Ok(mode),
        Some(asked) => Err(format!(
            "Tripod ran {mode} mode instead of {asked} mode: {} (tripod probe lists what is \
             missing; without --proxy-mode, the best mode that can run is tested)",
            status.mode.passed_over.join("; ")
        )),
    }
}

/// Returns notes about the whole test.
fn notes(status: &Status, node: &str) -> Vec<String> {
    let mut notes = vec![format!("node {node}")];
    let passed_over = status.mode.passed_over.iter();
    notes.extend(passed_over.map(|why| format!("passed over: {why}")));
    notes.extend(status.mode.lost.iter().cloned());
    notes.extend(status.failing.items.iter().map(|failing| {
        let name = failing.service_port.clone().unwrap_or_default();
        format!("not applied: {name} {}: {}", failing.family, failing.why)
    }));
    notes.extend(status.unsupported.items.iter().map(|unsupported| {
        let (service, what) = (&unsupported.service, &unsupported.what);
        format!("not in this mode: {service}: {what}: {}", unsupported.why)
    }));
    notes
}

/// Returns the addresses behind the node's links.
fn behind(ports: &[Declared], node: &str) -> Behind {
    let endpoints = ports.iter().flat_map(|port| &port.endpoints);
    let here = endpoints.filter(|(_, endpoint)| endpoint.is_on(node));
    let is_here: BTreeSet<IpAddr> = here.map(|(address, _)| address.ip()).collect();
    let mut behind = Behind::default();
    for port in ports {
        for address in port.endpoints.keys() {
            let at = match is_here.contains(&address.ip()) {
                true => &mut behind.here,
                false => &mut behind.elsewhere,
            };
            at.insert((*address, port.name.protocol));
        }
        let frontends = port.frontends.iter();
        let routed = frontends.filter(|frontend| frontend.kind != AddressKind::ClusterIp);
        let routed = routed.filter_map(|frontend| frontend.ip);
        behind.services.extend(routed);
    }
    behind
}
