//! Reads requests to IPVS (`ip_vs_genl_parse_service`, `ip_vs_genl_parse_dest`).

use std::net::{IpAddr, SocketAddr};

use ipvs::decode::{DEST, SERVICE, dest, service};
use nix::{errno::Errno, libc};

use super::{Id, Real};
use crate::message::ByKind;

// Commands of the generic netlink family (`IPVS_CMD_*`).
pub(super) const NEW_SERVICE: u8 = 1;
pub(super) const SET_SERVICE: u8 = 2;
pub(super) const DEL_SERVICE: u8 = 3;
pub(super) const GET_SERVICE: u8 = 4;
pub(super) const NEW_DEST: u8 = 5;
pub(super) const SET_DEST: u8 = 6;
pub(super) const DEL_DEST: u8 = 7;
pub(super) const GET_DEST: u8 = 8;
pub(super) const SET_CONFIG: u8 = 12;
pub(super) const GET_INFO: u8 = 15;
pub(super) const FLUSH: u8 = 17;
/// `IPVS_CMD_ATTR_TIMEOUT_TCP`, after which come those of `_TCP_FIN` and `_UDP`.
pub(super) const TIMEOUT_TCP: u16 = 4;

/// A virtual server as a request names it.
pub(super) struct Service {
    pub(super) id: Id,
    /// Where the request says how it spreads connections.
    pub(super) full: Option<FullService>,
}

/// How a virtual server spreads connections.
pub(super) struct FullService {
    pub(super) scheduler: String,
    /// The flags, and which of them are meant.
    pub(super) flags: (u32, u32),
    pub(super) timeout: u32,
    pub(super) netmask: u32,
}

fn host_u16(attributes: &ByKind<'_>, kind: u16) -> Result<u16, Errno> {
    let value = attributes.get(kind).and_then(|one| one.u16().ok());
    value.ok_or(Errno::EINVAL)
}

fn port(attributes: &ByKind<'_>, kind: u16) -> Result<u16, Errno> {
    let value = attributes.get(kind).and_then(|one| one.port().ok());
    value.ok_or(Errno::EINVAL)
}

/// Returns an address in 16 bytes, of which IPv4 uses the first four.
fn address(attributes: &ByKind<'_>, kind: u16, family: u16) -> Result<IpAddr, Errno> {
    let bytes = attributes.get(kind).ok_or(Errno::EINVAL)?.payload;
    let four = bytes.first_chunk::<4>().ok_or(Errno::EINVAL)?;
    let sixteen = bytes.first_chunk::<16>().ok_or(Errno::EINVAL)?;
    match i32::from(family) {
        libc::AF_INET => Ok((*four).into()),
        libc::AF_INET6 => Ok((*sixteen).into()),
        _ => Err(Errno::EAFNOSUPPORT),
    }
}

impl Service {
    /// Reads the virtual server of a request.
    pub(super) fn read(attributes: &ByKind<'_>) -> Result<Service, Errno> {
        let given = attributes.nested(SERVICE).ok_or(Errno::EINVAL)?;
        let family = host_u16(&given, service::AF)?;
        let protocol = host_u16(&given, service::PROTOCOL)?;
        let ip = address(&given, service::ADDR, family)?;
        let at = SocketAddr::new(ip, port(&given, service::PORT)?);
        let full = || {
            let (flags, mask) = given
                .get(service::FLAGS)?
                .payload
                .split_first_chunk::<4>()?;
            Some(FullService {
                scheduler: given.text(service::SCHED_NAME)?.to_owned(),
                flags: (
                    u32::from_ne_bytes(*flags),
                    u32::from_ne_bytes(*mask.first_chunk::<4>()?),
                ),
                timeout: given.u32(service::TIMEOUT)?,
                netmask: given.u32(service::NETMASK)?,
            })
        };
        Ok(Service {
            id: (protocol, at),
            full: full(),
        })
    }
}

/// A real server as a request names it.
pub(super) struct Destination {
    pub(super) address: SocketAddr,
    /// Where the request says how packets get there.
    pub(super) full: Option<Real>,
}

impl Destination {
    /// Reads the real server of a request.
    pub(super) fn read(attributes: &ByKind<'_>) -> Result<Destination, Errno> {
        let given = attributes.nested(DEST).ok_or(Errno::EINVAL)?;
        let family = host_u16(&given, dest::ADDR_FAMILY)?;
        let ip = address(&given, dest::ADDR, family)?;
        let full = || {
            Some(Real {
                // `IP_VS_CONN_F_FWD_MASK`
                method: given.u32(dest::FWD_METHOD)? & 7,
                weight: given.u32(dest::WEIGHT)?,
                upper_threshold: given.u32(dest::U_THRESH)?,
                lower_threshold: given.u32(dest::L_THRESH)?,
                tunnel: given.u8(dest::TUN_TYPE).unwrap_or_default(),
                tunnel_port: port(&given, dest::TUN_PORT).unwrap_or_default(),
            })
        };
        Ok(Destination {
            address: SocketAddr::new(ip, port(&given, dest::PORT)?),
            full: full(),
        })
    }
}
