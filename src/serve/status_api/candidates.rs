//! The endpoints of an answer to `/v1/explain`.

use std::{collections::HashSet, net::SocketAddr};

use crate::{
    runner::question::{self, Verdict},
    services::{NotUsed, ServicePort},
    status_api::{Candidate, PassedOver},
};

/// Returns the endpoints that such a packet may be sent to. The mode does not know which are
/// `ejected`: these get no packets, unless all are.
pub(super) fn candidates(
    explanation: &question::Explanation,
    port: Option<&ServicePort>,
    ejected: &HashSet<SocketAddr>,
) -> Vec<Candidate> {
    let node = |address| {
        let all = port.map(|port| port.endpoints.all.iter());
        let mut all = all.into_iter().flatten();
        let endpoint = all.find(|endpoint| endpoint.address == address)?;
        endpoint.node_name.as_ref().map(ToString::to_string)
    };
    let all = explanation.candidates.iter();
    let mut used: Vec<_> = all
        .clone()
        .filter(|one| !ejected.contains(&one.address))
        .collect();
    if used.is_empty() {
        used = all.collect();
    }
    let ejects = used.len() < explanation.candidates.len();
    let total: f64 = used.iter().filter_map(|candidate| candidate.share).sum();
    let share = |share: f64| if ejects { share / total } else { share };
    let candidates = used.into_iter().map(|candidate| Candidate {
        address: candidate.address.to_string(),
        node: node(candidate.address),
        share: candidate.share.map(share),
    });
    candidates.collect()
}

/// Returns the endpoints that are none of the `candidates`, each with the reason.
pub(super) fn passed_over(
    explanation: &question::Explanation,
    port: Option<&ServicePort>,
    candidates: &[Candidate],
) -> Vec<PassedOver> {
    let is_candidate = |address: SocketAddr| {
        let address = address.to_string();
        candidates
            .iter()
            .any(|candidate| candidate.address == address)
    };
    let usage = port.into_iter().flat_map(|port| port.endpoints.usage());
    let others = usage.filter(|(endpoint, _)| !is_candidate(endpoint.address));
    let not_used = |address| match explanation.verdict {
        _ if explanation
            .candidates
            .iter()
            .any(|one| one.address == address) =>
        {
            NotUsed::Ejected.to_string()
        }
        // Such a packet has no candidates.
        Verdict::Refused | Verdict::Dropped | Verdict::NotServed => {
            "no endpoint gets such a packet".to_owned()
        }
        Verdict::Depends => "it depends on the caller whether it gets the packet".to_owned(),
        _ => "not for such a caller, by the traffic policy".to_owned(),
    };
    others
        .map(|(endpoint, why)| PassedOver {
            address: endpoint.address.to_string(),
            node: endpoint.node_name.as_ref().map(ToString::to_string),
            why: why.map_or_else(|| not_used(endpoint.address), |why| why.to_string()),
        })
        .collect()
}
