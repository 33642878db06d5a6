//! Flows that connection tracking sends elsewhere than the rules do now.
//!
//! It asks nat rules for a flow's first packet only. A TCP client that is sent to the
//! wrong place is refused and connects anew, unless nothing answers there: then each SYN that it
//! sends again goes to the same place. A UDP socket keeps its flow alive with
//! each datagram and is never sent to the right place: the flow of a client that called
//! before the Service was there is not redirected, that of a Service that came back
//! goes to a local port without a listener.

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
    /// Those of TCP: only unanswered connections that were not redirected are deleted.
    tcp: BTreeSet<Frontend>,
    /// The last attempt failed for a reason that will most likely be the same the next time:
    /// they are tried again with the next sync, and none is due for them.
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

    /// Returns whether a sync is due for what is left to examine.
    pub fn is_due(&self) -> bool {
        let is_left = !self.frontends.is_empty() || !self.tcp.is_empty();
        is_left && !self.is_lasting
    }

    /// Returns what to delete, now that what is `applied` is in the kernel: for a
    /// frontend that is there, flows that go elsewhere than to its listener (with
    /// REDIRECT, on any address); for one that is gone, all flows. Node ports match on
    /// any address, as only the kernel knows which ones it has translated.
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

    /// Deletes the stale flows of `family`. What fails is tried again the next time.
    ///
    /// # Errors
    /// With what is wrong meanwhile, and why.
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

/// Deletes the entries of UDP flows that nat translates to a socket of this node: a client
/// that keeps its socket would stay with a process that no longer serves.
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
    flows::delete_if(&mut socket, family, UDP, |flow| {
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
