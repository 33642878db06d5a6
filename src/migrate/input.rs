//! The node's firewall, if a mode sends packets to Services through it that did not pass it
//! before; pure. docs/userspace.md says which packets a firewall has to accept.

use super::report::Rows;
use crate::config::ModeName;

/// Adds that packets to Services pass hook INPUT in `mode`, or pass it in another way than in mode
/// `was` of kube-proxy. `dropping` are the chains at that hook that drop packets which none of
/// their rules accepts; `None` if unknown.
pub(super) fn rows(was: ModeName, mode: ModeName, dropping: Option<&[String]>, rows: &mut Rows) {
    let passes = |mode| matches!(mode, ModeName::Ipvs | ModeName::Userspace);
    if !passes(mode) || was == mode {
        return;
    }
    let before = if passes(was) {
        "sends packets to Services through it, with the addresses of Services"
    } else {
        "translates packets to Services before it: they pass hook FORWARD, except those to \
         endpoints with the node's own address"
    };
    let after = match mode {
        ModeName::Ipvs => "sends packets to Services through it, with the addresses of Services",
        _ => {
            "sends packets to Services through it; with redirect capture they are translated to \
             addresses of the node first"
        }
    };
    let accept = "docs/userspace.md (The node's firewall) says what to accept in each mode";
    let (after, to_do) = match dropping {
        Some([]) => (
            format!("{after}; no chain of this node has policy DROP there"),
            format!(
                "nothing, unless rules of a firewall, such as a zone of firewalld, drop or reject \
                 unknown packets there: {accept}"
            ),
        ),
        Some(chains) => (
            format!(
                "{after}. This node drops there what no rule accepts, so that pods and other hosts \
                 reach no Service: {}",
                chains.join(", ")
            ),
            format!("accept packets to Services in each of these chains before the swap: {accept}"),
        ),
        None => (
            after.to_owned(),
            format!(
                "look for a firewall that drops unknown packets there (policy DROP of chain INPUT, \
                 ufw, a zone of firewalld), so that pods and other hosts reach no Service: {accept}"
            ),
        ),
    };
    rows.differs(["hook INPUT, the node's firewall", before, &after, &to_do]);
}
