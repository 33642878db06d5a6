//! Removes everything that iptables mode ever installed, in any process: this one, an earlier one,
//! or kube-proxy.

use net::Family;
use netlink::nfacct;
use xtables::{
    remove::{Owned, OwnedChain, Preserved, SharedChain},
    rule::Table,
    words::Line,
};

use super::{Error, observe::interest, plan::names};
use crate::{
    config::ModeName,
    modes::{
        SyncError,
        cleanup::{Cleanup, Running, translated},
    },
};

/// How the one rule of KUBE-FIREWALL begins that kube-proxy writes too; any
/// other is the kubelet's.
const MARTIANS: &str = "! -s 127.0.0.0/8 -d 127.0.0.0/8 ";

/// The chains of iptables mode. Table filter is cleaned after nat: rules that keep clients out stay
/// until nothing is translated any more.
pub const OWNED: Owned = Owned {
    tables: &[Table::Mangle, Table::Nat, Table::Filter],
    interest,
    shared: Some(SharedChain {
        table: Table::Filter,
        name: names::FIREWALL,
        signs: &xtables::HINTS,
        is_others: is_kubelets,
    }),
};

/// The objects that iptables mode installs, in both engines of the kernel.
pub struct Installed;

impl Cleanup for Installed {
    async fn is_there(&self, running: &Running) -> Result<bool, SyncError> {
        let preserved = running.preserved(ModeName::Iptables);
        Ok(OWNED.is_there(&preserved).await.map_err(Error::from)?)
    }

    /// Removes the rules that jump to its chains, and leaves the chains.
    ///
    /// Connection tracking and nat work in a network namespace for as long as some
    /// rule asks for them (`nf_ct_netns_put`), and without them every connection
    /// ends that needs translation.
    async fn retire(&self, running: &Running) -> Result<usize, SyncError> {
        let (remaining, unlinked) = OWNED.unlink(&running.without_rules()).await;
        unlinked.map_err(Error::from)?;
        Ok(translated(&remaining)?)
    }

    async fn cleanup(&self, running: &Running) -> Result<(), SyncError> {
        let preserved = running.preserved(ModeName::Iptables);
        let removed = OWNED.remove(&Family::ALL, &preserved).await;
        if !preserved.has_all_of_some() {
            for account in [names::INVALID_DROPPED, names::LOCALHOST_ACCEPTED] {
                // A kernel without counters has none; a counter that another process uses stays
                // (EBUSY).
                let _ = nfacct::delete(account);
            }
        }
        Ok(removed.map_err(Error::from)?)
    }

    fn may_need_programs(&self) -> bool {
        OWNED.may_be_there()
    }
}

/// Lists the chains of iptables mode that are there, by any process.
///
/// # Errors
/// When some cannot be read.
pub async fn chains() -> Result<Vec<OwnedChain>, xtables::Error> {
    OWNED.list(&Preserved::nothing()).await
}

/// Returns whether packets reach the rules of Services, or may: not everything can be read. The
/// rules may be those of iptables mode, or of ipvs mode of kube-proxy.
pub async fn may_serve() -> bool {
    let led_to = OWNED.is_led_to(Table::Nat, names::SERVICES).await;
    led_to.unwrap_or(true)
}

/// Returns true for a line of `iptables-save` that only the kubelet causes; where it
/// is, KUBE-FIREWALL is its own.
pub fn is_kubelets(line: &str) -> bool {
    match Line::parse(line) {
        Some(Line::Chain(name)) => xtables::HINTS.contains(&name),
        Some(Line::Rule { chain, words }) => {
            chain == names::FIREWALL && !words.starts_with(MARTIANS)
        }
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use testing::{block_on, in_namespace, sh};

    use super::*;

    #[test]
    fn the_kubelet_is_known_by_its_chains_and_rules() {
        let cases = [
            (":KUBE-IPTABLES-HINT - [0:0]", true),
            (":KUBE-KUBELET-CANARY - [0:0]", true),
            (":KUBE-FIREWALL - [0:0]", false),
            (":KUBE-PROXY-CANARY - [0:0]", false),
            (
                "-A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP",
                true,
            ),
            (
                "-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m conntrack \
                 ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP",
                false,
            ),
            ("-A KUBE-SERVICES -j ACCEPT", false),
        ];
        for (line, kubelet) in cases {
            assert_eq!(is_kubelets(line), kubelet, "{line}");
        }
    }

    #[test]
    fn chains_to_which_nothing_leads_serve_nobody() {
        in_namespace(|| {
            let serves = || block_on(may_serve());
            assert!(!serves());
            sh("iptables -t nat -N KUBE-SERVICES; iptables -t nat -A KUBE-SERVICES -j RETURN");
            assert!(!serves());
            sh("iptables -t nat -A PREROUTING -j KUBE-SERVICES");
            assert!(serves());
            block_on(Installed.retire(&Running::default())).unwrap();
            assert!(!serves() && sh("iptables-save").contains(":KUBE-SERVICES"));
        });
    }

    fn cleaned() -> Result<(), SyncError> {
        block_on(Installed.cleanup(&Running::default()))
    }

    #[test]
    fn what_cannot_be_read_is_not_reported_as_removed() {
        in_namespace(|| {
            let of_nft = "nft 'add table ip nat
                add chain ip nat PREROUTING { type nat hook prerouting priority -100; }
                add rule ip nat PREROUTING tcp dport 99 dnat to 10.2.2.2:9'";
            sh(of_nft);
            sh("iptables-nft -N KUBE-SVC-OLD");
            cleaned().expect("nothing there is ours");
            sh("! iptables-nft-save | grep -q KUBE-SVC-OLD");
            sh("nft delete table ip nat; iptables-nft -t nat -N KUBE-SVC-OLD");
            sh(of_nft);
            sh("iptables-nft -N KUBE-SVC-OLD");
            let error = cleaned().unwrap_err().to_string();
            assert!(
                error.contains("table nat holds rules of nft's own"),
                "{error}"
            );
            sh("! iptables-nft-save | grep -q KUBE-SVC-OLD");
        });
    }
    #[test]
    fn thousands_of_chains_go() {
        in_namespace(|| {
            sh("{ echo '*nat'; echo ':MINE - [0:0]'
                 for i in $(seq 2500); do echo \":KUBE-SEP-$i - [0:0]\"; done
                 for i in $(seq 2500); do echo \"-A KUBE-SEP-$i -j RETURN\"; done
                 echo '-A OUTPUT -j KUBE-SEP-1'; echo '-A MINE -j KUBE-SEP-2'; echo COMMIT
               } | iptables-nft-restore");
            cleaned().unwrap();
            sh("iptables-nft-save -t nat | grep -c KUBE-SEP | grep -qx 2
                iptables-nft-save -t nat | grep -qx -- '-A MINE -j KUBE-SEP-2'");
        });
    }
}
