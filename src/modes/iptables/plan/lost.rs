//! What features that a kernel does not have cost.

use crate::kernel::xtables::features::Features;

/// A feature that is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// What is missing, as iptables names it: `-m recent`.
    pub what: &'static str,
    /// What follows from that, for people; or, where the mode cannot run without it,
    /// what it is needed for, and which kernel modules have it.
    pub effect: &'static str,
}

/// What is lost with these features, each thing once.
pub fn lost(features: &Features) -> Vec<Loss> {
    missing([
        (
            features.comment,
            "-m comment",
            "rules do not tell which Service they are for; the names of chains are as ever",
        ),
        (
            features.statistic,
            "-m statistic",
            "connections are spread over endpoints by the client's source port instead of at \
             random: even (within a sixth) over many connections from the usual port ranges, but \
             a client that keeps its source port keeps its endpoint",
        ),
        (
            features.recent,
            "-m recent",
            "session affinity goes by the last bits of the client's address: it does not time \
             out, clients with the same bits share an endpoint, and some of them move when \
             endpoints come or go",
        ),
        (
            features.addrtype,
            "-m addrtype",
            "node ports, and external addresses called by the node itself, work on loopback and on \
             the addresses of the Node object only",
        ),
        (
            features.conntrack,
            "-m conntrack",
            "node ports on loopback are not served, since nothing could protect the node's \
             loopback; packets that connection tracking finds invalid are not dropped; where \
             the policy of FORWARD is DROP, answers to service traffic need a rule of your own",
        ),
        (
            features.nfacct,
            "-m nfacct",
            "dropped invalid packets and packets to node ports on loopback are not counted",
        ),
        (
            features.reject,
            "-j REJECT",
            "clients of Services without endpoints time out instead of being refused",
        ),
        (
            features.random_fully,
            "-j MASQUERADE --random-fully",
            "two masqueraded connections made at the same moment may collide, and one then \
             waits for its client to try again",
        ),
        (
            features.sctp,
            "-m sctp",
            "SCTP ports of Services are not served; ipvs mode needs none",
        ),
    ])
}

/// What keeps the mode from running at all.
pub fn impossible(features: &Features) -> Vec<Loss> {
    missing([
        (
            features.dnat,
            "-j DNAT",
            "needed to send connections to endpoints: kernel modules iptable_nat and xt_nat \
             (legacy), or nft_chain_nat and nft_compat",
        ),
        (
            features.masquerade,
            "-j MASQUERADE",
            "needed so that answers come back through this node: kernel module xt_MASQUERADE",
        ),
        (
            features.mark,
            "-m mark, -j MARK",
            "needed to say which connections to masquerade: kernel module xt_mark",
        ),
    ])
}

/// Returns those that are not there.
fn missing<const N: usize>(all: [(bool, &'static str, &'static str); N]) -> Vec<Loss> {
    let missing = all.into_iter().filter(|(is_there, ..)| !is_there);
    missing
        .map(|(_, what, effect)| Loss { what, effect })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_with_everything_and_everything_is_named_once_with_nothing() {
        assert!(lost(&Features::ALL).is_empty());
        assert!(impossible(&Features::ALL).is_empty());
        let none = Features::NONE;
        let mut named: Vec<_> = lost(&none).iter().map(|loss| loss.what).collect();
        named.extend(impossible(&none).iter().map(|missing| missing.what));
        assert_eq!(
            named.len(),
            12,
            "all but set, physdev, socket and REDIRECT: {named:?}"
        );
        let count = named.len();
        named.sort_unstable();
        named.dedup();
        assert_eq!(named.len(), count);
    }
}
