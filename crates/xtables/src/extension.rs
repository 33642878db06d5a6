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
    /// Returns the match or target as a rule spells it.
    pub fn spelling(self) -> String {
        self.facts(Family::V4).0
    }

    /// Returns the feature in one word, by which users name it: the variant in lower case.
    pub fn word(self) -> String {
        match self {
            Extension::RandomFully => "random-fully".to_owned(),
            _ => format!("{self:?}").to_lowercase(),
        }
    }

    /// Returns the match or target as a rule spells it, the module and the
    /// kernel option (`net/netfilter/Kconfig`, `net/ipv4/netfilter/Kconfig`).
    pub fn facts(self, family: Family) -> (String, String, String) {
        let (spelling, module, option) = match (self, family) {
            (Extension::Mark, _) => ("-m mark, -j MARK", "xt_mark", "CONFIG_NETFILTER_XT_MARK"),
            (Extension::Set, _) => ("-m set", "xt_set", "CONFIG_NETFILTER_XT_SET"),
            (Extension::Reject, Family::V4) => {
                ("-j REJECT", "ipt_REJECT", "CONFIG_IP_NF_TARGET_REJECT")
            }
            (Extension::Reject, Family::V6) => {
                ("-j REJECT", "ip6t_REJECT", "CONFIG_IP6_NF_TARGET_REJECT")
            }
            (Extension::Dnat, _) => ("-j DNAT", "xt_nat", "CONFIG_NETFILTER_XT_NAT"),
            (Extension::Masquerade, _) => (
                "-j MASQUERADE",
                "xt_MASQUERADE",
                "CONFIG_NETFILTER_XT_TARGET_MASQUERADE",
            ),
            (Extension::RandomFully, _) => (
                "-j MASQUERADE --random-fully",
                "xt_MASQUERADE",
                "Linux 3.13 or later, and iptables 1.6.2 or later",
            ),
            (Extension::Redirect, _) => (
                "-j REDIRECT",
                "xt_REDIRECT",
                "CONFIG_NETFILTER_XT_TARGET_REDIRECT",
            ),
            _ => {
                let word = self.word();
                let option = format!("CONFIG_NETFILTER_XT_MATCH_{}", word.to_uppercase());
                return (format!("-m {word}"), format!("xt_{word}"), option);
            }
        };
        (spelling.to_owned(), module.to_owned(), option.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use enumset::EnumSet;

    use super::*;

    /// Flags, metrics and stored findings have these words.
    #[test]
    fn words_stay_as_users_know_them() {
        let words: Vec<String> = EnumSet::all().iter().map(Extension::word).collect();
        let expected = "comment statistic recent addrtype mark conntrack nfacct set physdev reject \
                        dnat masquerade random-fully redirect socket sctp";
        assert_eq!(words.join(" "), expected);
    }
}
