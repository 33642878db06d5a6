//! The sockets of any process that wait for clients in this network namespace, as listed by
//! `/proc/net/tcp` and the like (`proc_pid_net(5)`). Reading them takes no privileges.

use std::{
    fs::File,
    io::{self, BufRead, BufReader},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use net::Protocol;

/// The tables, with the state of a socket that waits for clients: TCP_LISTEN, and for UDP
/// TCP_CLOSE, the state of an unconnected socket (include/net/tcp_states.h).
const TABLES: [(Protocol, &str, &str); 4] = [
    (Protocol::Tcp, "/proc/self/net/tcp", "0A"),
    (Protocol::Tcp, "/proc/self/net/tcp6", "0A"),
    (Protocol::Udp, "/proc/self/net/udp", "07"),
    (Protocol::Udp, "/proc/self/net/udp6", "07"),
];

/// The protocol and address of a bound socket. Several sockets may share it, one per worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BoundAddress {
    /// Protocol of the socket.
    pub protocol: Protocol,
    /// Local address and port.
    pub address: SocketAddr,
}

/// A socket that waits for clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoundSocket {
    /// The user who made it.
    pub uid: u32,
    /// Its inode number, as `fstat(2)` of its descriptors reports it.
    pub inode: u64,
}

/// Calls `each` with the address of every such socket.
///
/// # Errors
/// Those of reading the tables. The table of a family that the kernel lacks is left out.
pub fn each_bound(mut each: impl FnMut(BoundAddress, BoundSocket)) -> io::Result<()> {
    for (protocol, path, state) in TABLES {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        // The first line is a heading.
        for line in BufReader::new(file).lines().skip(1) {
            match parse(&line?, state) {
                Some((address, socket)) => each(BoundAddress { protocol, address }, socket),
                // Sockets that listen come first (`tcp_get_idx` in net/ipv4/tcp_ipv4.c). A node
                // may have so many connections, those in TIME_WAIT included, that reading them
                // takes seconds.
                None if protocol == Protocol::Tcp => break,
                None => {}
            }
        }
    }
    Ok(())
}

/// Parses address and socket from a line with that state, as `get_tcp4_sock` writes it
/// (net/ipv4/tcp_ipv4.c): only numbers, which no program can forge.
fn parse(line: &str, state: &str) -> Option<(SocketAddr, BoundSocket)> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let local = fields.next()?;
    if fields.nth(1)? != state {
        return None;
    }
    let uid = fields.nth(3)?.parse().ok()?;
    let inode = fields.nth(1)?.parse().ok()?;
    let (ip, port) = local.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    // Words of four bytes, each printed as a number in this machine's byte order.
    let word = |at: usize| {
        let word = ip.get(8 * at..8 * at + 8)?;
        Some(u32::from_str_radix(word, 16).ok()?.to_ne_bytes())
    };
    let ip: IpAddr = match ip.len() {
        8 => Ipv4Addr::from(word(0)?).into(),
        32 => {
            let mut bytes = [0; 16];
            for (at, part) in bytes.chunks_exact_mut(4).enumerate() {
                part.copy_from_slice(&word(at)?);
            }
            Ipv6Addr::from(bytes).into()
        }
        _ => return None,
    };
    Some((SocketAddr::new(ip, port), BoundSocket { uid, inode }))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};

    use nix::sys::stat::fstat;

    use super::*;

    #[test]
    fn sockets_that_wait_for_clients_are_found_and_connections_are_not() {
        for at in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(tcp) = TcpListener::bind(at) else {
                // This machine has no IPv6.
                continue;
            };
            let udp = UdpSocket::bind(at).unwrap();
            let address = tcp.local_addr().unwrap();
            let _client = TcpStream::connect(address).unwrap();
            let (accepted, _) = tcp.accept().unwrap();
            let mut found = Vec::new();
            each_bound(|bound, socket| found.push((bound, socket))).unwrap();
            let of = |protocol, address| BoundAddress { protocol, address };
            let uid = nix::unistd::geteuid().as_raw();
            let socket = |inode| BoundSocket { uid, inode };
            let of_tcp = socket(fstat(&tcp).unwrap().st_ino);
            let of_udp = socket(fstat(&udp).unwrap().st_ino);
            assert!(found.contains(&(of(Protocol::Tcp, address), of_tcp)));
            let bound = udp.local_addr().unwrap();
            assert!(found.contains(&(of(Protocol::Udp, bound), of_udp)));
            let connection = fstat(&accepted).unwrap().st_ino;
            assert!(found.iter().all(|(_, socket)| socket.inode != connection));
        }
    }

    #[test]
    fn what_is_no_line_of_the_table_is_not_read() {
        let line = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000 \
                    7        0 21 1 ffff 100 0 0 10 0";
        let at = "127.0.0.1:8080".parse().unwrap();
        if cfg!(target_endian = "little") {
            let socket = BoundSocket { uid: 7, inode: 21 };
            assert_eq!(parse(line, "0A"), Some((at, socket)));
        }
        assert_eq!(parse(line, "07"), None);
        for (from, to) in [("0100007F", "100007F"), (":1F90", "1F90"), (" 21 ", " x ")] {
            assert_eq!(parse(&line.replace(from, to), "0A"), None);
        }
        assert_eq!(parse("  sl  local_address rem_address   st", "0A"), None);
        assert_eq!(parse("", "0A"), None);
    }
}
