//! Packets to node ports on loopback addresses that rules refuse and count, as kube-proxy 1.37 shows
//! them (KEP-6032).

use prometheus::{
    IntCounterVec, Opts, Registry,
    core::{Collector, Desc, Describer},
    proto::MetricFamily,
};

use super::{
    applied::TABLE,
    plan::{self, REFUSE_ON_LOOPBACK},
};
use net::{Family, PerFamily, Protocol};
use netlink::Error;
use nftables::{Rules, Table};

use crate::{config::NodePortAddresses, family_metrics::FAMILY};

/// The metric, whose values are read from the kernel when they are asked for.
pub struct RefusedOnLoopback {
    /// The protocols that are refused.
    protocols: PerFamily<Vec<Protocol>>,
    metric: Opts,
    desc: Desc,
}

impl RefusedOnLoopback {
    /// Registers the metric with `registry`, unless the feature gate is disabled.
    ///
    /// # Errors
    /// When `registry` has a metric of this name already.
    pub fn register(registry: &Registry, configured: &NodePortAddresses) -> prometheus::Result<()> {
        let protocols = PerFamily::each(|family| plan::refused_on_loopback(configured, family));
        if protocols.iter().all(|(_, protocols)| protocols.is_empty()) {
            return Ok(());
        }
        registry.register(Box::new(RefusedOnLoopback::new(protocols)?))
    }

    fn new(protocols: PerFamily<Vec<Protocol>>) -> prometheus::Result<RefusedOnLoopback> {
        let metric = Opts::new(
            "kubeproxy_nftables_localhost_nodeport_rejected_packets_total",
            "Packets to node ports on loopback addresses that were refused, because node ports of \
             the protocol are not relayed there.",
        )
        .variable_labels(vec![FAMILY.to_owned(), "protocol".to_owned()]);
        let desc = metric.describe()?;
        Ok(RefusedOnLoopback {
            protocols,
            metric,
            desc,
        })
    }

    /// Reads the number of packets of each protocol that were refused since the table was written;
    /// none if the rules are not there or do not count.
    fn packets(&self, family: Family) -> Result<Vec<(Protocol, u64)>, Error> {
        let protocols = self.protocols.get(family);
        let table = Table::new(family, TABLE);
        let counted = Rules::open()?.counted(&table, REFUSE_ON_LOOPBACK)?;
        if counted.len() != protocols.len() {
            return Ok(Vec::new());
        }
        let counted = counted.iter().map(|rule| rule.packets);
        Ok(protocols.iter().copied().zip(counted).collect())
    }
}

impl Collector for RefusedOnLoopback {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.desc]
    }

    /// Returns nothing of a family that cannot be read: 0 would be taken for a reset of the
    /// counter. The counter is a new one, as several clients may ask at once.
    fn collect(&self) -> Vec<MetricFamily> {
        let labels = [FAMILY, "protocol"];
        let Ok(counter) = IntCounterVec::new(self.metric.clone(), &labels) else {
            return Vec::new();
        };
        let mut shown = false;
        for family in Family::ALL {
            match self.packets(family) {
                Ok(packets) => {
                    for (protocol, count) in packets {
                        let labels = [family.name(), protocol.name()];
                        counter.with_label_values(&labels).inc_by(count);
                        shown = true;
                    }
                }
                Err(error) => {
                    tracing::debug!("{family}: {} is not shown: {error}", self.metric.name);
                }
            }
        }
        if shown { counter.collect() } else { Vec::new() }
    }
}
