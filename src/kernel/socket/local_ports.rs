//! Local ports of UDP flows to many peers. There are some 28,000 for everything that runs on the
//! node (`net.ipv4.ip_local_port_range`), and connect(2) takes a whole one for each UDP socket. But
//! a socket is found by both ends of a flow, so flows to different peers can share a port
//! (`udp(7)`, SO_REUSEADDR).
//!
//! Verified on Linux 6.18: of several sockets that are bound to one port, only the one that is
//! connected to a peer gets that peer's packets, answers and refusals alike; a port that was first
//! bound without SO_REUSEADDR belongs to us alone, and other programs cannot bind it unless they
//! set the option themselves; the kernel never picks one of our ports for them.

use std::{collections::BTreeMap, io, net::SocketAddr, os::fd::AsRawFd, sync::Arc, time::Duration};

use hashbrown::{HashMap, HashSet};
use net::{Family, PerFamily};
use netlink::sysctl;
use nix::sys::socket::{MsgFlags, recv};
use parking_lot::{Mutex, MutexGuard};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::time::Instant;

/// The kernel's default, where the setting cannot be read.
const USUAL_RANGE: usize = 28_232;

/// How long no new port is requested after the kernel had none: its search takes long when almost
/// all are in use.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// The local ports of UDP flows, of both families.
#[derive(Debug)]
pub struct LocalPorts {
    /// Maximum number of ports of each family for flows; the rest is for others.
    most: usize,
    tables: PerFamily<Mutex<Table>>,
}

#[derive(Debug, Default)]
struct Table {
    /// Number of flows on each of our ports.
    ours: BTreeMap<u16, u32>,
    /// The ports of flows to each peer.
    remotes: HashMap<SocketAddr, HashSet<u16>>,
    /// Where the search for the next port to share begins: ports are reused in the order of their
    /// last use, so that a late answer seldom meets another client's flow.
    next: u16,
    /// When the kernel had no port left.
    refused: Option<Instant>,
}

/// The origin of a flow's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// A port of ours that no flow to the same peer uses.
    Shared(u16),
    /// Any free port.
    Kernel,
}

/// Why a socket could not be opened.
#[derive(Debug)]
pub enum Failure {
    /// No local port is left.
    NoPort,
    /// The peer cannot be reached, or another error.
    Other(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::Other(error)
    }
}

/// The local port of one flow. Must be dropped after its socket.
#[derive(Debug)]
pub struct PortLease {
    all: Arc<LocalPorts>,
    port: u16,
    remote: SocketAddr,
}

impl Drop for PortLease {
    fn drop(&mut self) {
        self.all.table(&self.remote).release(self.port, self.remote);
    }
}

/// Number of ports that this network namespace has for programs that ask for no particular one.
pub fn number() -> usize {
    let range = sysctl::read("net.ipv4.ip_local_port_range").ok();
    range.as_deref().and_then(size).unwrap_or(USUAL_RANGE)
}

impl LocalPorts {
    /// Uses up to half of the ports of this network namespace.
    pub fn of_this_node() -> Arc<Self> {
        LocalPorts::with_most(number() / 2)
    }

    /// Uses up to `most` ports.
    pub fn with_most(most: usize) -> Arc<Self> {
        Arc::new(LocalPorts {
            most: most.max(1),
            tables: PerFamily::default(),
        })
    }

    /// Maximum number of simultaneous flows to one peer.
    pub fn most(&self) -> usize {
        self.most
    }

    /// Opens a socket that is connected to `remote`.
    ///
    /// # Errors
    /// When no local port is left, or the peer cannot be reached.
    pub fn connect(
        self: &Arc<Self>,
        remote: SocketAddr,
        prepare: impl FnOnce(&Socket) -> io::Result<()>,
    ) -> Result<(Socket, PortLease), Failure> {
        let socket = Socket::new(
            Domain::for_address(remote),
            Type::DGRAM.nonblocking().cloexec(),
            Some(Protocol::UDP),
        )?;
        if remote.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        prepare(&socket)?;
        let port = self.bind(&socket, remote)?;
        let lease = PortLease {
            all: Arc::clone(self),
            port,
            remote,
        };
        match socket.connect(&remote.into()) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Err(Failure::NoPort),
            Err(e) => return Err(Failure::Other(e)),
        }
        drain(&socket);
        Ok((socket, lease))
    }

    /// Takes over `socket` of another process that is connected to `remote`. Returns its port;
    /// `None` if it is not such a socket, or a flow to `remote` has that port already.
    pub fn adopt(self: &Arc<Self>, socket: &Socket, remote: SocketAddr) -> Option<PortLease> {
        let is_connected =
            socket.r#type().ok()? == Type::DGRAM && socket.peer_addr().ok()?.as_socket()? == remote;
        let port = socket.local_addr().ok()?.as_socket()?.port();
        let mut table = self.table(&remote);
        let used = table.remotes.get(&remote);
        if !is_connected || used.is_some_and(|used| used.contains(&port)) {
            return None;
        }
        table.take(port, remote);
        Some(PortLease {
            all: Arc::clone(self),
            port,
            remote,
        })
    }

    /// Binds `socket` to a local port, and returns that.
    fn bind(&self, socket: &Socket, remote: SocketAddr) -> Result<u16, Failure> {
        let mut table = self.table(&remote);
        let mut source = table.source(remote, self.most);
        if source == Some(Source::Kernel) {
            match bind_new(socket, remote) {
                Ok(port) => {
                    table.take(port, remote);
                    return Ok(port);
                }
                Err(e) if is_exhaustion(&e) => {
                    table.refused = Some(Instant::now());
                    source = table.source(remote, self.most);
                }
                Err(e) => return Err(Failure::Other(e)),
            }
        }
        let Some(Source::Shared(port)) = source else {
            return Err(Failure::NoPort);
        };
        socket.set_reuse_address(true)?;
        match socket.bind(&wildcard(remote, port).into()) {
            Ok(()) => {
                table.take(port, remote);
                Ok(port)
            }
            // Its last flow has just ended, and another program took the port.
            Err(e) if is_exhaustion(&e) => Err(Failure::NoPort),
            Err(e) => Err(Failure::Other(e)),
        }
    }

    fn table(&self, remote: &SocketAddr) -> MutexGuard<'_, Table> {
        self.tables.get(Family::of(&remote.ip())).lock()
    }
}

impl Table {
    /// Chooses the origin of the port for a new flow to `remote`; `None` if no port is left. While
    /// few are in use, each flow has a port of its own.
    fn source(&self, remote: SocketAddr, most: usize) -> Option<Source> {
        let kernel_has = self.refused.is_none_or(|at| at.elapsed() >= ASK_AGAIN);
        let kernel = || (kernel_has && self.ours.len() < most).then_some(Source::Kernel);
        if self.ours.len() < most / 2 {
            kernel().or_else(|| self.shared(remote))
        } else {
            self.shared(remote).or_else(kernel)
        }
    }

    fn shared(&self, remote: SocketAddr) -> Option<Source> {
        let used = self.remotes.get(&remote);
        if used.is_some_and(|used| used.len() >= self.ours.len()) {
            return None;
        }
        let (before, after) = (self.ours.range(..self.next), self.ours.range(self.next..));
        let mut ports = after.chain(before).map(|(port, _)| *port);
        let free = ports.find(|port| used.is_none_or(|used| !used.contains(port)));
        free.map(Source::Shared)
    }

    fn take(&mut self, port: u16, remote: SocketAddr) {
        *self.ours.entry(port).or_default() += 1;
        self.remotes.entry(remote).or_default().insert(port);
        self.next = port.wrapping_add(1);
    }

    fn release(&mut self, port: u16, remote: SocketAddr) {
        if let Some(flows) = self.ours.get_mut(&port) {
            *flows -= 1;
            if *flows == 0 {
                self.ours.remove(&port);
            }
        }
        if let Some(used) = self.remotes.get_mut(&remote) {
            used.remove(&port);
            if used.is_empty() {
                self.remotes.remove(&remote);
            }
        }
    }
}

/// Binds to a port that the kernel picks, and allows our other sockets to share it.
fn bind_new(socket: &Socket, remote: SocketAddr) -> io::Result<u16> {
    socket.bind(&wildcard(remote, 0).into())?;
    socket.set_reuse_address(true)?;
    let local = socket.local_addr()?.as_socket();
    Ok(local.ok_or(io::ErrorKind::AddrNotAvailable)?.port())
}

/// Discards datagrams from before the socket was connected: they were for others.
fn drain(socket: &Socket) {
    let mut buffer = [0];
    while recv(socket.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT).is_ok() {}
}

fn wildcard(remote: SocketAddr, port: u16) -> SocketAddr {
    SocketAddr::new(Family::of(&remote.ip()).unspecified(), port)
}

/// Returns whether `error` is that of bind(2) or connect(2) when no port is left.
fn is_exhaustion(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable | io::ErrorKind::WouldBlock
    )
}

/// Number of ports in a range, which the kernel writes as `first last`.
fn size(range: &str) -> Option<usize> {
    let mut ends = range.split_whitespace().map(|end| end.parse().ok());
    let (first, last): (usize, usize) = (ends.next()??, ends.next()??);
    last.checked_sub(first).map(|difference| difference + 1)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    fn peers(any: &str, count: usize) -> Vec<(UdpSocket, SocketAddr)> {
        let peers = (0..count).map(|_| {
            let socket = UdpSocket::bind(any).unwrap();
            socket
                .set_read_timeout(Some(Duration::from_secs(5)))
                .unwrap();
            let address = socket.local_addr().unwrap();
            (socket, address)
        });
        peers.collect()
    }

    fn port(socket: &Socket) -> u16 {
        socket.local_addr().unwrap().as_socket().unwrap().port()
    }

    #[test]
    fn flows_to_different_peers_share_ports_and_get_their_own_answers() {
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let ports = LocalPorts::with_most(4);
            let peers = peers(any, 3);
            let mut flows = Vec::new();
            for (_, address) in &peers {
                for _ in 0..ports.most() {
                    flows.push((ports.connect(*address, |_| Ok(())).unwrap(), *address));
                }
                let more = ports.connect(*address, |_| Ok(()));
                assert!(matches!(more, Err(Failure::NoPort)), "{more:?}");
            }
            let used: HashSet<u16> = flows.iter().map(|((s, _), _)| port(s)).collect();
            assert!(used.len() <= 4, "{used:?}");
            // Other programs get none of these ports, but still find free ones.
            let own = UdpSocket::bind(any).unwrap();
            assert!(!used.contains(&own.local_addr().unwrap().port()));
            let taken = SocketAddr::new(own.local_addr().unwrap().ip(), port(&flows[0].0.0));
            assert!(UdpSocket::bind(taken).is_err());

            for (n, ((socket, _), _)) in flows.iter().enumerate() {
                socket.send(&[n as u8]).unwrap();
            }
            for (peer, _) in &peers {
                for _ in 0..ports.most() {
                    let mut question = [0];
                    let (_, from) = peer.recv_from(&mut question).unwrap();
                    peer.send_to(&question, from).unwrap();
                }
            }
            for (n, ((socket, _), _)) in flows.into_iter().enumerate() {
                let socket = UdpSocket::from(socket);
                let mut answer = [0; 2];
                // Loopback delivers at once.
                assert_eq!(socket.recv(&mut answer).unwrap(), 1);
                assert_eq!(usize::from(answer[0]), n);
                let more = socket.recv(&mut answer).unwrap_err();
                assert_eq!(more.kind(), io::ErrorKind::WouldBlock);
            }
            assert!(ports.tables.v4.lock().ours.is_empty());
            assert!(ports.tables.v6.lock().remotes.is_empty());
        }
    }

    #[test]
    fn a_port_that_was_given_back_is_the_last_to_be_used_again() {
        let ports = LocalPorts::with_most(8);
        let peers = peers("127.0.0.1:0", 2);
        let [a, b] = [peers[0].1, peers[1].1];
        let _all: Vec<_> = (0..8)
            .map(|_| ports.connect(a, |_| Ok(())).unwrap())
            .collect();
        let mut seen = HashSet::new();
        for n in 1..=8 {
            let (socket, _lease) = ports.connect(b, |_| Ok(())).unwrap();
            seen.insert(port(&socket));
            assert_eq!(seen.len(), n);
        }
    }

    #[test]
    fn ranges_have_sizes() {
        assert_eq!(size("32768\t60999\n"), Some(28_232));
        assert_eq!(size("5 5"), Some(1));
        for wrong in ["", "5", "6 5", "a b"] {
            assert_eq!(size(wrong), None, "{wrong}");
        }
    }
}
