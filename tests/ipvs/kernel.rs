//! The clients of IPVS, ipset and dummy links, tested on the kernel of a guest. Written objects are
//! read back with the usual tools.

mod guest;
mod links;
mod load;
mod model;
mod reload;
mod servers;

use std::{
    net::{IpAddr, SocketAddr},
    process::Command,
};

use ipvs::{Change, Forwarding, Ipvs, RealServer, ServerId};
use net::Protocol;

pub use self::reload::unload;

/// Opens IPVS in this thread's namespace, with an interface up: if none ever was, the kernel has no
/// routing table and treats no address as a host's.
fn ipvs() -> Ipvs {
    show("ip link set lo up");
    Ipvs::open().expect("IPVS")
}

/// Makes changes, none of which the kernel refuses.
fn make(ipvs: &mut Ipvs, changes: &[Change]) {
    for (change, outcome) in changes.iter().zip(ipvs.apply(changes).expect("the socket")) {
        outcome.unwrap_or_else(|error| panic!("{change:?}: {error}"));
    }
}

fn tcp(address: &str) -> ServerId {
    ServerId {
        protocol: Protocol::Tcp,
        address: address.parse().expect("an address"),
    }
}

fn masqueraded(address: &str, weight: u32) -> RealServer {
    let address: SocketAddr = address.parse().expect("an address");
    RealServer::new(address, weight, Forwarding::Masquerade)
}

fn ip(address: &str) -> IpAddr {
    address.parse().expect("an address")
}

/// Returns the output of a tool in this thread's namespace; it must succeed.
fn show(line: &str) -> String {
    let mut words = line.split_whitespace();
    let program = words.next().expect("a program");
    let output = Command::new(program)
        .args(words)
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}: apt-get install ipvsadm ipset"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {errors}");
    String::from_utf8(output.stdout).expect("text")
}

/// Runs [`show`], and returns its lines, sorted and trimmed.
fn lines(line: &str) -> Vec<String> {
    let text = show(line);
    let mut lines: Vec<String> = text.lines().map(|line| line.trim().to_owned()).collect();
    lines.sort();
    lines
}
