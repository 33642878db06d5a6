//! The cost of extensions that a kernel does not have.

use xtables::extension::Extension;

/// Consequence of each missing extension, for people.
pub const LOST: [(Extension, &str); 9] = [
    (
        Extension::Comment,
        "rules do not say which Service they are for; the names of chains do not change",
    ),
    (
        Extension::Statistic,
        "connections are spread over endpoints by the client's source port instead of at random: \
         evenly (within a sixth) over many connections from the usual port ranges, but a client \
         that keeps its source port keeps its endpoint",
    ),
    (
        Extension::Recent,
        "session affinity depends on the last bits of the client's address: it does not expire, \
         clients with the same bits share an endpoint, and some of them move when endpoints are \
         added or removed",
    ),
    (
        Extension::Addrtype,
        "node ports, and external addresses called by the node itself, work on loopback and on \
             the addresses of the Node object only",
    ),
    (
        Extension::Conntrack,
        "node ports on loopback are not served, since nothing could protect the node's \
             loopback; packets that connection tracking finds invalid are not dropped; where \
             the policy of FORWARD is DROP, answers to service traffic need a rule of your own",
    ),
    (
        Extension::Nfacct,
        "dropped invalid packets and packets to node ports on loopback are not counted",
    ),
    (
        Extension::Reject,
        "clients of Services without endpoints time out instead of being refused",
    ),
    (
        Extension::RandomFully,
        "two masqueraded connections made at the same moment may collide, and one then \
             waits for its client to try again",
    ),
    (
        Extension::Sctp,
        "SCTP ports of Services are not served; ipvs mode does not need this match",
    ),
];

/// Extensions that the mode cannot run without: their purpose, and the kernel modules that have
/// them.
pub const NEEDED: [(Extension, &str); 3] = [
    (
        Extension::Dnat,
        "needed to send connections to endpoints: kernel modules iptable_nat and xt_nat \
             (legacy), or nft_chain_nat and nft_compat",
    ),
    (
        Extension::Masquerade,
        "needed so that answers come back through this node: kernel module xt_MASQUERADE",
    ),
    (
        Extension::Mark,
        "needed to say which connections to masquerade: kernel module xt_mark",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_named_once() {
        let all = LOST.iter().chain(&NEEDED);
        let named: std::collections::BTreeSet<_> = all.map(|(extension, _)| extension).collect();
        assert_eq!(
            named.len(),
            12,
            "all but set, physdev, socket and REDIRECT: {named:?}"
        );
    }
}
