//! Packets to node ports on loopback addresses that rules refuse and count, as kube-proxy 1.37 shows
//! them (KEP-6032).

use net::{Family, PerFamily, Protocol};
use netlink::Error;
use nftables::{Rules, Table};
use prometheus::Registry;

use super::{
    applied::TABLE,
    plan::{self, REFUSE_ON_LOOPBACK},
};
use crate::{
    config::NodePortAddresses,
    family_metrics::{FAMILY, read_counter},
};

/// Registers a counter of these packets with `registry`, unless the feature gate is disabled.
///
/// # Errors
/// When `registry` has a metric of this name already.
pub fn count_refused_on_loopback(
    registry: &Registry,
    configured: &NodePortAddresses,
) -> prometheus::Result<()> {
    let refused = PerFamily::each(|family| plan::refused_on_loopback(configured, family));
    if refused.iter().all(|(_, protocols)| protocols.is_empty()) {
        return Ok(());
    }
    let of_family = |(family, protocols): (Family, &Vec<Protocol>)| {
        let packets = packets(family, protocols).unwrap_or_else(|error| {
            tracing::debug!("{family}: refused packets are not shown: {error}");
            Vec::new()
        });
        let packets = packets.into_iter();
        packets.map(move |(protocol, count)| (vec![family.name(), protocol.name()], count))
    };
    read_counter(
        registry,
        "kubeproxy_nftables_localhost_nodeport_rejected_packets_total",
        "Packets to node ports on loopback addresses that were refused, because node ports of the \
         protocol are not relayed there.",
        &[FAMILY, "protocol"],
        move || refused.iter().flat_map(of_family).collect(),
    )
}

/// Reads the number of packets of each of `protocols` that were refused since the table was written;
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
