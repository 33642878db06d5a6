//! What iptables mode counts, under kube-proxy's names.

use prometheus::{
    Counter, IntCounterVec, IntGaugeVec, Opts, Registry,
    core::{Collector, Desc},
    proto::MetricFamily,
};

use super::{count::RuleCount, plan::names};
use crate::{
    kernel::{nfacct, xtables::rule::Table},
    net::Family,
};

/// Metrics of iptables mode.
#[derive(Clone, Debug)]
pub struct Counters {
    total: IntGaugeVec,
    last: IntGaugeVec,
    failures: IntCounterVec,
    partial_failures: IntCounterVec,
}

/// What could not be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A change, after which everything was compared.
    Partial,
    /// All rules of a family.
    Whole,
}

impl Counters {
    /// All at zero, and shown by `registry`.
    ///
    /// # Errors
    /// When `registry` has metrics of these names already.
    pub fn register(registry: &Registry) -> prometheus::Result<Counters> {
        let rules = |what: &str, help: &str| {
            let name = format!("kubeproxy_sync_proxy_rules_iptables_{what}");
            let gauge = IntGaugeVec::new(Opts::new(name, help), &["ip_family", "table"])?;
            registry.register(Box::new(gauge.clone()))?;
            Ok::<_, prometheus::Error>(gauge)
        };
        let failures = |what: &str, help: &str| {
            let name = format!("kubeproxy_sync_proxy_rules_iptables_{what}_failures_total");
            let counter = IntCounterVec::new(Opts::new(name, help), &["ip_family"])?;
            // Without a value it would not be shown before the first failure, which no
            // rate could tell from none.
            for family in Family::ALL {
                counter.with_label_values(&[family.name()]);
            }
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        for (account, name, help) in [
            (
                names::INVALID_DROPPED,
                "kubeproxy_iptables_ct_state_invalid_dropped_packets_total",
                "Packets dropped because conntrack takes them for invalid.",
            ),
            (
                names::LOCALHOST_ACCEPTED,
                "kubeproxy_iptables_localhost_nodeports_accepted_packets_total",
                "New connections to node ports on loopback addresses.",
            ),
        ] {
            let counter = Counter::new(name, help)?;
            registry.register(Box::new(Account { account, counter }))?;
        }
        Ok(Counters {
            total: rules("total", "Rules of ours that there are.")?,
            last: rules("last", "Rules of ours that the last sync wrote.")?,
            failures: failures("restore", "Rules that could not be written.")?,
            partial_failures: failures(
                "partial_restore",
                "Changes that could not be written, after which everything was compared.",
            )?,
        })
    }

    /// There are `total` rules, of which the last sync wrote `last`.
    pub(super) fn synced(&self, family: Family, total: RuleCount, last: RuleCount) {
        for (gauge, rules) in [(&self.total, total), (&self.last, last)] {
            for (table, rules) in [(Table::Filter, rules.filter), (Table::Nat, rules.nat)] {
                let labels = [&*family.to_string(), table.name()];
                gauge.with_label_values(&labels).set(rules as i64);
            }
        }
    }

    /// Something could not be written.
    pub(super) fn failed(&self, family: Family, failure: Failure) {
        let counter = match failure {
            Failure::Partial => &self.partial_failures,
            Failure::Whole => &self.failures,
        };
        counter.with_label_values(&[&*family.to_string()]).inc();
    }
}

/// A counter of the kernel's, read when it is asked for.
struct Account {
    account: &'static str,
    counter: Counter,
}

impl Collector for Account {
    fn desc(&self) -> Vec<&Desc> {
        self.counter.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.counter.reset();
        self.counter
            .inc_by(nfacct::packets(self.account).unwrap_or(0) as f64);
        self.counter.collect()
    }
}
