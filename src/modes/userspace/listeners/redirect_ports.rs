//! The local ports to which redirect capture sends packets for service addresses.

use std::{io, net::SocketAddr, ops::RangeInclusive};

use hashbrown::HashSet;
use net::{Family, Protocol};
use socket2::{Domain, Socket, Type};

use super::super::proxy::{
    descriptors::{Descriptors, Permits},
    usage::Room,
};
use crate::kernel::socket::{
    bound::BoundAddress,
    listening::{self, Bind},
    local_ports,
};

/// Maximum number of ports to request from the kernel before giving up.
const PICKS: u32 = 1000;

/// Allocates local ports, each to one service group at a time.
#[derive(Debug)]
pub struct RedirectPorts {
    range: Option<RangeInclusive<u16>>,
    next: u16,
    /// Wildcard addresses with allocated ports; each protocol has its own ports.
    used: HashSet<BoundAddress>,
    descriptors: Descriptors,
}

/// A port allocated to a service group.
#[derive(Debug)]
pub struct RedirectPort {
    /// The wildcard address with the port.
    pub bound: BoundAddress,
    /// Reserves the port while nothing listens on it; callers are refused then.
    reservation: Option<Socket>,
    /// The descriptor of the reservation, or of one of the listeners that replace it.
    _descriptor: Permits,
}

impl RedirectPort {
    /// Closes the reservation, because the port has a listener now.
    pub fn is_listened_on(&mut self) {
        self.reservation = None;
    }

    /// Reserves the port before its listeners are closed. If that fails, or if
    /// [`listening::reserve_udp`] cannot keep a port, another program may take it.
    pub fn reserve(&mut self) {
        if self.reservation.is_some() {
            return;
        }
        let reserved = reserve(self.bound);
        self.reservation = reserved.ok().and_then(|(_, socket)| socket);
    }
}

impl RedirectPorts {
    /// An allocator of ports in `range` (`--proxy-port-range`), or of ports that the kernel picks.
    /// Each is reserved with one of the `descriptors`.
    pub fn new(range: Option<RangeInclusive<u16>>, descriptors: Descriptors) -> Self {
        RedirectPorts {
            next: range.as_ref().map_or(0, |r| *r.start()),
            range,
            used: HashSet::new(),
            descriptors,
        }
    }

    /// Number of ports of a protocol, and number of free ones. The ports from which the kernel
    /// picks are shared with all programs of the node.
    pub fn room(&self, protocol: Protocol, family: Family) -> Room {
        let range = self.range.as_ref().map(ExactSizeIterator::len);
        let total = range.unwrap_or_else(local_ports::number);
        let is_of = |one: &&BoundAddress| {
            one.protocol == protocol && Family::of(&one.address.ip()) == family
        };
        let used = self.used.iter().filter(is_of).count();
        Room {
            free: total.saturating_sub(used),
            total,
        }
    }

    /// Allocates a port on which no program of this node listens.
    ///
    /// # Errors
    /// When there is none, or the socket to reserve it cannot be created.
    pub fn take(&mut self, protocol: Protocol, family: Family) -> io::Result<RedirectPort> {
        let Some(range) = self.range.clone() else {
            return self.picked(wildcard(protocol, family, 0));
        };
        for _ in 0..range.len() {
            let port = self.next;
            let is_last = port == *range.end();
            self.next = if is_last { *range.start() } else { port + 1 };
            let bound = wildcard(protocol, family, port);
            if self.used.contains(&bound) {
                continue;
            }
            match self.bind(bound) {
                Ok(taken) => {
                    self.used.insert(bound);
                    return Ok(taken);
                }
                Err(e) if e.kind() == io::ErrorKind::AddrInUse => {}
                Err(e) => return Err(e),
            }
        }
        Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            format!(
                "every port of --proxy-port-range {}-{} is taken; give a wider range",
                range.start(),
                range.end()
            ),
        ))
    }

    /// Allocates a port that the kernel picks for `any`, the wildcard address with port 0. The kernel only knows bound ports, and a reserved
    /// port need not be bound (see [`listening::reserve_udp`]): the port that it picks may be
    /// allocated already.
    fn picked(&mut self, any: BoundAddress) -> io::Result<RedirectPort> {
        for _ in 0..PICKS {
            let taken = self.bind(any)?;
            if self.used.insert(taken.bound) {
                return Ok(taken);
            }
        }
        Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            "no local port is free; give --proxy-port-range",
        ))
    }

    /// Keeps the port of an ended process's socket from being allocated.
    pub fn keep(&mut self, port: BoundAddress) {
        self.used.insert(port);
    }

    /// Makes a port available to other groups again.
    pub fn give_up(&mut self, port: BoundAddress) {
        self.used.remove(&port);
    }

    /// Allocates the kept port of another process's socket.
    ///
    /// # Errors
    /// When it is not in the range, or the socket to reserve it cannot be created.
    pub fn adopt(&mut self, port: BoundAddress) -> io::Result<RedirectPort> {
        self.check_range(port.address)?;
        self.share(port)
    }

    /// Allocates a kept port of an ended process of which no socket is left.
    ///
    /// # Errors
    /// When it is not in the range, another program listens on it, or the socket to reserve it
    /// cannot be created.
    pub fn have_again(&mut self, port: BoundAddress) -> io::Result<RedirectPort> {
        self.check_range(port.address)?;
        self.bind(port)
    }

    fn check_range(&self, address: SocketAddr) -> io::Result<()> {
        let mut range = self.range.iter();
        if range.any(|range| !range.contains(&address.port())) {
            return Err(io::ErrorKind::AddrNotAvailable.into());
        }
        Ok(())
    }

    fn bind(&self, at: BoundAddress) -> io::Result<RedirectPort> {
        // First bound without SO_REUSEPORT, which would share the port with another of our
        // processes; a port that the kernel picks is free anyway.
        if at.address.port() != 0 {
            drop(bind_alone(at)?);
        }
        self.share(at)
    }

    fn share(&self, at: BoundAddress) -> io::Result<RedirectPort> {
        let descriptor = self.descriptors.take_for_service(1)?;
        let (address, reservation) = reserve(at)?;
        Ok(RedirectPort {
            bound: BoundAddress { address, ..at },
            reservation,
            _descriptor: descriptor,
        })
    }
}

fn wildcard(protocol: Protocol, family: Family, port: u16) -> BoundAddress {
    BoundAddress {
        protocol,
        address: (family.unspecified(), port).into(),
    }
}

/// Binds a socket that accepts nothing. Returns the socket, and its address, because for port 0 the
/// kernel picks the port.
fn reserve(at: BoundAddress) -> io::Result<(SocketAddr, Option<Socket>)> {
    let bind = Bind::of_node(at.address);
    match at.protocol {
        Protocol::Tcp => {
            let socket = listening::reserve_tcp(bind)?;
            let bound = socket.local_addr()?.as_socket();
            Ok((bound.ok_or(io::ErrorKind::AddrNotAvailable)?, Some(socket)))
        }
        Protocol::Udp | Protocol::Sctp => listening::reserve_udp(bind),
    }
}

/// Binds a socket to an address that no other socket uses. The other family may use the same port.
fn bind_alone(BoundAddress { protocol, address }: BoundAddress) -> io::Result<Socket> {
    let kind = match protocol {
        Protocol::Tcp => Type::STREAM,
        Protocol::Udp | Protocol::Sctp => Type::DGRAM,
    };
    let socket = Socket::new(Domain::for_address(address), kind.cloexec(), None)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    let stream = protocol == Protocol::Tcp;
    if stream {
        // Ended connections do not block the port.
        socket.set_reuse_address(true)?;
    }
    socket.bind(&address.into())?;
    if stream {
        socket.listen(1)?;
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_range_is_used_up_and_says_so() {
        // Three neighbouring ports that are free now; used ones are skipped.
        let probe = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
        let first = probe.local_addr().unwrap().port().clamp(1024, 65_000);
        let mut ports =
            RedirectPorts::new(Some(first..=first + 2), Descriptors::of_this_process(None));
        let mut taken = Vec::new();
        let error = loop {
            match ports.take(Protocol::Tcp, Family::V4) {
                Ok(port) => taken.push(port),
                Err(error) => break error,
            }
        };
        assert!(taken.len() <= 2, "the first is taken by another");
        assert!(taken.iter().all(|h| h.bound.address.port() > first));
        assert!(error.to_string().contains("--proxy-port-range"), "{error}");

        if let Some(one) = taken.pop() {
            ports.give_up(one.bound);
            let port = one.bound.address.port();
            drop(one);
            let again = ports.take(Protocol::Tcp, Family::V4).unwrap();
            assert_eq!(again.bound.address.port(), port);
        }
    }

    #[test]
    fn families_take_no_ports_from_each_other() {
        // A port that the kernel picks for both families is free in both.
        let both = std::net::TcpListener::bind("[::]:0").unwrap();
        let port = both.local_addr().unwrap().port();
        drop(both);
        for families in [[Family::V4, Family::V6], [Family::V6, Family::V4]] {
            let mut ports =
                RedirectPorts::new(Some(port..=port), Descriptors::of_this_process(None));
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                let taken = families.map(|family| ports.take(protocol, family).unwrap());
                assert!(taken.iter().all(|taken| taken.bound.address.port() == port));
                taken.iter().for_each(|taken| ports.give_up(taken.bound));
            }
        }
    }

    #[test]
    fn no_port_is_held_twice() {
        // Enough ports to make it likely that the kernel picks one twice: of 28,000 ports, the same
        // is among 1,000 more often than not.
        let mut ports = RedirectPorts::new(None, Descriptors::of_this_process(None));
        let mut seen = HashSet::new();
        for _ in 0..2_000 {
            let taken = ports.take(Protocol::Udp, Family::V4).unwrap();
            assert!(seen.insert(taken.bound.address.port()), "{taken:?}");
        }
    }

    #[test]
    fn a_held_udp_port_refuses_and_no_other_program_gets_it() {
        for family in [Family::V4, Family::V6] {
            let mut ports = RedirectPorts::new(None, Descriptors::of_this_process(None));
            let taken = ports.take(Protocol::Udp, family).unwrap();
            let error = std::net::UdpSocket::bind(taken.bound.address).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AddrInUse);

            let call = || {
                let (local, to) = match family {
                    Family::V4 => ("127.0.0.1:0", "127.0.0.1"),
                    Family::V6 => ("[::1]:0", "::1"),
                };
                let client = std::net::UdpSocket::bind(local).unwrap();
                client.connect((to, taken.bound.address.port())).unwrap();
                client.send(b"?").unwrap();
                client
            };
            let refused = call().recv(&mut [0; 1]).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);

            let listeners: Vec<_> = (0..2)
                .map(|_| listening::udp(Bind::of_node(taken.bound.address)).unwrap())
                .collect();
            let mut heard = 0;
            for _ in 0..64 {
                let _client = call();
                heard += listeners
                    .iter()
                    .filter(|listener| listener.recv(&mut [0; 1]).is_ok())
                    .count();
            }
            assert_eq!(heard, 64, "what loopback delivers is there at once");
        }
    }

    #[test]
    fn a_held_port_refuses_until_there_is_a_listener() {
        let mut ports = RedirectPorts::new(None, Descriptors::of_this_process(None));
        let taken = ports.take(Protocol::Tcp, Family::V4).unwrap();
        let target = ("127.0.0.1", taken.bound.address.port());
        let refused = std::net::TcpStream::connect(target).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        let listener =
            listening::start(listening::tcp(Bind::of_node(taken.bound.address)).unwrap()).unwrap();
        std::net::TcpStream::connect(target).unwrap();
        drop(listener);
        // A program that another test starts briefly has a copy of the listener, between fork and
        // exec.
        let deadline = Instant::now() + Duration::from_secs(5);
        loop {
            match std::net::TcpStream::connect(target) {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => break,
                // Reset: the copy was closed while the connection was in its queue.
                _ if Instant::now() < deadline => std::thread::yield_now(),
                other => panic!("the port still answers: {other:?}"),
            }
        }
    }
}
