//! UDP flows whose connection-tracking entries lead where nothing answers any
//! more, or nowhere although something answers now.

use std::{
    collections::HashSet,
    net::{IpAddr, SocketAddr},
    time::Instant,
};

use nix::errno::Errno;

use crate::{
    kernel::{
        Family,
        conntrack::flows::{self, Match, Reply, Source, UDP},
        netlink::{Protocol, Socket},
    },
    runner::metrics::Metrics,
    services::{IpFamily, ServiceMap, ServicePort, StaleUdp},
};

/// Errors that will be the same the next time: no right to, no ctnetlink
/// (EINVAL), no netfilter at all.
const LASTING: [Errno; 4] = [
    Errno::EPERM,
    Errno::EINVAL,
    Errno::EOPNOTSUPP,
    Errno::EPROTONOSUPPORT,
];

fn flow(destination: Option<IpAddr>, port: u16, reply: Reply) -> Match {
    Match {
        protocol: UDP,
        destination,
        port: Some(port),
        reply,
    }
}

/// The flows to everything that a ServicePort answers on.
fn all(port: &ServicePort, reply: &Reply) -> Vec<Match> {
    let addresses = port.addresses();
    let services = addresses.map(|ip| flow(Some(ip), port.port, reply.clone()));
    let node_port = port.node_port.map(|at| flow(None, at, reply.clone()));
    services.chain(node_port).collect()
}

fn serving(port: &ServicePort) -> HashSet<Source> {
    let serving = port.endpoints.all.iter().filter(|e| e.serving);
    serving.map(|e| Source::from(e.address)).collect()
}

/// What to delete in `family`, now that `map` is in force. A node port is
/// looked for on any address, as only the kernel knows which ones it
/// translated; so of flows to a node port that is gone only those count that
/// led to an endpoint.
pub fn matches(family: Family, map: &ServiceMap, stale: &StaleUdp) -> Vec<Match> {
    let of_family = |port: &ServicePort| Family::from(port.name.family) == family;
    let mut matches = Vec::new();
    for (port, endpoint) in stale.endpoints.iter().filter(|(p, _)| of_family(p)) {
        let gone: SocketAddr = *endpoint;
        matches.extend(all(port, &Reply::From([gone.into()].into())));
    }
    for (port, lost) in stale.addresses.iter().filter(|(p, _)| of_family(p)) {
        let services = lost.services.iter();
        matches.extend(services.map(|at| flow(Some(at.ip()), at.port(), Reply::Any)));
        let led = || Reply::From(serving(port));
        matches.extend(lost.node_port.map(|at| flow(None, at, led())));
    }
    for port in stale.revived.iter().filter_map(|name| map.get(name)) {
        if of_family(port) {
            matches.extend(all(port, &Reply::NotFrom(serving(port))));
        }
    }
    matches
}

/// Deletes what `matches` means; answers with what is to be tried again.
pub async fn forget(family: IpFamily, matches: Vec<Match>, metrics: &Metrics) -> Vec<Match> {
    if matches.is_empty() {
        return matches;
    }
    let begun = Instant::now();
    // The socket belongs to the network namespace of the thread that opens it;
    // the table may hold a million entries, which takes a while.
    let socket = Socket::open(Protocol::Netfilter);
    let work = move || {
        let deleted =
            socket.and_then(|mut socket| flows::delete(&mut socket, family.into(), &matches));
        (deleted, matches)
    };
    match tokio::task::spawn_blocking(work).await {
        Ok((Ok(count), _)) => {
            metrics.conntrack_cleared(family, begun.elapsed(), count as u64);
            Vec::new()
        }
        Ok((Err(error), matches)) => {
            tracing::warn!(
                "{family}: a UDP client that keeps its socket may go on sending to an endpoint \
                 that is gone, because we {error}; the kernel needs nf_conntrack_netlink, and \
                 Tripod CAP_NET_ADMIN"
            );
            let lasting = error.errno().is_some_and(|errno| LASTING.contains(&errno));
            if lasting { Vec::new() } else { matches }
        }
        // The runtime is shutting down.
        Err(_) => Vec::new(),
    }
}
