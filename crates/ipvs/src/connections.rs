//! `/proc/net/ip_vs_conn`: the connections that IPVS has, each with its real server
//! (`ip_vs_conn_seq_show` in `net/netfilter/ipvs/ip_vs_conn.c`).

use std::{
    fs::File,
    io::{self, BufRead, BufReader},
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use hashbrown::HashMap;
use net::Protocol;

/// An entry of the connection table of IPVS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The transport protocol.
    pub protocol: Protocol,
    /// The client's address and port.
    pub client: SocketAddr,
    /// Address and port of the virtual server.
    pub server: SocketAddr,
    /// Address and port of the real server.
    pub real: SocketAddr,
}

/// Returns the real server of the connection of `client` to `server`, in the network
/// namespace of the calling thread; `None`: IPVS has no such connection.
///
/// # Errors
/// When the kernel has no IPVS, or the caller may not read its table.
pub fn real_server(
    protocol: Protocol,
    client: SocketAddr,
    server: SocketAddr,
) -> io::Result<Option<SocketAddr>> {
    let mut found = connections(protocol, server)?;
    let is_it = |found: &io::Result<Connection>| match found {
        Ok(found) => found.client == client,
        Err(_) => true,
    };
    let found = found.find(is_it).transpose()?;
    Ok(found.map(|found| found.real))
}

/// Returns the real server of each client that has a connection to `server`, in the network
/// namespace of the calling thread.
///
/// # Errors
/// When the kernel has no IPVS, or the caller may not read its table.
pub fn real_servers(
    protocol: Protocol,
    server: SocketAddr,
) -> io::Result<HashMap<SocketAddr, SocketAddr>> {
    let found = connections(protocol, server)?;
    found
        .map(|found| found.map(|found| (found.client, found.real)))
        .collect()
}

/// Reads the connections to `server`.
fn connections(
    protocol: Protocol,
    server: SocketAddr,
) -> io::Result<impl Iterator<Item = io::Result<Connection>>> {
    // Not `/proc/net`, which shows the namespace of the process's first thread.
    let file = File::open("/proc/thread-self/net/ip_vs_conn")?;
    let lines = BufReader::with_capacity(64 * 1024, file).lines();
    Ok(lines.filter_map(move |line| match line {
        Ok(line) => {
            let found = parse(&line)?;
            ((found.protocol, found.server) == (protocol, server)).then_some(Ok(found))
        }
        Err(error) => Some(Err(error)),
    }))
}

/// Reads a line; `None` for the titles and for lines that are not understood.
pub fn parse(line: &str) -> Option<Connection> {
    let mut words = line.split_ascii_whitespace();
    let name = words.next()?;
    let protocol = Protocol::ALL
        .into_iter()
        .find(|protocol| protocol.name() == name)?;
    let mut end = || {
        let (ip, port) = (words.next()?, words.next()?);
        Some(SocketAddr::new(
            address(ip)?,
            u16::from_str_radix(port, 16).ok()?,
        ))
    };
    Some(Connection {
        protocol,
        client: end()?,
        server: end()?,
        real: end()?,
    })
}

/// Reads an address: IPv4 as one number in base 16, IPv6 as usual.
fn address(text: &str) -> Option<IpAddr> {
    if text.contains(':') {
        let bare = text.trim_start_matches('[').trim_end_matches(']');
        return bare.parse().ok();
    }
    let number = u32::from_str_radix(text, 16).ok()?;
    Some(Ipv4Addr::from(number).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read() {
        let end = |text: &str| text.parse().unwrap();
        let v4 = "TCP 0AF40009 9CBA 0A600001 0050 0AF4000B 1F90 ESTABLISHED     898";
        let v6 = "UDP fd00:0244:0000:0000:0000:0000:0000:0009 9CBA \
                  fd00:0096:0000:0000:0000:0000:0000:0001 0035 \
                  fd00:0244:0000:0000:0000:0000:0000:0011 1F90 UDP  298";
        for (line, expected) in [
            (
                v4,
                Some((
                    Protocol::Tcp,
                    "10.244.0.9:40122",
                    "10.96.0.1:80",
                    "10.244.0.11:8080",
                )),
            ),
            (
                v6,
                Some((
                    Protocol::Udp,
                    "[fd00:244::9]:40122",
                    "[fd00:96::1]:53",
                    "[fd00:244::11]:8080",
                )),
            ),
            (
                "Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires",
                None,
            ),
            ("TCP 0AF40009", None),
            ("", None),
        ] {
            let expected = expected.map(|(protocol, client, server, real)| Connection {
                protocol,
                client: end(client),
                server: end(server),
                real: end(real),
            });
            assert_eq!(parse(line), expected, "{line}");
        }
    }
}
