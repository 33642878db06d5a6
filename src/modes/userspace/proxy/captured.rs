//! The addresses whose connections come to this process.
//!
//! If an endpoint were one of them, each connection would come back as a new one until there are no
//! descriptors left. In the kernel's modes such connections simply fail: a packet is translated
//! once.

use std::net::{IpAddr, SocketAddr};

use hashbrown::HashMap;
use net::{Family, Frontend, Protocol};
use parking_lot::RwLock;

use super::super::plan::{GroupName, listen::NodeContext};
use crate::services::ServicePortName;

/// The service group that owns each frontend. Syncs write it, the data path reads it.
#[derive(Debug, Default)]
pub struct Captured {
    owners: RwLock<HashMap<Frontend, GroupName>>,
    /// The node's addresses that serve node ports.
    node: RwLock<Vec<IpAddr>>,
}

impl Captured {
    /// Records that connections to `frontend` go to the group `owner`.
    pub fn insert(&self, frontend: Frontend, owner: &GroupName) {
        self.owners.write().insert(frontend, owner.clone());
    }

    /// Records that connections to `frontend` no longer come to this process.
    pub fn remove(&self, frontend: &Frontend) {
        self.owners.write().remove(frontend);
    }

    /// Records the addresses on which node ports are served.
    pub fn serve_node_ports(&self, node: &NodeContext) {
        let addresses = node.addresses.iter().copied();
        let served = addresses
            .filter(|ip| node.node_ports.contains(ip))
            .collect();
        if *self.node.read() != served {
            *self.node.write() = served;
        }
    }

    /// Returns whether the group `owner` owns `frontend`.
    pub fn belongs_to(&self, frontend: &Frontend, owner: &GroupName) -> bool {
        self.owners.read().get(frontend) == Some(owner)
    }

    /// The group that owns `frontend`; `None` if it is not captured.
    pub fn owner(&self, frontend: &Frontend) -> Option<GroupName> {
        self.owners.read().get(frontend).cloned()
    }

    /// The ServicePort for which connections to `to` come to this process; `None` if they do not.
    pub fn owner_at(&self, protocol: Protocol, to: SocketAddr) -> Option<ServicePortName> {
        let (ip, port) = (to.ip(), to.port());
        let owners = self.owners.read();
        let owner = owners.get(&Frontend::service(protocol, ip, port));
        let owner = owner.or_else(|| {
            let owner = owners.get(&Frontend::node_port(protocol, Family::of(&ip), port));
            owner.filter(|_| self.node.read().contains(&ip))
        });
        owner.map(|group| group.port.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use net::{Frontend, PerFamily};

    use super::*;
    use crate::{
        modes::userspace::{capture::Method, plan::GroupKind},
        node::Served,
        services::service_ports::service_port,
    };

    #[test]
    fn it_has_service_addresses_and_node_ports_where_they_are_served() {
        let captured = Captured::default();
        let port = service_port("web", [10, 96, 0, 1]);
        let group = GroupName::of(&port.name, GroupKind::Internal);
        let service = Frontend::service(Protocol::Tcp, [10, 96, 0, 1].into(), 80);
        captured.insert(service, &group);
        captured.insert(
            Frontend::node_port(Protocol::Tcp, Family::V4, 30080),
            &group,
        );
        captured.serve_node_ports(&NodeContext {
            methods: PerFamily::each(|_| Method::Local),
            addresses: vec![[192, 0, 2, 1].into()],
            node_ports: Arc::new(Served::All),
            opens_listeners: true,
        });
        let cases = [
            (Protocol::Tcp, "10.96.0.1:80", true),
            (Protocol::Udp, "10.96.0.1:80", false),
            (Protocol::Tcp, "10.96.0.1:81", false),
            (Protocol::Tcp, "192.0.2.1:30080", true),
            (Protocol::Tcp, "192.0.2.2:30080", false),
            (Protocol::Tcp, "192.0.2.1:80", false),
        ];
        for (protocol, to, expected) in cases {
            let to: SocketAddr = to.parse().expect("table");
            let owner = captured.owner_at(protocol, to);
            assert_eq!(owner, expected.then(|| port.name.clone()), "{to}");
        }
        captured.remove(&service);
        let to = "10.96.0.1:80".parse().expect("an address");
        assert_eq!(captured.owner_at(Protocol::Tcp, to), None);
    }
}
