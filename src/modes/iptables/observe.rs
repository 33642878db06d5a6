//! How the rules of this mode in the kernel are compared.

use xtables::{observed::Interest, rule::Table};

use super::plan::names;

/// How names of kube-proxy's chains before 1.24 begin that later ones do not have.
const OLD: &str = "KUBE-XLB-";

/// Returns how a chain is compared, which does not depend on its table.
pub fn interest(_: Table, chain: &str) -> Interest {
    match chain {
        names::SERVICES
        | names::EXTERNAL_SERVICES
        | names::NODE_PORTS
        | names::PROXY_FIREWALL
        | names::CANARY => Interest::ByRule,
        names::POSTROUTING | names::MARK_MASQ | names::FORWARD => Interest::Whole,
        names::FIREWALL => Interest::Joint,
        _ if chain.starts_with(names::INDEX) => Interest::ByRule,
        _ if chain.starts_with(OLD) => Interest::Whole,
        _ if names::OWN_PREFIXES
            .iter()
            .any(|prefix| chain.starts_with(prefix)) =>
        {
            Interest::Whole
        }
        _ => Interest::Foreign,
    }
}

/// The [distance] of chains of parts; those of endpoints follow.
pub const PART: u8 = 4;

/// Returns how far a chain is from those that ServicePorts share: nearer chains jump to
/// it.
pub fn distance(chain: &str) -> u8 {
    let is = |prefix: &str| chain.starts_with(prefix);
    match () {
        () if is(names::INDEX) => 0,
        () if is("KUBE-SEP-") => 5,
        () if names::is_of_part(chain) => PART,
        () if is("KUBE-SVC-") || is("KUBE-SVL-") => 3,
        () if is("KUBE-EXT-") || is("KUBE-XLB-") => 2,
        () => 1,
    }
}
