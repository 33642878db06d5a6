//! The endpoints that get packets: those in an answer to `/v1/explain`, and those that are shown as
//! in use.

use std::net::SocketAddr;

use hashbrown::HashMap;

use super::StatusApi;
use crate::{
    config::ModeName,
    runner::question::{self, Verdict},
    services::{
        AddressKind, Endpoint, NotUsed, Reach, ServiceAddresses, ServicePort, endpoint_words,
    },
    status_api::{Candidate, PassedOver},
};

impl StatusApi {
    /// Lists the endpoints of `port` that are not used although the ServicePort does not say so,
    /// each with the reason: they have one of these `addresses`, or did not answer lately. If none
    /// answered, all are used. [Some](Self::get_their_share) are used in vain.
    pub(super) fn passed_over(
        &self,
        port: &ServicePort,
        addresses: &ServiceAddresses<'_>,
    ) -> HashMap<SocketAddr, String> {
        let protocol = port.name.protocol;
        let usage = port.endpoints.usage();
        let used: Vec<SocketAddr> = usage
            .filter(|(_, why)| why.is_none())
            .map(|(endpoint, _)| endpoint.address)
            .collect();
        let mode = self.mode_of(port);
        let owner = |address| {
            if mode == ModeName::Userspace {
                return self.traffic.comes_back(&port.name, address);
            }
            let owner = addresses.owner(protocol, address);
            // Packets to other addresses may reach a load balancer.
            let is_dead = |kind| mode == ModeName::Ipvs || kind == AddressKind::ClusterIp;
            let owner = owner.filter(|(_, kind)| is_dead(*kind));
            owner.map(|(name, _)| name.clone())
        };
        let mut passed_over: HashMap<SocketAddr, String> = used
            .iter()
            .filter_map(|address| Some((*address, owner(*address)?.has_address_of_endpoint())))
            .collect();
        let ejected = self.traffic.ejected(port);
        let answers = |address: &&SocketAddr| {
            !ejected.contains(*address) && !passed_over.contains_key(*address)
        };
        if !ejected.is_empty() && used.iter().any(|address| answers(&address)) {
            for address in used.iter().filter(|address| ejected.contains(*address)) {
                let why = || NotUsed::Ejected.to_string();
                passed_over.entry(*address).or_insert_with(why);
            }
        }
        passed_over
    }

    /// Returns whether calls are sent to those that are `passed_over` all the same: the kernel does
    /// not know that they have addresses of Services.
    pub(super) fn get_their_share(
        &self,
        port: &ServicePort,
        passed_over: &HashMap<SocketAddr, String>,
    ) -> bool {
        self.mode_of(port) != ModeName::Userspace && none_in_use(port, passed_over).is_none()
    }
}

/// Explains why no endpoint takes connections, where some are `passed_over`; `None` if one does.
pub(super) fn none_in_use(
    port: &ServicePort,
    passed_over: &HashMap<SocketAddr, String>,
) -> Option<String> {
    let why = port.endpoints.none_in_use(Reach::Any);
    if why.is_some() || passed_over.is_empty() {
        return why;
    }
    let usage = port.endpoints.usage();
    let mut used = usage.filter(|(_, why)| why.is_none());
    used.all(|(endpoint, _)| passed_over.contains_key(&endpoint.address))
        .then(|| match passed_over.len() {
            1 => "the only one has the address of a Service".to_owned(),
            count => format!("all {count} have addresses of Services"),
        })
}

/// Describes the endpoints to which such a packet may be sent.
pub(super) fn candidates(
    explanation: &question::Explanation,
    port: Option<&ServicePort>,
) -> Vec<Candidate> {
    let node = |address| {
        let all = port.map(|port| port.endpoints.all.iter());
        let mut all = all.into_iter().flatten();
        let endpoint = all.find(|endpoint| endpoint.is_at(address))?;
        endpoint.node_name.as_ref().map(ToString::to_string)
    };
    let candidates = explanation.candidates.iter();
    let candidates = candidates.map(|candidate| Candidate {
        address: candidate.address.to_string(),
        node: node(candidate.address),
        share: candidate.share,
    });
    candidates.collect()
}

/// Returns the endpoints that get no such packet, each with the reason.
pub(super) fn passed_over(
    explanation: &question::Explanation,
    port: Option<&ServicePort>,
) -> Vec<PassedOver> {
    let is_used = |endpoint: &Endpoint| {
        let mut candidates = explanation.candidates.iter();
        candidates.any(|candidate| endpoint.is_at(candidate.address))
    };
    let usage = port.into_iter().flat_map(|port| port.endpoints.usage());
    let others = usage.filter(|(endpoint, _)| !is_used(endpoint));
    let not_used = |address| {
        let mut passed_over = explanation.passed_over.iter();
        if let Some((_, why)) = passed_over.find(|(of, _)| *of == address) {
            return why.clone();
        }
        match explanation.verdict {
            // Such a packet has no candidates.
            Verdict::Refused | Verdict::Dropped | Verdict::NotServed => {
                "no endpoint gets such a packet".to_owned()
            }
            Verdict::Depends => "it depends on the caller whether it gets the packet".to_owned(),
            _ => "not for such a caller, by the traffic policy".to_owned(),
        }
    };
    others
        .map(|(endpoint, why)| PassedOver {
            address: endpoint_words(endpoint.address),
            node: endpoint.node_name.as_ref().map(ToString::to_string),
            why: why.map_or_else(|| not_used(endpoint.address), |why| why.to_string()),
        })
        .collect()
}
