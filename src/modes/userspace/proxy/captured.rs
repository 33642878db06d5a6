//! The addresses whose connections come to this process.
//!
//! If an endpoint were one of them, each connection would come back as a new one until there are no
//! descriptors left. In the kernel's modes such connections simply fail: a packet is translated
//! once.
//!
//! But whoever may create a Service can name any pod's address as external IP. So that this takes
//! no endpoint away from another Service, calls to such an endpoint have a [`MARK`], with which
//! capture lets them pass.

use std::{
    net::{IpAddr, SocketAddr},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use hashbrown::{HashMap, HashSet};
use net::{Family, Frontend, PerFamily, Protocol};
use parking_lot::RwLock;
use socket2::{Domain, Socket, Type};

use super::super::{
    capture::MARK,
    plan::{GroupName, listen::NodeContext},
};
use crate::services::{Changes, ExternalAddresses, ServiceMap, ServicePortName};

/// The service group that owns each frontend. Syncs write it, the data path reads it.
#[derive(Debug, Default)]
pub struct Captured {
    owners: RwLock<HashMap<Frontend, GroupName>>,
    /// The external and load-balancer IPs among them that are captured only by what lets marked
    /// packets pass.
    passing: RwLock<HashSet<Frontend>>,
    /// Whether marked packets pass in each family.
    marks: PerFamily<AtomicBool>,
    /// The node's addresses that serve node ports.
    node: RwLock<Vec<IpAddr>>,
    /// Addresses of Services that the kernel serves: it would translate calls to them.
    translated: RwLock<ExternalAddresses>,
}

impl Captured {
    /// Records that connections to `frontend` go to the group `owner`.
    pub fn insert(&self, frontend: Frontend, owner: &GroupName) {
        self.owners.write().insert(frontend, owner.clone());
    }

    /// Records that connections to `frontend` no longer come to this process.
    pub fn remove(&self, frontend: &Frontend) {
        self.owners.write().remove(frontend);
        self.set_passing(frontend, false);
    }

    /// Records whether marked packets to `frontend` pass, if the family lets any pass. Returns
    /// whether that is new.
    pub fn set_passing(&self, frontend: &Frontend, passes: bool) -> bool {
        if self.passing.read().contains(frontend) == passes {
            return false;
        }
        let mut passing = self.passing.write();
        match passes {
            true => passing.insert(*frontend),
            false => passing.remove(frontend),
        }
    }

    /// Records whether capture of `family` lets marked packets pass.
    pub fn set_marks(&self, family: Family, pass: bool) {
        let marks = self.marks.get(family);
        if marks.load(Relaxed) != pass {
            marks.store(pass && may_mark(), Relaxed);
        }
    }

    /// Records which addresses of `family` the kernel serves, after `changes` to its ServicePorts in
    /// `map`.
    pub fn translate(&self, family: Family, map: &ServiceMap, changes: &Changes) {
        self.translated.write().update(family, map, changes);
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

    /// The mark that the ServicePort called `label` needs for its connections to `to`, if any.
    ///
    /// # Errors
    /// With the ServicePort for which they come to this process in any case.
    pub fn mark_to(
        &self,
        label: &str,
        protocol: Protocol,
        to: SocketAddr,
    ) -> Result<Option<u32>, ServicePortName> {
        let (ip, port) = (to.ip(), to.port());
        let family = Family::of(&ip);
        let frontend = Frontend::service(protocol, ip, port);
        let owners = self.owners.read();
        if let Some(owner) = owners.get(&frontend) {
            let passing = self.passing.read();
            // Local capture delivers all ports of such an address before it looks at marks.
            let is_whole = |protocol| {
                let last = Frontend::service(protocol, ip, u16::MAX);
                owners.contains_key(&last) && !passing.contains(&last)
            };
            let passes = self.marks.get(family).load(Relaxed)
                && passing.contains(&frontend)
                && ![Protocol::Tcp, Protocol::Udp].into_iter().any(is_whole)
                // The network may send packets to a Service's own address to another node, whose
                // Tripod would send them on.
                && owner.port.to_string() != label;
            return match passes {
                true => Ok(Some(MARK)),
                false => Err(owner.port.clone()),
            };
        }
        let node_port = owners.get(&Frontend::node_port(protocol, family, port));
        match node_port.filter(|_| self.node.read().contains(&ip)) {
            Some(owner) => Err(owner.port.clone()),
            None => match self.translated.read().owner(&frontend) {
                Some(owner) => Err(owner.clone()),
                None => Ok(None),
            },
        }
    }
}

/// Returns whether this process may mark its packets.
fn may_mark() -> bool {
    Socket::new(Domain::UNIX, Type::DGRAM, None).is_ok_and(|socket| socket.set_mark(MARK).is_ok())
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

    fn captured(own: Method) -> (Captured, GroupName) {
        let captured = Captured::default();
        let group = GroupName::of(
            &service_port("web", [10, 96, 0, 1]).name,
            GroupKind::Internal,
        );
        captured.insert(
            Frontend::node_port(Protocol::Tcp, Family::V4, 30080),
            &group,
        );
        captured.serve_node_ports(&NodeContext {
            methods: PerFamily::each(|_| own),
            addresses: vec![[192, 0, 2, 1].into()],
            node_ports: Arc::new(Served::All),
            opens_listeners: true,
        });
        (captured, group)
    }

    fn mark_to(captured: &Captured, label: &str, to: &str) -> Result<Option<u32>, String> {
        let mark = captured.mark_to(label, Protocol::Tcp, to.parse().expect("an address"));
        mark.map_err(|owner| owner.to_string())
    }

    #[test]
    fn it_has_service_addresses_and_node_ports_where_they_are_served() {
        let (captured, group) = captured(Method::Local);
        let service = Frontend::service(Protocol::Tcp, [10, 96, 0, 1].into(), 80);
        captured.insert(service, &group);
        let cases = [
            (Protocol::Tcp, "10.96.0.1:80", true),
            (Protocol::Udp, "10.96.0.1:80", false),
            (Protocol::Tcp, "10.96.0.1:81", false),
            (Protocol::Tcp, "192.0.2.1:30080", true),
            (Protocol::Tcp, "192.0.2.2:30080", false),
            (Protocol::Tcp, "192.0.2.1:80", false),
        ];
        for (protocol, to, comes_back) in cases {
            let mark = captured.mark_to("other", protocol, to.parse().expect("table"));
            let expected = match comes_back {
                true => Err(group.port.clone()),
                false => Ok(None),
            };
            assert_eq!(mark, expected, "{to}");
        }
        captured.remove(&service);
        assert_eq!(mark_to(&captured, "other", "10.96.0.1:80"), Ok(None));
    }

    #[test]
    fn calls_of_others_to_an_external_ip_pass_with_a_mark() {
        let (captured, group) = captured(Method::Local);
        let (web, owner) = (group.port.to_string(), Err(group.port.to_string()));
        let frontend = |port| Frontend::service(Protocol::Tcp, [10, 244, 0, 1].into(), port);
        let to = "10.244.0.1:53";
        captured.insert(frontend(53), &group);
        captured.set_passing(&frontend(53), true);
        assert_eq!(mark_to(&captured, "other", to), owner, "nothing passes");
        captured.marks.get(Family::V4).store(true, Relaxed);
        assert_eq!(mark_to(&captured, "other", to), Ok(Some(MARK)));
        assert_eq!(mark_to(&captured, &web, to), owner, "its own address");
        captured.insert(frontend(u16::MAX), &group);
        assert_eq!(mark_to(&captured, "other", to), owner, "all of its ports");
        captured.remove(&frontend(u16::MAX));
        assert_eq!(mark_to(&captured, "other", to), Ok(Some(MARK)));
        captured.set_passing(&frontend(53), false);
        assert_eq!(mark_to(&captured, "other", to), owner, "a cluster IP now");
    }
}
