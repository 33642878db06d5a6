//! Reads the answers of IPVS (`linux/ip_vs.h`).

use std::{
    borrow::Cow,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use net::{Family, Protocol};
use netlink::{Attribute, Attributes, Malformed, Message, generic};

use super::{
    Forwarding, HASHED, ListedReal, PERSISTENT, RealServer, ServerId, Totals, VirtualServer,
    Wrapping,
};

/// The attribute of a command that has a virtual server (`IPVS_CMD_ATTR_SERVICE`).
pub const SERVICE: u16 = 1;
/// The attribute of a command that has a real server (`IPVS_CMD_ATTR_DEST`).
pub const DEST: u16 = 2;

/// Attributes of a virtual server (`IPVS_SVC_ATTR_*`).
#[allow(missing_docs, reason = "linux/ip_vs.h says what they are")]
pub mod service {
    pub const AF: u16 = 1;
    pub const PROTOCOL: u16 = 2;
    pub const ADDR: u16 = 3;
    pub const PORT: u16 = 4;
    pub const FWMARK: u16 = 5;
    pub const SCHED_NAME: u16 = 6;
    pub const FLAGS: u16 = 7;
    pub const TIMEOUT: u16 = 8;
    pub const NETMASK: u16 = 9;
    pub const STATS64: u16 = 12;
}

/// Attributes of a real server (`IPVS_DEST_ATTR_*`).
#[allow(missing_docs, reason = "linux/ip_vs.h says what they are")]
pub mod dest {
    pub const ADDR: u16 = 1;
    pub const PORT: u16 = 2;
    pub const FWD_METHOD: u16 = 3;
    pub const WEIGHT: u16 = 4;
    pub const U_THRESH: u16 = 5;
    pub const L_THRESH: u16 = 6;
    pub const ACTIVE_CONNS: u16 = 7;
    pub const INACT_CONNS: u16 = 8;
    pub const ADDR_FAMILY: u16 = 11;
    pub const STATS64: u16 = 12;
    pub const TUN_TYPE: u16 = 13;
    pub const TUN_PORT: u16 = 14;
}

/// Attributes of counters (`IPVS_STATS_ATTR_*`).
mod stats {
    pub const CONNECTIONS: u16 = 1;
    pub const BYTES_IN: u16 = 4;
    pub const BYTES_OUT: u16 = 5;
}

fn nested<'a>(message: &Message<'a>, kind: u16) -> Result<Option<Attributes<'a>>, Malformed> {
    for attribute in message.attributes(generic::HEADER) {
        let attribute = attribute?;
        if attribute.kind == kind {
            return Ok(Some(attribute.nested()));
        }
    }
    Ok(None)
}

/// Returns an address in 16 bytes, of which IPv4 uses the first four.
fn address(attribute: &Attribute<'_>, family: Family) -> Result<IpAddr, Malformed> {
    let bytes = attribute.payload;
    match family {
        Family::V4 => {
            let four = bytes.first_chunk::<4>();
            Ok(Ipv4Addr::from(*four.ok_or(SHORT)?).into())
        }
        Family::V6 => {
            let sixteen = bytes.first_chunk::<16>();
            Ok(Ipv6Addr::from(*sixteen.ok_or(SHORT)?).into())
        }
    }
}

/// Reads an attribute with an `AF_*` constant. Everything except IPv4 is read as IPv6.
fn family_of(attribute: &Attribute<'_>) -> Result<Family, Malformed> {
    let number = u8::try_from(attribute.u16()?).ok();
    Ok(number.and_then(Family::from_number).unwrap_or(Family::V6))
}

const SHORT: Malformed = Malformed("address is too short for its family");

/// Returns a virtual server; `None` for one that a firewall mark identifies, or of a
/// protocol that no Service can have.
pub fn server(message: &Message<'_>) -> Result<Option<VirtualServer>, Malformed> {
    let Some(attributes) = nested(message, SERVICE)? else {
        return Err(Malformed("no service in the answer"));
    };
    let (mut family, mut protocol, mut at, mut port) = (Family::V6, None, None, 0);
    let (mut scheduler, mut flags, mut timeout, mut netmask) = (String::new(), 0, 0, 0);
    let mut marked = false;
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            service::AF => family = family_of(&attribute)?,
            service::PROTOCOL => protocol = Some(attribute.u16()?),
            service::ADDR => at = Some(attribute),
            service::PORT => port = attribute.port()?,
            service::FWMARK => marked = attribute.u32()? != 0,
            service::SCHED_NAME => attribute.text()?.clone_into(&mut scheduler),
            service::FLAGS => {
                let bytes = attribute.payload.first_chunk::<4>();
                flags = u32::from_ne_bytes(*bytes.ok_or(Malformed("flags are too short"))?);
            }
            service::TIMEOUT => timeout = attribute.u32()?,
            service::NETMASK => netmask = attribute.u32()?,
            _ => {}
        }
    }
    let protocol = protocol
        .and_then(|number| u8::try_from(number).ok())
        .and_then(Protocol::from_number);
    let (Some(protocol), Some(at), false) = (protocol, at, marked) else {
        return Ok(None);
    };
    let ip = address(&at, family)?;
    let client_bits = match ip {
        IpAddr::V4(_) => u32::from_be(netmask).count_ones() as u8,
        IpAddr::V6(_) => u8::try_from(netmask).map_err(|_| Malformed("netmask is too long"))?,
    };
    let persistent = flags & PERSISTENT != 0;
    Ok(Some(VirtualServer {
        id: ServerId {
            protocol,
            address: SocketAddr::new(ip, port),
        },
        scheduler: Cow::Owned(scheduler),
        persistence: persistent.then(|| Duration::from_secs(timeout.into())),
        client_bits,
        flags: flags & !(PERSISTENT | HASHED),
    }))
}

/// Reads the traffic of a virtual server from an answer; `None`: the kernel does not report it.
pub(super) fn server_totals(message: &Message<'_>) -> Result<Option<Totals>, Malformed> {
    let Some(attributes) = nested(message, SERVICE)? else {
        return Err(Malformed("no service in the answer"));
    };
    for attribute in attributes {
        let attribute = attribute?;
        if attribute.kind == service::STATS64 {
            return totals(&attribute).map(Some);
        }
    }
    Ok(None)
}

fn totals(attribute: &Attribute<'_>) -> Result<Totals, Malformed> {
    let mut totals = Totals::default();
    for attribute in attribute.nested() {
        let attribute = attribute?;
        match attribute.kind {
            stats::CONNECTIONS => totals.connections = attribute.u64()?,
            stats::BYTES_IN => totals.bytes_in = attribute.u64()?,
            stats::BYTES_OUT => totals.bytes_out = attribute.u64()?,
            _ => {}
        }
    }
    Ok(totals)
}

/// Returns a real server; `None` if it is forwarded in a way that is unknown here.
/// `family` is that of its virtual server, for kernels before 3.18.
pub fn real(message: &Message<'_>, family: Family) -> Result<Option<ListedReal>, Malformed> {
    let Some(attributes) = nested(message, DEST)? else {
        return Err(Malformed("no destination in the answer"));
    };
    let (mut family, mut at, mut port, mut method) = (family, None, 0, 0);
    let (mut kind, mut tunnel_port) = (0, 0);
    let unspecified = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
    let mut listed = ListedReal {
        server: RealServer::new(unspecified, 0, Forwarding::Masquerade),
        active: 0,
        inactive: 0,
        totals: None,
    };
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            dest::ADDR_FAMILY => family = family_of(&attribute)?,
            dest::ADDR => at = Some(attribute),
            dest::PORT => port = attribute.port()?,
            dest::FWD_METHOD => method = attribute.u32()?,
            dest::WEIGHT => listed.server.weight = attribute.u32()?,
            dest::U_THRESH => listed.server.upper_threshold = attribute.u32()?,
            dest::L_THRESH => listed.server.lower_threshold = attribute.u32()?,
            dest::ACTIVE_CONNS => listed.active = attribute.u32()?,
            dest::INACT_CONNS => listed.inactive = attribute.u32()?,
            dest::STATS64 => listed.totals = Some(totals(&attribute)?),
            dest::TUN_TYPE => kind = attribute.u8()?,
            dest::TUN_PORT => tunnel_port = attribute.port()?,
            _ => {}
        }
    }
    let at = at.ok_or(Malformed("a destination without an address"))?;
    let Some(forwarding) = Forwarding::from_number(method) else {
        return Ok(None);
    };
    listed.server.address = SocketAddr::new(address(&at, family)?, port);
    listed.server.forwarding = forwarding;
    listed.server.wrapping = match kind {
        1 => Wrapping::Gue { port: tunnel_port },
        2 => Wrapping::Gre,
        _ => Wrapping::IpInIp,
    };
    Ok(Some(listed))
}
