//! The addresses of all Services, by which an endpoint that has one of them is found: what is sent
//! there comes back to the node, and is not sent on a second time.

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
    /// Returns those of `ports`.
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

    /// Returns the ServicePort that has `address`, and which kind of address of it that is.
    pub fn owner(
        &self,
        protocol: Protocol,
        address: SocketAddr,
    ) -> Option<(&'a ServicePortName, AddressKind)> {
        self.owners.get(&(protocol, address)).copied()
    }
}

impl ServicePortName {
    /// Returns why an endpoint that has the address of this ServicePort is not used.
    pub fn has_address_of_endpoint(&self) -> String {
        format!("its address is one of Service {self}, so that calls of it reach no endpoint")
    }
}
