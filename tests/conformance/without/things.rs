//! The features that can be left out, and the related cases.

/// A feature that can be left out.
#[derive(Debug)]
pub struct Thing {
    /// Its word for `--without`.
    pub word: &'static str,
    /// Its description in the log, in the node's own family.
    pub what: &'static str,
    /// The remedy.
    pub get: &'static str,
    /// Its notation in the rules of the cases, if they use it.
    pub rules: Option<&'static str>,
    /// Related further cases, by parts of their names.
    pub cases: &'static [&'static str],
}

const fn extension(
    word: &'static str,
    what: &'static str,
    get: &'static str,
    rules: &'static str,
    cases: &'static [&'static str],
) -> Thing {
    Thing {
        word,
        what,
        get,
        rules: Some(rules),
        cases,
    }
}

const fn object(word: &'static str, what: &'static str, get: &'static str) -> Thing {
    Thing {
        word,
        what,
        get,
        rules: None,
        cases: &[],
    }
}

pub const THINGS: [Thing; 34] = [
    extension(
        "comment",
        "IPv4 -m comment",
        "modprobe xt_comment, or a kernel with CONFIG_NETFILTER_XT_MATCH_COMMENT",
        "-m comment",
        &[],
    ),
    extension(
        "statistic",
        "IPv4 -m statistic",
        "modprobe xt_statistic, or a kernel with CONFIG_NETFILTER_XT_MATCH_STATISTIC",
        "-m statistic",
        &["equal share", "Weights of slices"],
    ),
    extension(
        "recent",
        "IPv4 -m recent",
        "modprobe xt_recent, or a kernel with CONFIG_NETFILTER_XT_MATCH_RECENT",
        "-m recent",
        &["Clients stick to", "endpoint goes sticks", "Affinity ends"],
    ),
    extension(
        "addrtype",
        "IPv4 -m addrtype",
        "modprobe xt_addrtype, or a kernel with CONFIG_NETFILTER_XT_MATCH_ADDRTYPE",
        "-m addrtype",
        &[
            "At every address",
            "From the node to its own",
            "from a pod and from the node",
        ],
    ),
    extension(
        "conntrack",
        "IPv4 -m conntrack",
        "modprobe xt_conntrack, or a kernel with CONFIG_NETFILTER_XT_MATCH_CONNTRACK",
        "-m conntrack",
        &["From the node at 127.0.0.1", "not in the ranges, is not"],
    ),
    extension(
        "nfacct",
        "IPv4 -m nfacct",
        "modprobe xt_nfacct, or a kernel with CONFIG_NETFILTER_XT_MATCH_NFACCT",
        "-m nfacct",
        &["From the node at 127.0.0.1"],
    ),
    extension(
        "random-fully",
        "IPv4 -j MASQUERADE --random-fully",
        "Linux 3.13 or later, and iptables 1.6.2 or later",
        "--random-fully",
        &[],
    ),
    extension(
        "reject",
        "IPv4 -j REJECT",
        "modprobe ipt_REJECT, or a kernel with CONFIG_IP_NF_TARGET_REJECT",
        "-j REJECT",
        &["Without endpoints callers", "Other ports of a cluster IP"],
    ),
    extension(
        "mark",
        "IPv4 -m mark, -j MARK",
        "modprobe xt_mark, or a kernel with CONFIG_NETFILTER_XT_MARK",
        "-j MARK",
        &[],
    ),
    extension(
        "masquerade",
        "IPv4 -j MASQUERADE",
        "modprobe xt_MASQUERADE, or a kernel with CONFIG_NETFILTER_XT_TARGET_MASQUERADE",
        "-j MASQUERADE",
        &[],
    ),
    extension(
        "dnat",
        "IPv4 -j DNAT",
        "modprobe xt_nat, or a kernel with CONFIG_NETFILTER_XT_NAT",
        "-j DNAT",
        &[],
    ),
    extension(
        "redirect",
        "IPv4 -j REDIRECT",
        "modprobe xt_REDIRECT, or a kernel with CONFIG_NETFILTER_XT_TARGET_REDIRECT",
        "-j REDIRECT",
        &[],
    ),
    extension(
        "nat",
        "IPv4 nat",
        "package iptables, and iptable_nat (CONFIG_IP_NF_NAT) or nf_tables with nft_compat \
         (CONFIG_NF_TABLES, CONFIG_NFT_COMPAT, CONFIG_NFT_NAT)",
        "*nat",
        &[],
    ),
    extension(
        "set",
        "IPv4 -m set",
        "modprobe xt_set, or a kernel with CONFIG_NETFILTER_XT_SET",
        "-m set",
        &[],
    ),
    object(
        "ipvs",
        "IPVS",
        "modprobe ip_vs, or a kernel with CONFIG_IP_VS, CONFIG_IP_VS_PROTO_TCP and _UDP",
    ),
    object(
        "dummy",
        "dummy links",
        "modprobe dummy, or a kernel with CONFIG_DUMMY",
    ),
    object(
        "ipset-hash-ip",
        "ipset hash:ip",
        "modprobe ip_set_hash_ip, or a kernel with CONFIG_IP_SET_HASH_IP",
    ),
    object(
        "ipset-hash-ip-port",
        "ipset hash:ip,port",
        "modprobe ip_set_hash_ipport, or a kernel with CONFIG_IP_SET_HASH_IPPORT",
    ),
    object(
        "ipset-hash-ip-port-ip",
        "ipset hash:ip,port,ip",
        "modprobe ip_set_hash_ipportip, or a kernel with CONFIG_IP_SET_HASH_IPPORTIP",
    ),
    object(
        "ipset-hash-ip-port-net",
        "ipset hash:ip,port,net",
        "modprobe ip_set_hash_ipportnet, or a kernel with CONFIG_IP_SET_HASH_IPPORTNET",
    ),
    object(
        "ipset-bitmap-port",
        "ipset bitmap:port",
        "modprobe ip_set_bitmap_port, or a kernel with CONFIG_IP_SET_BITMAP_PORT",
    ),
    Thing {
        word: "ipvs-wrr",
        what: "IPVS scheduler wrr",
        get: "modprobe ip_vs_wrr, or a kernel with CONFIG_IP_VS_WRR",
        rules: None,
        cases: &["Weights"],
    },
    object(
        "nft",
        "IPv4 nf_tables",
        "modprobe nf_tables, or a kernel with CONFIG_NF_TABLES",
    ),
    extension(
        "nft-ct",
        "IPv4 nf_tables ct",
        "modprobe nft_ct, or a kernel with CONFIG_NFT_CT",
        "ct state",
        &[],
    ),
    extension(
        "nft-nat",
        "IPv4 nf_tables nat by maps",
        "modprobe nft_chain_nat nft_nat, or a kernel with CONFIG_NFT_NAT",
        "dnat ",
        &[],
    ),
    extension(
        "nft-masquerade",
        "IPv4 nf_tables masquerade",
        "modprobe nft_masq, or a kernel with CONFIG_NFT_MASQ",
        "masquerade",
        &[],
    ),
    object(
        "nft-ranges",
        "IPv4 nf_tables ranges in concatenations",
        "Linux 5.6 or later",
    ),
    extension(
        "nft-numgen",
        "IPv4 nf_tables numgen",
        "modprobe nft_numgen, or a kernel with CONFIG_NFT_NUMGEN",
        "numgen",
        &["equal share", "Weights of slices"],
    ),
    object(
        "nft-hash",
        "IPv4 nf_tables hash",
        "modprobe nft_hash, or a kernel with CONFIG_NFT_HASH",
    ),
    extension(
        "nft-fib",
        "IPv4 nf_tables fib",
        "modprobe nft_fib_ipv4 nft_fib_ipv6, or a kernel with CONFIG_NFT_FIB_IPV4 and CONFIG_NFT_FIB_IPV6",
        "fib ",
        &[
            "At every address",
            "From the node to its own",
            "from a pod and from the node",
            "A range of ports",
        ],
    ),
    extension(
        "nft-reject",
        "IPv4 nf_tables reject",
        "modprobe nft_reject_ipv4 nft_reject_ipv6, or a kernel with CONFIG_NFT_REJECT",
        "reject",
        &["Without endpoints callers", "Other ports of a cluster IP"],
    ),
    extension(
        "nft-dynset",
        "IPv4 nf_tables dynamic maps with timeouts",
        "Linux 4.3 or later",
        "update @",
        &["Clients stick to", "endpoint goes sticks", "Affinity ends"],
    ),
    // No Service of the cases is named by `--service-metrics`.
    object(
        "nft-counters",
        "IPv4 nf_tables sets that count",
        "Linux 5.7 or later; before 5.18 with CONFIG_NFT_COUNTER",
    ),
    extension(
        "nft-connlimit",
        "IPv4 nf_tables ct count",
        "modprobe nft_connlimit, or a kernel with CONFIG_NFT_CONNLIMIT",
        "ct count",
        &["Limits of connections"],
    ),
];
