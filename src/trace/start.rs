//! Facts from the running proxy and the node before the first packet arrives.

use std::net::{IpAddr, SocketAddr};

use netlink::{Socket, addresses, sysctl};
use nftables::TraceTarget;

use super::{pairs::Asker, report::Start};
use crate::{cli::Trace, config::ModeName, status_api::Explanation};

/// Collects the facts that are known before the first packet arrives.
pub(super) fn start(
    target: &TraceTarget,
    explained: Result<&Explanation, &String>,
    mut unseen: Vec<String>,
) -> Start {
    let no_events = sysctl::read("net/netfilter/nf_conntrack_events");
    if no_events.is_ok_and(|value| value.trim() == "0") {
        let why = "connections, and where they are sent: net.netfilter.nf_conntrack_events is 0";
        unseen.push(why.to_owned());
    }
    let explained = match explained {
        Ok(explained) => Some(explained),
        Err(why) => {
            unseen.push(format!("which Service it is, and the mode: {why}"));
            None
        }
    };
    // The first step names the caller, which is not known yet unless it is asked for; then only the
    // second step, which names the Service, applies to any caller.
    let most = target.from.map_or(1, |_| usize::MAX);
    let steps = explained.map(|it| it.steps.iter().skip(1).take(most).cloned().collect());
    Start {
        to: target.to.to_string(),
        protocol: target.protocol.to_string(),
        from: target.from.map(|ip| ip.to_string()),
        mode: explained.map(|it| it.mode.clone()),
        service_port: explained.and_then(|it| it.service_port.clone()),
        steps: steps.unwrap_or_default(),
        unseen,
    }
}

/// Returns an asker for the running proxy's connections to endpoints, if it makes any. Adds to `unseen`
/// why it does not report them.
pub(super) async fn asker(
    asked: &Trace,
    target: &TraceTarget,
    explained: Option<&Explanation>,
    unseen: &mut Vec<String>,
) -> Option<Asker> {
    let relays = |it: &&Explanation| it.mode == ModeName::Userspace.to_string();
    let service_port = explained.filter(relays)?.service_port.clone()?;
    let begun = Asker::begin(asked.common.socket.clone(), service_port, target.protocol).await;
    begun
        .inspect_err(|why| {
            unseen.push(format!(
                "which endpoint Tripod chooses for each client; its connections to endpoints are \
                 shown separately: {why}"
            ));
        })
        .ok()
}

/// Returns all endpoints of the ServicePort, chosen or not.
pub(super) fn endpoints(explained: &Explanation) -> Vec<SocketAddr> {
    let candidates = explained.candidates.iter().map(|one| &one.address);
    let others = explained.passed_over.iter().map(|one| &one.address);
    let all = candidates.chain(others);
    all.filter_map(|address| address.parse().ok()).collect()
}

/// Returns the node's own addresses; none if they cannot be listed.
pub(super) fn own() -> Vec<IpAddr> {
    let socket = Socket::open(netlink::Protocol::Route);
    let listed = socket.and_then(|mut socket| addresses::list(&mut socket));
    let listed = listed.unwrap_or_default().into_iter();
    listed.map(|address| address.address).collect()
}
