//! The addresses of all Services, for finding an endpoint that has one of them: packets to such an
//! endpoint come back to the node, and are not forwarded a second time.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use hashbrown::{HashMap, HashSet};
use net::{Family, Frontend, Protocol};

use super::{AddressKind, Changes, ServiceMap, ServicePort, ServicePortName};

/// Cluster, external and load-balancer IPs with their ports, without ranges of ports.
#[derive(Debug, Default)]
pub struct ServiceAddresses<'a> {
    owners: HashMap<(Protocol, SocketAddr), (&'a ServicePortName, AddressKind)>,
}

impl<'a> ServiceAddresses<'a> {
    /// Collects the addresses of `ports`.
    pub fn of(ports: impl Iterator<Item = &'a Arc<ServicePort>>) -> ServiceAddresses<'a> {
        let mut owners = HashMap::new();
        for port in ports.filter(|port| !port.is_range()) {
            let name = &port.name;
            for (ips, kind) in [
                (port.cluster_ip.as_slice(), AddressKind::ClusterIp),
                (&port.external_ips, AddressKind::ExternalIp),
                (&port.load_balancer_ips, AddressKind::LoadBalancerIp),
            ] {
                for ip in ips {
                    let address = (name.protocol, SocketAddr::new(*ip, port.port));
                    owners.entry(address).or_insert((name, kind));
                }
            }
        }
        ServiceAddresses { owners }
    }

    /// Returns the ServicePort that has `address`, and the kind of that address.
    pub fn owner(
        &self,
        protocol: Protocol,
        address: SocketAddr,
    ) -> Option<(&'a ServicePortName, AddressKind)> {
        self.owners.get(&(protocol, address)).copied()
    }
}

/// External and load-balancer IPs with their ports, which may be the addresses of endpoints of
/// other Services. Follows the service map.
#[derive(Debug, Default)]
pub struct ExternalAddresses {
    owners: HashMap<Frontend, ServicePortName>,
    /// Those that are ranges of ports, by their addresses.
    ranges: HashMap<IpAddr, Vec<Frontend>>,
    /// Those of each ServicePort that has any.
    of: HashMap<ServicePortName, Box<[Frontend]>>,
}

impl ExternalAddresses {
    /// Applies the `changes` of `family`. Returns the addresses whose owner may have changed.
    pub fn update(
        &mut self,
        family: Family,
        map: &ServiceMap,
        changes: &Changes,
    ) -> HashSet<Frontend> {
        let external = |port: &ServicePort| -> Box<[Frontend]> {
            let ips = port.external_ips.iter().chain(&port.load_balancer_ips);
            ips.map(|ip| port.at(*ip)).collect()
        };
        let has = |port: &ServicePort| {
            !port.external_ips.is_empty() || !port.load_balancer_ips.is_empty()
        };
        let mut changed = HashSet::new();
        for name in changes.concerned(family, map, self.of.keys(), has) {
            for frontend in self.of.remove(&name).unwrap_or_default() {
                // Another ServicePort may have it by now.
                if self.owners.get(&frontend) == Some(&name) {
                    self.owners.remove(&frontend);
                    self.forget_range(&frontend);
                    changed.insert(frontend);
                }
            }
            let new = map.get(&name).map(|port| external(port));
            let Some(new) = new.filter(|new| !new.is_empty()) else {
                continue;
            };
            for frontend in &new {
                let is_new = self.owners.insert(*frontend, name.clone()).is_none();
                if let (true, Some(ip), Some(_)) = (is_new, frontend.address, frontend.last_port) {
                    self.ranges.entry(ip).or_default().push(*frontend);
                }
                changed.insert(*frontend);
            }
            self.of.insert(name, new);
        }
        changed
    }

    fn forget_range(&mut self, range: &Frontend) {
        let Some(ip) = range.address.filter(|_| range.last_port.is_some()) else {
            return;
        };
        if let Some(ranges) = self.ranges.get_mut(&ip) {
            ranges.retain(|other| other != range);
            if ranges.is_empty() {
                self.ranges.remove(&ip);
            }
        }
    }

    /// Returns the ServicePort that has `frontend`, or a range of ports with it.
    pub fn owner(&self, frontend: &Frontend) -> Option<&ServicePortName> {
        let of_range = || {
            let mut ranges = self.ranges.get(&frontend.address?)?.iter();
            let range = ranges.find(|range| {
                range.protocol == frontend.protocol && range.ports().contains(&frontend.port)
            })?;
            self.owners.get(range)
        };
        self.owners.get(frontend).or_else(of_range)
    }
}

impl ServicePortName {
    /// Explains why an endpoint with the address of this ServicePort is not used.
    pub fn has_address_of_endpoint(&self) -> String {
        format!("its address is one of Service {self}, so that calls of it reach no endpoint")
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use super::*;
    use crate::services::service_ports::service_port;

    #[test]
    fn external_addresses_follow_the_map() {
        let at = Frontend::service(Protocol::Tcp, [203, 0, 113, 1].into(), 80);
        let having = |name: &str| ServicePort {
            external_ips: [at.address.expect("an address")].into(),
            ..service_port(name, [10, 96, 0, 1])
        };
        let names = ["one", "other"].map(|name| service_port(name, [10, 96, 0, 1]).name);
        let mut addresses = ExternalAddresses::default();
        let mut owner = |ports: Vec<ServicePort>, full| {
            let map: ServiceMap = ports.into_iter().collect();
            let changes = Changes {
                full,
                ports: names.iter().filter(|_| !full).cloned().collect(),
                ..Changes::default()
            };
            addresses.update(Family::V4, &map, &changes);
            addresses
                .owner(&at)
                .map(|name| name.service.name.to_string())
        };
        for full in [true, false] {
            for name in ["one", "other", "one"] {
                assert_eq!(owner(vec![having(name)], full).as_deref(), Some(name));
            }
            assert_eq!(owner(vec![service_port("one", [10, 96, 0, 1])], full), None);
            let range = ServicePort {
                port: 50,
                last_port: NonZeroU16::new(100),
                ..having("one")
            };
            assert_eq!(owner(vec![range], full).as_deref(), Some("one"));
            assert_eq!(owner(vec![service_port("one", [10, 96, 0, 1])], full), None);
        }
    }
}
