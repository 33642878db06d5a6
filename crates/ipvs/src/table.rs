//! `/proc/net/ip_vs`: all virtual servers with their real servers in one file, where netlink takes
//! a dump for each virtual server.
//!
//! It lacks thresholds, wrapping and counters (`ip_vs_info_seq_show` in
//! `net/netfilter/ipvs/ip_vs_ctl.c`). The kernel writes a virtual server together with all its real
//! servers, so the lines of one server are consistent; a server that is added or removed meanwhile
//! may be missing, or another may be listed twice.

use std::{
    io::{self, BufRead, BufReader, Seek},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
};

use net::Protocol;
use netlink::system::{self, Access, ProcFile};

use super::{Forwarding, ServerId};

/// A real server as the file shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TableReal {
    /// The address and port that it listens at.
    pub address: SocketAddr,
    /// Its share of new connections.
    pub weight: u32,
    /// How packets get there.
    pub forwarding: Forwarding,
}

/// The table of one network namespace.
pub(super) struct Table(Box<dyn ProcFile>);

/// Not `/proc/net`, which shows the namespace of the process's first thread.
const PATH: &str = "/proc/thread-self/net/ip_vs";

fn open() -> io::Result<Box<dyn ProcFile>> {
    system::current().open(Path::new(PATH), Access::Read)
}

/// Returns whether the kernel has IPVS, which it shows by this file.
pub fn is_there() -> bool {
    !open().is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

impl Table {
    /// Opens the table of the calling thread's namespace.
    pub(super) fn open() -> io::Result<Table> {
        open().map(Table)
    }

    /// Shows each virtual server with its real servers, in no particular order.
    pub(super) fn read(&mut self, visit: impl FnMut(ServerId, &[TableReal])) -> io::Result<()> {
        self.0.rewind()?;
        parse(BufReader::with_capacity(64 * 1024, &mut self.0), visit)
    }
}

/// Reads the file's text.
pub fn parse(
    mut text: impl BufRead,
    mut visit: impl FnMut(ServerId, &[TableReal]),
) -> io::Result<()> {
    let mut line = Vec::new();
    let mut server: Option<ServerId> = None;
    let mut reals = Vec::new();
    loop {
        line.clear();
        let read = text.read_until(b'\n', &mut line)?;
        let words = std::str::from_utf8(&line).map_err(io::Error::other)?;
        let mut words = words.split_ascii_whitespace();
        let first = words.next();
        if first == Some("->") {
            // The head of the columns looks like a real server too.
            if server.is_some() {
                let real = real(&mut words);
                reals.push(real.ok_or_else(|| malformed(&line))?);
            }
            continue;
        }
        if let Some(server) = server.take() {
            visit(server, &reals);
        }
        reals.clear();
        if read == 0 {
            return Ok(());
        }
        // Others are titles, firewall marks and protocols that are none of ours.
        let protocol = match first {
            Some("TCP") => Protocol::Tcp,
            Some("UDP") => Protocol::Udp,
            Some("SCTP") => Protocol::Sctp,
            _ => continue,
        };
        let address = words.next().and_then(address);
        server = Some(ServerId {
            protocol,
            address: address.ok_or_else(|| malformed(&line))?,
        });
    }
}

fn malformed(line: &[u8]) -> io::Error {
    let line = String::from_utf8_lossy(line);
    io::Error::other(format!("line {:?} is not understood", line.trim_end()))
}

/// Reads address, forwarding method and weight; connections follow.
fn real<'a>(words: &mut impl Iterator<Item = &'a str>) -> Option<TableReal> {
    Some(TableReal {
        address: address(words.next()?)?,
        forwarding: match words.next()? {
            "Masq" => Forwarding::Masquerade,
            "Local" => Forwarding::Local,
            "Tunnel" => Forwarding::Tunnel,
            "Route" => Forwarding::DirectRoute,
            _ => return None,
        },
        weight: words.next()?.parse().ok()?,
    })
}

/// Reads an address as the file has it: `0A600001:0050`, or `[fd00:0096:…]:0050`.
fn address(word: &str) -> Option<SocketAddr> {
    let (ip, port) = word.rsplit_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let ip: IpAddr = match ip.strip_prefix('[') {
        Some(rest) => IpAddr::V6(rest.strip_suffix(']')?.parse().ok()?),
        None => Ipv4Addr::from(u32::from_str_radix(ip, 16).ok()?).into(),
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port Forward Weight ActiveConn InActConn
TCP  0A600001:0050 rr persistent 10800 FFFFFFFF
  -> 0AF4000C:1F90      Masq    3      1          2
  -> 0AF4000B:1F90      Route   0      0          0
UDP  [fd00:0096:0000:0000:0000:0000:0000:0001]:0035 wrr
  -> [fd00:0244:0000:0000:0000:0000:0000:000b]:0035      Tunnel  1      0          0
FWM  00000007 rr
  -> 0AF4000B:1F90      Masq    1      0          0
SCTP 0A600002:0050 rr
";

    fn shown(text: &[u8]) -> io::Result<Vec<String>> {
        let mut found = Vec::new();
        parse(text, |server, reals| {
            found.push(server.to_string());
            found.extend(
                reals
                    .iter()
                    .map(|real| format!("{} {:?} {}", real.address, real.forwarding, real.weight)),
            );
        })?;
        Ok(found)
    }

    #[test]
    fn every_virtual_server_comes_with_its_real_ones() {
        let found = shown(TEXT.as_bytes()).unwrap();
        assert_eq!(
            found,
            [
                "10.96.0.1:80/TCP",
                "10.244.0.12:8080 Masquerade 3",
                "10.244.0.11:8080 DirectRoute 0",
                "[fd00:96::1]:53/UDP",
                "[fd00:244::b]:53 Tunnel 1",
                "10.96.0.2:80/SCTP",
            ]
        );
        for (from, to) in [("0A600001:", "0A60z:"), ("Masq    3", "Walk    3")] {
            let error = shown(TEXT.replacen(from, to, 1).as_bytes()).unwrap_err();
            assert!(error.to_string().contains("not understood"), "{error}");
        }
    }
}
