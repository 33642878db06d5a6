//! The matches and targets of iptables that rules may use.

use enumset::EnumSetType;
use net::Family;

/// A match or target of iptables.
#[derive(Debug, EnumSetType, Hash, PartialOrd, Ord)]
pub enum Extension {
    /// The match `-m comment`.
    Comment,
    /// The match `-m statistic`.
    Statistic,
    /// The match `-m recent`.
    Recent,
    /// The match `-m addrtype`.
    Addrtype,
    /// The match `-m mark` and the target `-j MARK`.
    Mark,
    /// The match `-m conntrack`.
    Conntrack,
    /// The match `-m nfacct`.
    Nfacct,
    /// The match `-m set`.
    Set,
    /// The match `-m physdev`.
    Physdev,
    /// The target `-j REJECT`.
    Reject,
    /// The target `-j DNAT`.
    Dnat,
    /// The target `-j MASQUERADE`.
    Masquerade,
    /// The target `-j MASQUERADE --random-fully`.
    RandomFully,
    /// The target `-j REDIRECT`.
    Redirect,
    /// The match `-m socket`, in table mangle.
    Socket,
    /// The match `-m sctp`.
    Sctp,
}

impl Extension {
    /// All of them.
    pub const ALL: [Extension; 16] = [
        Extension::Comment,
        Extension::Statistic,
        Extension::Recent,
        Extension::Addrtype,
        Extension::Mark,
        Extension::Conntrack,
        Extension::Nfacct,
        Extension::Set,
        Extension::Physdev,
        Extension::Reject,
        Extension::Dnat,
        Extension::Masquerade,
        Extension::RandomFully,
        Extension::Redirect,
        Extension::Socket,
        Extension::Sctp,
    ];

    /// Returns the match or target as a rule spells it.
    pub fn spelling(self) -> &'static str {
        self.facts(Family::V4).0
    }

    /// Returns the feature in one word.
    pub fn word(self) -> &'static str {
        match self {
            Extension::Comment => "comment",
            Extension::Statistic => "statistic",
            Extension::Recent => "recent",
            Extension::Addrtype => "addrtype",
            Extension::Mark => "mark",
            Extension::Conntrack => "conntrack",
            Extension::Nfacct => "nfacct",
            Extension::Set => "set",
            Extension::Physdev => "physdev",
            Extension::Reject => "reject",
            Extension::Dnat => "dnat",
            Extension::Masquerade => "masquerade",
            Extension::RandomFully => "random-fully",
            Extension::Redirect => "redirect",
            Extension::Socket => "socket",
            Extension::Sctp => "sctp",
        }
    }

    /// Returns the match or target as a rule spells it, the module and the
    /// kernel option (`net/netfilter/Kconfig`, `net/ipv4/netfilter/Kconfig`).
    pub fn facts(self, family: Family) -> (&'static str, &'static str, &'static str) {
        let v6 = family == Family::V6;
        match self {
            Extension::Comment => (
                "-m comment",
                "xt_comment",
                "CONFIG_NETFILTER_XT_MATCH_COMMENT",
            ),
            Extension::Statistic => (
                "-m statistic",
                "xt_statistic",
                "CONFIG_NETFILTER_XT_MATCH_STATISTIC",
            ),
            Extension::Recent => ("-m recent", "xt_recent", "CONFIG_NETFILTER_XT_MATCH_RECENT"),
            Extension::Addrtype => (
                "-m addrtype",
                "xt_addrtype",
                "CONFIG_NETFILTER_XT_MATCH_ADDRTYPE",
            ),
            Extension::Mark => ("-m mark, -j MARK", "xt_mark", "CONFIG_NETFILTER_XT_MARK"),
            Extension::Conntrack => (
                "-m conntrack",
                "xt_conntrack",
                "CONFIG_NETFILTER_XT_MATCH_CONNTRACK",
            ),
            Extension::Nfacct => ("-m nfacct", "xt_nfacct", "CONFIG_NETFILTER_XT_MATCH_NFACCT"),
            Extension::Set => ("-m set", "xt_set", "CONFIG_NETFILTER_XT_SET"),
            Extension::Physdev => (
                "-m physdev",
                "xt_physdev",
                "CONFIG_NETFILTER_XT_MATCH_PHYSDEV",
            ),
            Extension::Reject if v6 => ("-j REJECT", "ip6t_REJECT", "CONFIG_IP6_NF_TARGET_REJECT"),
            Extension::Reject => ("-j REJECT", "ipt_REJECT", "CONFIG_IP_NF_TARGET_REJECT"),
            Extension::Dnat => ("-j DNAT", "xt_nat", "CONFIG_NETFILTER_XT_NAT"),
            Extension::Masquerade => (
                "-j MASQUERADE",
                "xt_MASQUERADE",
                "CONFIG_NETFILTER_XT_TARGET_MASQUERADE",
            ),
            Extension::RandomFully => (
                "-j MASQUERADE --random-fully",
                "xt_MASQUERADE",
                "Linux 3.13 or later, and iptables 1.6.2 or later",
            ),
            Extension::Redirect => (
                "-j REDIRECT",
                "xt_REDIRECT",
                "CONFIG_NETFILTER_XT_TARGET_REDIRECT",
            ),
            Extension::Socket => ("-m socket", "xt_socket", "CONFIG_NETFILTER_XT_MATCH_SOCKET"),
            Extension::Sctp => ("-m sctp", "xt_sctp", "CONFIG_NETFILTER_XT_MATCH_SCTP"),
        }
    }
}
