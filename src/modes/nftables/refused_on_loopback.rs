//! Packets to node ports on loopback addresses that rules refuse and count, as kube-proxy 1.37 shows
//! them (KEP-6032).

use net::{Family, PerFamily, Protocol};
use netlink::Error;
use nftables::{Rules, Table};
use prometheus::{IntCounterVec, Opts, Registry};

use super::{
    applied::TABLE,
    plan::{self, REFUSE_ON_LOOPBACK},
};
use crate::{
    config::NodePortAddresses,
    family_metrics::{FAMILY, Scrape, at_scrape},
};

const NAME: &str = "kubeproxy_nftables_localhost_nodeport_rejected_packets_total";

/// Registers the metric with `registry`, unless the feature gate is disabled.
///
/// # Errors
/// When `registry` has a metric of this name already.
pub fn register(registry: &Registry, configured: &NodePortAddresses) -> prometheus::Result<()> {
    let refused = PerFamily::each(|family| plan::refused_on_loopback(configured, family));
    if refused.iter().all(|(_, protocols)| protocols.is_empty()) {
        return Ok(());
    }
    at_scrape(registry, move || read(&refused))
}

/// Returns nothing of a family that cannot be read: 0 would be taken for a reset of the counter.
fn read(refused: &PerFamily<Vec<Protocol>>) -> Scrape {
    let metric = Opts::new(
        NAME,
        "Packets to node ports on loopback addresses that were refused, because node ports of the \
         protocol are not relayed there.",
    );
    let counter = IntCounterVec::new(metric, &[FAMILY, "protocol"])?;
    for (family, protocols) in refused.iter() {
        match packets(family, protocols) {
            Ok(packets) => {
                for (protocol, count) in packets {
                    let labels = [family.name(), protocol.name()];
                    counter.with_label_values(&labels).inc_by(count);
                }
            }
            Err(error) => tracing::debug!("{family}: {NAME} is not shown: {error}"),
        }
    }
    Ok(vec![Box::new(counter)])
}

/// Reads the number of packets of each protocol that were refused since the table was written;
/// none if the rules are not there or do not count.
fn packets(family: Family, protocols: &[Protocol]) -> Result<Vec<(Protocol, u64)>, Error> {
    let table = Table::new(family, TABLE);
    let counted = Rules::open()?.counted(&table, REFUSE_ON_LOOPBACK)?;
    if counted.len() != protocols.len() {
        return Ok(Vec::new());
    }
    let counted = counted.iter().map(|rule| rule.packets);
    Ok(protocols.iter().copied().zip(counted).collect())
}
