//! Metrics of iptables mode, under kube-proxy's names.

use net::Family;
use netlink::nfacct;
use prometheus::{IntCounterVec, IntGaugeVec, Opts, Registry};
use xtables::rule::Table;

use super::{count::RuleCount, plan::names};
use crate::{
    family_metrics::{FAMILY, Scrape, at_scrape, registered},
    modes::{Unwritten, UnwrittenCounter},
};

/// Counters of what could not be written.
pub const UNWRITTEN: [UnwrittenCounter; 2] = [
    (
        Unwritten::Rules,
        "kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
        "Rules that could not be written.",
    ),
    (
        Unwritten::Changes,
        "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total",
        "Changes that could not be written, after which everything was compared.",
    ),
];

/// Metrics of iptables mode.
#[derive(Clone, Debug)]
pub struct Counters {
    total: IntGaugeVec,
    last: IntGaugeVec,
}

impl Counters {
    /// Returns counters at zero, which `registry` shows.
    ///
    /// # Errors
    /// When `registry` has metrics of these names already.
    pub fn register(registry: &Registry) -> prometheus::Result<Counters> {
        let rules = |what: &str, help: &str| {
            let name = format!("kubeproxy_sync_proxy_rules_iptables_{what}");
            let gauge = IntGaugeVec::new(Opts::new(name, help), &[FAMILY, "table"])?;
            registered(registry, gauge)
        };
        for (account, name, help) in [
            (
                names::INVALID_DROPPED,
                "kubeproxy_iptables_ct_state_invalid_dropped_packets_total",
                "Packets dropped because conntrack considers them invalid.",
            ),
            (
                names::LOCALHOST_ACCEPTED,
                "kubeproxy_iptables_localhost_nodeports_accepted_packets_total",
                "New connections to node ports on loopback addresses.",
            ),
        ] {
            at_scrape(registry, move || packets(account, name, help))?;
        }
        Ok(Counters {
            total: rules("total", "Rules of Tripod in the kernel.")?,
            last: rules("last", "Rules of Tripod that the last sync wrote.")?,
        })
    }

    /// Records that there are `total` rules, of which the last sync wrote `last`.
    pub(super) fn synced(&self, family: Family, total: RuleCount, last: RuleCount) {
        for (gauge, rules) in [(&self.total, total), (&self.last, last)] {
            for (table, rules) in [(Table::Filter, rules.filter), (Table::Nat, rules.nat)] {
                let labels = [&*family.to_string(), table.name()];
                gauge.with_label_values(&labels).set(rules as i64);
            }
        }
    }
}

/// Reads a counter of the kernel. Returns no value where it cannot be read, as kube-proxy does
/// (`pkg/proxy/metrics`): 0 would be taken for a reset of the counter.
fn packets(account: &str, name: &str, help: &str) -> Scrape {
    let counter = IntCounterVec::new(Opts::new(name, help), &[])?;
    match nfacct::packets(account) {
        Ok(packets) => counter.with_label_values::<&str>(&[]).inc_by(packets),
        Err(error) => tracing::debug!("{name} is not shown: {error}"),
    }
    Ok(vec![Box::new(counter)])
}

#[cfg(test)]
mod tests {
    use testing::in_namespace;

    use super::*;

    #[test]
    fn what_cannot_be_read_is_not_shown_as_nothing() {
        in_namespace(|| {
            let registry = Registry::new();
            let account = "tripod-account";
            at_scrape(&registry, || packets(account, "packets_total", "Packets."))
                .expect("a metric");
            assert!(registry.gather().is_empty());
            nfacct::create(&[account]).expect("a counter");
            let shown = registry.gather();
            assert_eq!(shown[0].get_metric()[0].get_counter().get_value(), 0.0);
        });
    }
}
