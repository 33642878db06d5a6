//! The addresses of this node that serve node ports.

use std::{collections::BTreeSet, io, net::IpAddr, sync::Arc};

use netlink::{
    Error,
    addresses::{Address, AddressChanges, Change},
};

use crate::{
    modes::ipvs,
    node::{self, NodePorts, Served},
    runner::NodeAddresses,
    services::Node,
};

/// Observes which addresses serve node ports, and when they change.
pub(super) struct Addresses {
    changes: AddressChanges,
    node_ports: Arc<NodePorts>,
    /// The node's addresses when they were last listed; `None` if not known.
    seen: Option<Vec<Address>>,
}

impl Addresses {
    /// Listens for changes in the current network namespace.
    ///
    /// # Errors
    /// When no netlink socket can be opened.
    pub(super) fn open(node_ports: Arc<NodePorts>) -> Result<Addresses, Error> {
        Ok(Addresses {
            changes: AddressChanges::open(Some(ipvs::plan::LINK))?,
            node_ports,
            seen: None,
        })
    }
}

impl NodeAddresses for Addresses {
    fn serving_node_ports(&mut self, node: Option<&Node>) -> io::Result<BTreeSet<IpAddr>> {
        self.node_ports.update(node);
        self.seen = None;
        let own = node::addresses::list().map_err(io::Error::other)?;
        let addresses = own.iter().map(|address| address.address);
        let serving = served_of(addresses, &self.node_ports.served());
        self.seen = Some(own);
        Ok(serving)
    }

    async fn changed(&mut self) -> io::Result<()> {
        // An address that was removed and added again counts as a change, because routes or sockets
        // that needed it may be gone. No other event that leaves the addresses as they were causes
        // work: neither lifetimes that IPv6 routers renew, nor the many addresses that ipvs mode
        // itself adds at its start.
        while self.changes.changed().await? == Change::Other {
            let now = node::addresses::list().ok();
            if now.is_none() || now != self.seen {
                break;
            }
        }
        Ok(())
    }
}

/// This node's own addresses that are `served`. They include neither addresses of Services nor
/// link-local addresses, which other hosts cannot call without naming the link.
///
/// # Errors
/// When the kernel cannot list them.
pub(super) fn serving(served: &Served) -> Result<BTreeSet<IpAddr>, Error> {
    Ok(served_of(node::addresses::own()?.into_iter(), served))
}

fn served_of(own: impl Iterator<Item = IpAddr>, served: &Served) -> BTreeSet<IpAddr> {
    own.filter(|ip| served.contains(ip)).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use testing::{block_on, in_namespace, ip};
    use tokio::time::timeout;

    use super::*;
    use crate::config::NodePortAddresses;

    #[test]
    fn only_what_makes_a_difference_counts_as_a_change() {
        in_namespace(|| {
            block_on(async {
                let node_ports = NodePorts::new(&NodePortAddresses::default(), None);
                let mut addresses = Addresses::open(Arc::new(node_ports)).unwrap();
                let mut all = AddressChanges::open(None).unwrap();
                ip("addr add 2001:db8::1/64 dev lo nodad valid_lft 1000 preferred_lft 1000");
                addresses.changed().await.unwrap();
                addresses.serving_node_ports(None).unwrap();
                all.changed().await.unwrap();
                // The effect of a router advertisement.
                ip("addr change 2001:db8::1/64 dev lo nodad valid_lft 2000 preferred_lft 2000");
                tokio::select! {
                    biased;
                    changed = addresses.changed() => panic!("{changed:?} of the same addresses"),
                    noticed = all.changed() => assert_eq!(noticed.unwrap(), Change::Other),
                }
                for step in [
                    "addr add 192.0.2.1/32 dev lo",
                    "addr change 2001:db8::1/64 dev lo nodad valid_lft 2000 preferred_lft 0",
                    "addr del 192.0.2.1/32 dev lo",
                ] {
                    ip(step);
                    let changed = timeout(Duration::from_secs(10), addresses.changed());
                    changed.await.expect(step).unwrap();
                    addresses.serving_node_ports(None).unwrap();
                }
                // The address is briefly absent.
                ip("addr del 2001:db8::1/64 dev lo");
                ip("addr add 2001:db8::1/64 dev lo nodad valid_lft 2000 preferred_lft 0");
                let changed = timeout(Duration::from_secs(10), addresses.changed());
                changed.await.expect("it was away").unwrap();
            });
        });
    }
}
