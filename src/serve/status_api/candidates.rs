//! The endpoints of an answer to `/v1/explain`.

use std::{collections::HashSet, net::SocketAddr};

use crate::{
    runner::question::{self, Verdict},
    services::{NotUsed, ServicePort},
    status_api::{Candidate, PassedOver},
};

/// Returns the endpoints that such a packet may be sent to. The mode does not know which are
/// `ejected`: these get no packets, unless all are.
pub(super) fn used<'a>(
    explanation: &'a question::Explanation,
    ejected: &HashSet<SocketAddr>,
) -> Vec<&'a question::Candidate> {
    let all = || explanation.candidates.iter();
    let used: Vec<_> = all()
        .filter(|one| !ejected.contains(&one.address))
        .collect();
    if used.is_empty() {
        return all().collect();
    }
    used
}

/// Returns what is shown of those that are [`used`], which share what ejected ones do not get.
pub(super) fn candidates(
    explanation: &question::Explanation,
    port: Option<&ServicePort>,
    used: &[&question::Candidate],
) -> Vec<Candidate> {
    let node = |address| {
        let all = port.map(|port| port.endpoints.all.iter());
        let mut all = all.into_iter().flatten();
        let endpoint = all.find(|endpoint| endpoint.address == address)?;
        endpoint.node_name.as_ref().map(ToString::to_string)
    };
    let ejects = used.len() < explanation.candidates.len();
    let total: f64 = used.iter().filter_map(|candidate| candidate.share).sum();
    let share = |share: f64| if ejects { share / total } else { share };
    let candidates = used.iter().map(|candidate| Candidate {
        address: candidate.address.to_string(),
        node: node(candidate.address),
        share: candidate.share.map(share),
    });
    candidates.collect()
}

/// Returns the endpoints that are not [`used`], each with the reason.
pub(super) fn passed_over(
    explanation: &question::Explanation,
    port: Option<&ServicePort>,
    used: &[&question::Candidate],
) -> Vec<PassedOver> {
    let is_used = |address| used.iter().any(|candidate| candidate.address == address);
    let usage = port.into_iter().flat_map(|port| port.endpoints.usage());
    let others = usage.filter(|(endpoint, _)| !is_used(endpoint.address));
    let not_used = |address| {
        let mut candidates = explanation.candidates.iter();
        if candidates.any(|candidate| candidate.address == address) {
            return NotUsed::Ejected.to_string();
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
            address: endpoint.address.to_string(),
            node: endpoint.node_name.as_ref().map(ToString::to_string),
            why: why.map_or_else(|| not_used(endpoint.address), |why| why.to_string()),
        })
        .collect()
}
