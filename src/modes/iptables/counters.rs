//! Metrics of iptables mode, under kube-proxy's names.

use net::Family;
use netlink::nfacct;
use prometheus::{
    IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry,
    core::{Collector, Desc, Describer},
    proto::MetricFamily,
};
use xtables::rule::Table;

use super::{count::RuleCount, plan::names};
use crate::family_metrics::{FAMILY, counter, registered};

/// Metrics of iptables mode.
#[derive(Clone, Debug)]
pub struct Counters {
    total: IntGaugeVec,
    last: IntGaugeVec,
    failures: IntCounterVec,
    partial_failures: IntCounterVec,
}

/// Rules that could not be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A change, after which everything was compared.
    Partial,
    /// All rules of a family.
    Whole,
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
        let failures = |what: &str, help: &str| {
            let name = format!("kubeproxy_sync_proxy_rules_iptables_{what}_failures_total");
            counter(registry, &name, help)
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
            registry.register(Box::new(Account::new(account, name, help)?))?;
        }
        Ok(Counters {
            total: rules("total", "Rules of Tripod in the kernel.")?,
            last: rules("last", "Rules of Tripod that the last sync wrote.")?,
            failures: failures("restore", "Rules that could not be written.")?,
            partial_failures: failures(
                "partial_restore",
                "Changes that could not be written, after which everything was compared.",
            )?,
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

    /// Records that something could not be written.
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
    metric: Opts,
    desc: Desc,
}

impl Account {
    fn new(account: &'static str, name: &str, help: &str) -> prometheus::Result<Account> {
        let metric = Opts::new(name, help);
        let desc = metric.describe()?;
        Ok(Account {
            account,
            metric,
            desc,
        })
    }

    /// Returns the metric for that number of packets: a new one, as several clients may ask at
    /// once.
    fn shown(&self, packets: u64) -> Vec<MetricFamily> {
        let Ok(counter) = IntCounter::with_opts(self.metric.clone()) else {
            return Vec::new();
        };
        counter.inc_by(packets);
        counter.collect()
    }
}

impl Collector for Account {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.desc]
    }

    /// Returns nothing where the counter cannot be read, as kube-proxy does
    /// (`pkg/proxy/metrics`): 0 would be taken for a reset of the counter.
    fn collect(&self) -> Vec<MetricFamily> {
        match nfacct::packets(self.account) {
            Ok(packets) => self.shown(packets),
            Err(error) => {
                tracing::debug!("{} is not shown: {error}", self.metric.name);
                Vec::new()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use testing::in_namespace;

    use super::*;

    fn account() -> Account {
        Account::new("tripod-account", "packets_total", "Packets.").expect("a metric")
    }

    fn value(shown: &[MetricFamily]) -> f64 {
        shown[0].get_metric()[0].get_counter().get_value()
    }

    #[test]
    fn what_cannot_be_read_is_not_shown_as_nothing() {
        in_namespace(|| {
            let account = account();
            assert!(account.collect().is_empty());
            nfacct::create(&[account.account]).expect("a counter");
            assert_eq!(value(&account.collect()), 0.0);
        });
    }

    #[test]
    fn clients_that_ask_at_once_each_get_what_was_read_for_them() {
        let account = &account();
        std::thread::scope(|scope| {
            for packets in 1..=4u32 {
                scope.spawn(move || {
                    for _ in 0..10_000 {
                        let shown = account.shown(packets.into());
                        assert_eq!(value(&shown), f64::from(packets));
                    }
                });
            }
        });
    }
}
