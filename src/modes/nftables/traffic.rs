//! The kernel's counters of ServicePorts.

use std::{collections::BTreeSet, net::SocketAddr, sync::Arc};

use enumset::EnumSet;
use hashbrown::{HashMap, HashSet};
use net::{Family, PerFamily};
use netlink::Error;
use nftables::{Counted, Rules, Table};

use super::{
    TABLE,
    plan::{Counting, Limits, Role, SetId, Sets, counting},
};
use crate::services::{Namespaces, Preferences, ServiceName, ServicePort};

/// The traffic of an endpoint of a ServicePort since the endpoint was added, or since
/// the table was last written as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointTraffic {
    /// Connections, or flows of UDP.
    pub connections: u64,
    /// Bytes of packets that clients sent, from the IP header on.
    pub from_clients: u64,
    /// Bytes of packets that clients were sent.
    pub to_clients: u64,
}

/// Connections to a Service that were refused since its limits were written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OverLimit {
    /// Because the Service had as many as it may have.
    pub of_service: u64,
    /// Because their client had as many as it may have.
    pub of_client: u64,
}

/// Traffic that was read for ServicePorts.
pub struct Read {
    /// The traffic of the endpoints of each.
    pub endpoints: Vec<HashMap<SocketAddr, EndpointTraffic>>,
    /// The refused connections of the Service of each; `None`: it has no limits, or they are not
    /// known.
    pub over_limit: Vec<Option<OverLimit>>,
    /// An error: the kernel refused for a family, or others keep changing its table.
    pub outcome: Result<(), Error>,
}

/// Reads the kernel's counters.
pub struct Traffic {
    rules: Rules,
    sets: PerFamily<Sets>,
    counted: Namespaces,
}

impl Traffic {
    /// Opens the counters of Services in the namespaces `counted`, in the network namespace of the
    /// calling thread.
    ///
    /// # Errors
    /// When no netlink socket can be opened.
    pub fn open(counted: Namespaces) -> Result<Traffic, Error> {
        Ok(Traffic {
            rules: Rules::open()?,
            sets: PerFamily::each(Sets::new),
            counted,
        })
    }

    /// Reads the traffic of each endpoint of each of `ports`, in their order; nothing for those
    /// that are not counted, or whose family cannot be read.
    pub fn of(&mut self, ports: &[&Arc<ServicePort>]) -> Read {
        let elements = |port: &&Arc<ServicePort>| {
            if self.counted.contain(&port.name.service.namespace) {
                counting(port)
            } else {
                Vec::new()
            }
        };
        let counting: Vec<_> = ports.iter().map(elements).collect();
        let (mut found, mut outcome) = (PerFamily::default(), Ok(()));
        for family in Family::ALL {
            let of_family = ports.iter().zip(&counting);
            let of_family = of_family.filter(|(port, _)| port.name.family == family);
            let sets = of_family.flat_map(|(_, counting)| counting.iter().map(|one| one.set));
            match self.read(family, sets.collect()) {
                Ok(of_family) => *found.get_mut(family) = of_family,
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        let of_port = |(port, counting): (&&Arc<ServicePort>, Vec<Counting>)| {
            let found: &Found = found.get(port.name.family);
            let mut endpoints: HashMap<SocketAddr, EndpointTraffic> = HashMap::new();
            for one in counting {
                let Some(counted) = found.get(&one.set).and_then(|set| set.get(&*one.key)) else {
                    continue;
                };
                let traffic = endpoints.entry(one.endpoint).or_default();
                match one.set {
                    SetId::Of(Role::Connections, _) => traffic.connections += counted.packets,
                    SetId::Of(Role::ToEndpoints, _) => traffic.from_clients += counted.bytes,
                    SetId::Of(Role::FromEndpoints, _) => traffic.to_clients += counted.bytes,
                    _ => {}
                }
            }
            endpoints
        };
        let (over_limit, read) = match self.over_limit(ports) {
            Ok(found) => (found, Ok(())),
            Err(error) => (HashMap::new(), Err(error)),
        };
        let of_service = |port: &&Arc<ServicePort>| over_limit.get(&port.name.service).copied();
        Read {
            over_limit: ports.iter().map(of_service).collect(),
            endpoints: ports.iter().zip(counting).map(of_port).collect(),
            outcome: outcome.and(read),
        }
    }

    /// Reads the connections to the Services of `ports` that were refused, in both families.
    fn over_limit(
        &mut self,
        ports: &[&Arc<ServicePort>],
    ) -> Result<HashMap<ServiceName, OverLimit>, Error> {
        let mut found: HashMap<ServiceName, OverLimit> = HashMap::new();
        let limits = ports.iter();
        // Where a kernel lacks something, the chain is not there.
        let limits = limits.filter_map(|port| Limits::of(port, EnumSet::all()));
        let limits: HashSet<Limits> = limits.collect();
        for limits in limits {
            let table = Table::new(limits.family, TABLE);
            let counted = self.rules.counted(&table, &limits.chain_name())?;
            if counted.is_empty() {
                continue;
            }
            let sum = found.entry(limits.service.clone()).or_default();
            for (annotation, counted) in limits.annotations().zip(counted) {
                match annotation {
                    Preferences::MAX_CONNECTIONS => sum.of_service += counted.packets,
                    _ => sum.of_client += counted.packets,
                }
            }
        }
        Ok(found)
    }

    /// Reads those of the sets `ids` that exist.
    fn read(&mut self, family: Family, ids: BTreeSet<SetId>) -> Result<Found, Error> {
        let mut found = Found::new();
        if ids.is_empty() {
            return Ok(found);
        }
        let table = Table::new(family, TABLE);
        let listed = self.rules.sets(&table)?;
        for id in ids {
            let set = self.sets.get(family).get(id);
            if !listed.iter().any(|listed| listed.is(set)) {
                continue;
            }
            let elements = self.rules.elements(&table, set)?.into_iter();
            let counted = elements.filter_map(|element| Some((element.key, element.counted?)));
            found.insert(id, counted.collect());
        }
        Ok(found)
    }
}

/// Counters that were read from each set, by key.
type Found = HashMap<SetId, HashMap<Box<[u8]>, Counted>>;
