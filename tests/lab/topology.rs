//! The usual laboratory, and ways to change its parts.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use super::backend::Backend;
use super::host::Host;
use super::manifests::{self, EndpointChoice, Service};
use super::sandbox::{self};
use super::tripod::Tripod;

/// How Tripod captures traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capture {
    Redirect,
    Local,
}

impl Capture {
    /// The flag's value. In a guest kernel that supports only one of the ways, the value is `auto`,
    /// and the runner checks the result.
    pub fn flag(self) -> String {
        std::env::var("TRIPOD_LAB_CAPTURE").unwrap_or_else(|_| self.name().into())
    }

    pub fn name(self) -> &'static str {
        match self {
            Capture::Redirect => "redirect",
            Capture::Local => "local",
        }
    }
}

/// See the picture in [`super`].
#[derive(Debug)]
pub struct Lab {
    pub capture: Capture,
    pub client: Host,
    pub outside: Host,
    pub backends: Vec<Backend>,
    /// Last, so that the namespaces of pods are dropped first.
    pub node: Host,
    manifests: PathBuf,
}

impl Lab {
    /// Builds a node, a client pod, an outside host and an empty folder of manifests.
    pub fn new(capture: Capture) -> Lab {
        let node = Host::new("node", Ipv4Addr::new(192, 0, 2, 10), v6(0xdb8, 0x10));
        let outside = Host::new("outside", Ipv4Addr::new(192, 0, 2, 20), v6(0xdb8, 0x20));
        node.ip(&[
            "link add cni0 type bridge",
            "link set cni0 up",
            "addr add 10.244.0.1/24 dev cni0",
            "addr add fd00:244::1/64 dev cni0 nodad",
        ]);
        // It also answers calls to service addresses that are not captured: it has no route to them
        // and says so.
        outside.ip(&[
            "route add unreachable default",
            "route add unreachable ::/0",
        ]);
        connect(&node, &outside);
        let client = pod(&node, "client", 9);
        let manifests = PathBuf::from("/run/manifests");
        std::fs::create_dir_all(&manifests).expect("a folder for manifests");
        Lab {
            capture,
            node,
            client,
            outside,
            backends: Vec::new(),
            manifests,
        }
    }

    /// Deletes the link between the node and the outside host, and makes it again.
    pub fn replace_uplink(&self) {
        self.node.ip(&["link del eth0"]);
        connect(&self.node, &self.outside);
    }

    /// Runs `body`, a whole test, in a lab with backends `a`, `b` and `c` whose node can redirect.
    pub fn run(body: impl FnOnce(&mut Lab)) {
        sandbox::run(|| {
            body(Lab::new(Capture::Redirect).three_backends());
        });
    }

    pub fn three_backends(&mut self) -> &mut Lab {
        self.add_backends(&["a", "b", "c"])
    }

    pub fn add_backends(&mut self, names: &[&str]) -> &mut Lab {
        for name in names {
            let number = u8::try_from(11 + self.backends.len()).expect("few backends");
            let host = pod(&self.node, name, number);
            self.backends.push(Backend::start(host));
        }
        self
    }

    pub fn backend(&mut self, name: &str) -> &mut Backend {
        self.backends
            .iter_mut()
            .find(|backend| backend.name() == name)
            .unwrap_or_else(|| panic!("no backend {name}"))
    }

    /// Writes a Service to the folder, with these backends as its ready endpoints; it replaces any
    /// Service of the same name.
    pub fn publish(&self, service: &Service, endpoints: &[&str]) {
        let chosen = endpoints
            .iter()
            .map(|name| EndpointChoice::ready(name))
            .collect::<Vec<_>>();
        self.publish_endpoints(service, &chosen);
    }

    /// Like [`Lab::publish`], with all backends.
    pub fn publish_all(&self, service: &Service) {
        let names = self.backends.iter().map(Backend::name).collect::<Vec<_>>();
        self.publish(service, &names);
    }

    pub fn publish_endpoints(&self, service: &Service, endpoints: &[EndpointChoice]) {
        let addressed = endpoints
            .iter()
            .map(|choice| {
                let host = self
                    .backends
                    .iter()
                    .find(|backend| backend.name() == choice.name)
                    .unwrap_or_else(|| panic!("no backend {}", choice.name));
                (choice, host.host().addresses)
            })
            .collect::<Vec<_>>();
        self.write(
            &format!("{}.json", service.name),
            &manifests::list(service, &addressed),
        );
    }

    /// Removes a Service and its endpoints from the folder.
    pub fn withdraw(&self, service: &Service) {
        self.remove(&format!("{}.json", service.name));
    }

    /// Writes a file to the folder as careful editors do: under another name, then renamed.
    pub fn write(&self, file: &str, content: &str) {
        let aside = self.manifests.join(format!(".{file}.new"));
        std::fs::write(&aside, content).expect("writing a manifest");
        std::fs::rename(&aside, self.manifests.join(file)).expect("renaming a manifest");
    }

    pub fn remove(&self, file: &str) {
        std::fs::remove_file(self.manifests.join(file)).expect("removing a manifest");
    }

    pub fn manifests(&self) -> &Path {
        &self.manifests
    }

    /// Starts Tripod on the node and waits until it is ready.
    pub fn tripod(&self) -> Tripod {
        Tripod::start(self)
    }

    /// The clients that may call a Service's cluster IP: a pod, and the node itself.
    pub fn cluster_clients(&self) -> [&Host; 2] {
        [&self.client, &self.node]
    }

    /// Gives the client pod another source address, of the family of `family_of`.
    pub fn another_source(&self, family_of: IpAddr, number: u8) -> SocketAddr {
        let (address, length) = match family_of {
            IpAddr::V4(_) => (IpAddr::V4(Ipv4Addr::new(10, 244, 0, 100 + number)), 32),
            IpAddr::V6(_) => (
                IpAddr::V6(Ipv6Addr::new(0xfd00, 0x244, 0, 0, 0, 0, 1, number.into())),
                128,
            ),
        };
        let dad = if address.is_ipv6() { "nodad" } else { "" };
        self.client
            .ip(&[&format!("addr replace {address}/{length} dev eth0 {dad}")]);
        SocketAddr::new(address, 0)
    }
}

/// Joins the node and the outside host by a link. Without a default route the node could
/// not call a service address: the packet would fail before any rule sees it.
fn connect(node: &Host, outside: &Host) {
    node.ip(&[
        "link add eth0 type veth peer name eth0 netns outside",
        "link set eth0 up",
        "addr add 192.0.2.10/24 dev eth0",
        "addr add 2001:db8::10/64 dev eth0 nodad",
    ]);
    outside.ip(&[
        "link set eth0 up",
        "addr add 192.0.2.20/24 dev eth0",
        "addr add 2001:db8::20/64 dev eth0 nodad",
        "route add 198.51.100.0/24 via 192.0.2.10",
        "route add 203.0.113.0/24 via 192.0.2.10",
        "route add 2001:db8:51::/64 via 2001:db8::10",
        "route add 2001:db8:113::/64 via 2001:db8::10",
        "route add 10.244.0.0/24 via 192.0.2.10",
        "route add fd00:244::/64 via 2001:db8::10",
    ]);
    node.ip(&[
        "route add default via 192.0.2.20",
        "route add ::/0 via 2001:db8::20",
    ]);
}

fn v6(second: u16, last: u16) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, second, 0, 0, 0, 0, 0, last)
}

/// A pod on the node's bridge, with the node as its default gateway.
fn pod(node: &Host, name: &str, number: u8) -> Host {
    let v4 = Ipv4Addr::new(10, 244, 0, number);
    // The number's decimal digits, in the IPv6 address as well.
    let v6: Ipv6Addr = format!("fd00:244::{number}").parse().expect("an address");
    let host = Host::new(name, v4, v6);
    node.ip(&[
        &format!("link add pod-{name} type veth peer name eth0 netns {name}"),
        &format!("link set pod-{name} master cni0 up"),
    ]);
    host.ip(&[
        "link set eth0 up",
        &format!("addr add {v4}/24 dev eth0"),
        &format!("addr add {v6}/64 dev eth0 nodad"),
        "route add default via 10.244.0.1",
        "route add ::/0 via fd00:244::1",
    ]);
    host
}
