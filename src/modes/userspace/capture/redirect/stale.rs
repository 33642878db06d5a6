//! Flows that connection tracking sends elsewhere than the current rules.
//!
//! Connection tracking applies nat rules to a flow's first packet only. A TCP client that is sent
//! to the wrong place is refused and connects again, unless nothing answers there: then each
//! retransmitted SYN goes to the same place. A UDP socket keeps its flow alive with each datagram
//! and is never sent to the right place: the flow of a client that called before the Service
//! existed is not redirected, and the flow of a Service that was created again goes to a local port
//! without a listener.

use std::collections::{BTreeSet, HashSet};

use net::{Family, Frontend, Protocol};
use netlink::{
    Socket, addresses,
    conntrack::flows::{self, Match, Reply, Source, UDP},
};

use super::applied::Applied;
use crate::modes::stale;

/// Frontends whose rules changed and whose flows were not yet examined.
#[derive(Debug, Default)]
pub struct Stale {
    frontends: BTreeSet<Frontend>,
    /// TCP frontends: only unanswered connections that were not redirected are deleted.
    tcp: BTreeSet<Frontend>,
    /// Whether the last attempt failed for a lasting reason: it is repeated with the next sync, and
    /// no sync is scheduled for it.
    is_lasting: bool,
}

impl Stale {
    /// Adds those of `changed` that can have such flows.
    pub fn extend(&mut self, changed: impl IntoIterator<Item = Frontend>) {
        for frontend in changed {
            match frontend.protocol {
                Protocol::Udp => drop(self.frontends.insert(frontend)),
                Protocol::Tcp => drop(self.tcp.insert(frontend)),
                Protocol::Sctp => {}
            }
        }
    }

    /// Returns whether a sync should be scheduled for frontends that are still to examine.
    pub fn is_due(&self) -> bool {
        let is_left = !self.frontends.is_empty() || !self.tcp.is_empty();
        is_left && !self.is_lasting
    }

    /// The flows to delete after `applied` has been written to the kernel: for an existing
    /// frontend, flows that go elsewhere than to its listener (with REDIRECT, on any address); for
    /// one that is gone, all flows. Node ports match on any address, because only the kernel knows
    /// which addresses it has translated.
    fn matches(&self, applied: &Applied) -> Vec<Match> {
        let one = |frontend: &Frontend| {
            let reply = match applied.listener(frontend) {
                Some(listener) => {
                    let listener = Source {
                        address: applied.destination(),
                        port: Some(listener.port),
                    };
                    Reply::NotFrom([listener].into())
                }
                None => Reply::Any,
            };
            stale::flows(frontend, reply)
        };
        self.frontends.iter().map(one).collect()
    }

    /// Deletes the stale flows of `family`. Failures are retried the next time.
    ///
    /// # Errors
    /// The consequences of the failure, and its reason.
    pub async fn delete(&mut self, family: Family, applied: &Applied) -> Result<(), String> {
        let served = |at: &&Frontend| applied.listener(at).is_some();
        let tcp = self.tcp.iter().filter(served).copied().collect();
        let matches = self.matches(applied);
        let deleted = match stale::delete_untranslated(family, tcp).await {
            Ok(count) => {
                self.tcp.clear();
                let udp = stale::delete(family, matches).await;
                udp.map(|udp| udp + count)
            }
            Err(failure) => Err(failure),
        };
        match deleted {
            Ok(count) => {
                self.frontends.clear();
                self.is_lasting = false;
                if count > 0 {
                    tracing::debug!("{family}: {count} stale flows were deleted");
                }
                Ok(())
            }
            Err(failure) => {
                self.is_lasting = failure.is_lasting;
                let error = failure.error;
                Err(format!(
                    "{family}: a client may not reach a Service that was added or changed while it \
                     was sending, because Tripod {error}; the kernel needs nf_conntrack_netlink, \
                     and Tripod CAP_NET_ADMIN"
                ))
            }
        }
    }
}

/// Deletes the entries of UDP flows that nat translates to a socket of this node: a client that
/// keeps its socket would stay with a process that no longer serves.
///
/// # Errors
/// When the addresses of this node or the flows cannot be read.
pub fn delete_redirected(family: Family) -> Result<(), netlink::Error> {
    let mut route = Socket::open(netlink::Protocol::Route)?;
    let own: HashSet<_> = addresses::list(&mut route)?
        .into_iter()
        .map(|a| a.address)
        .collect();
    let mut socket = Socket::open(netlink::Protocol::Netfilter)?;
    flows::delete_if(&mut socket, family, &[Match::all(UDP)], |flow| {
        let answers = flow.reply.source.ip();
        flow.original.destination != flow.reply.source
            && (answers.is_loopback() || own.contains(&answers))
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_gone_has_no_place_to_be_and_only_udp_flows_go_there() {
        let mut stale = Stale::default();
        let none = Applied::default();
        assert_eq!(stale.matches(&none), []);
        let protocols = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
        let ip = [10, 96, 0, 1].into();
        stale.extend(protocols.map(|protocol| Frontend::service(protocol, ip, 53)));
        let gone = Match {
            protocol: UDP,
            destination: Some(ip),
            port: Some(53),
            reply: Reply::Any,
        };
        assert_eq!(stale.matches(&none), [gone]);
    }
}
