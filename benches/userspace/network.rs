//! The network of the contenders: one client, one backend, and a node between them for each
//! contender, which forwards as a router does.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    process::{Child, Command},
};

use super::{
    helper::Helper,
    host::{Host, set_sysctl},
};

/// The port of the backends.
const PORT: u16 = 7070;

/// The port at which a node's proxy is called.
const CALLED: u16 = 80;

/// Number of addresses at which it is called, one after the other. For Tripod they are separate
/// Services: a Service that has a quarter of the open files leaves the last quarter to others.
pub const ADDRESSES: u8 = 8;

/// The network namespaces of the client and the backend.
pub struct Network {
    /// The host that makes the calls.
    pub client: Host,
    // Ends before its namespace does.
    server: Option<Helper>,
    backend: Host,
}

/// One node, between the client and the backend.
pub struct Node {
    host: Host,
    /// The address of the backend through this node.
    pub backend: SocketAddr,
    /// The address at which the client calls the proxy of this node: the first of [`ADDRESSES`]
    /// addresses of the node.
    pub own: SocketAddr,
    /// The first of the [`ADDRESSES`] Service addresses, which the client routes to this node.
    pub service: SocketAddr,
}

impl Network {
    /// A client and a backend, without a node between them yet.
    pub fn new() -> Network {
        let mut network = Network {
            client: host("client"),
            server: None,
            backend: host("backend"),
        };
        network.new_backend();
        network
    }

    /// Restarts the backend: one that still has the connections of earlier measurements could not
    /// open enough.
    pub fn new_backend(&mut self) {
        self.server = None;
        self.server = Some(Helper::backend(&self.backend, PORT));
    }

    /// Opens idle connections to [`ADDRESSES`] from `first` on. Returns their number; they end with
    /// the helpers.
    pub fn idle(&self, first: SocketAddr, connections: usize) -> (usize, Vec<Helper>) {
        let each = connections / usize::from(ADDRESSES);
        let helpers = addresses(first).map(|address| Helper::idle(&self.client, address, each));
        let mut helpers: Vec<_> = helpers.collect();
        (helpers.iter_mut().map(Helper::number).sum(), helpers)
    }

    /// Adds node `number`.
    pub fn node(&self, number: u8) -> Node {
        let at = |second, last, port| {
            SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, second, number, last)), port)
        };
        let name = format!("node{number}");
        let host = host(&name);
        host.ip(&[
            &format!("link add client type veth peer name {name} netns client"),
            &format!("link add backend type veth peer name {name} netns backend"),
            "link set client up",
            "link set backend up",
            &format!("addr add 10.1.{number}.1/24 dev client"),
            &format!("addr add 10.2.{number}.1/24 dev backend"),
        ]);
        for address in addresses(at(1, 11, CALLED)) {
            host.ip(&[&format!("addr add {}/24 dev client", address.ip())]);
        }
        self.client.ip(&[
            &format!("link set {name} up"),
            &format!("addr add 10.1.{number}.2/24 dev {name}"),
            &format!("route add 10.2.{number}.0/24 via 10.1.{number}.1"),
            &format!("route add 10.96.{number}.0/24 via 10.1.{number}.1"),
        ]);
        self.backend.ip(&[
            &format!("link set {name} up"),
            &format!("addr add 10.2.{number}.2/24 dev {name}"),
            &format!("route add 10.1.{number}.0/24 via 10.2.{number}.1"),
        ]);
        Node {
            host,
            backend: at(2, 2, PORT),
            own: at(1, 11, CALLED),
            service: at(96, 1, CALLED),
        }
    }
}

/// Returns all [`ADDRESSES`], starting with `first`.
pub fn addresses(first: SocketAddr) -> impl Iterator<Item = SocketAddr> {
    let IpAddr::V4(ip) = first.ip() else {
        panic!("{first} is not IPv4");
    };
    let all = (u32::from(ip)..).take(usize::from(ADDRESSES));
    all.map(move |bits| SocketAddr::new(Ipv4Addr::from(bits).into(), first.port()))
}

/// Makes a namespace in which no connection has to wait for a local port of an ended one: otherwise
/// that wait would be measured instead of the proxy, mostly for the contender that connects most.
fn host(name: &str) -> Host {
    let host = Host::new(name, Ipv4Addr::UNSPECIFIED, Ipv6Addr::UNSPECIFIED);
    host.enter(|| {
        set_sysctl("net/ipv4/ip_local_port_range", "1024 65535");
        set_sysctl("net/ipv4/tcp_tw_reuse", "1");
    });
    host
}

impl Node {
    /// Starts `program` here.
    ///
    /// # Errors
    /// When it is not installed.
    pub fn spawn(&self, program: &str, arguments: &[String]) -> std::io::Result<Child> {
        let found = Command::new("sh")
            .args(["-c", &format!("command -v {program}")])
            .output()?;
        if !found.status.success() {
            return Err(std::io::ErrorKind::NotFound.into());
        }
        let mut command = self.host.command(program);
        command
            .args(arguments)
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
    }
}
