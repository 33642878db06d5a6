//! The addresses of all Services, for finding an endpoint that has one of them: packets to such an
//! endpoint come back to the node, and are not forwarded a second time.

use std::{net::SocketAddr, sync::Arc};

use hashbrown::HashMap;
use net::Protocol;

use super::{AddressKind, ServicePort, ServicePortName};

/// Cluster, external and load-balancer IPs with their ports.
#[derive(Debug, Default)]
pub struct ServiceAddresses<'a> {
    owners: HashMap<(Protocol, SocketAddr), (&'a ServicePortName, AddressKind)>,
}

impl<'a> ServiceAddresses<'a> {
    /// Collects the addresses of `ports`.
    pub fn of(ports: impl Iterator<Item = &'a Arc<ServicePort>>) -> ServiceAddresses<'a> {
        let mut owners = HashMap::new();
        for port in ports {
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

impl ServicePortName {
    /// Explains why an endpoint with the address of this ServicePort is not used.
    pub fn has_address_of_endpoint(&self) -> String {
        format!("its address is one of Service {self}, so that calls of it reach no endpoint")
    }
}
