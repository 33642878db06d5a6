//! Writes requests to IPVS (`linux/ip_vs.h`).

use std::net::{IpAddr, SocketAddr};

use net::{Family, octets};
use netlink::{Request, generic};

use super::{
    Change, HASHED, PERSISTENT, RealServer, ServerId, VirtualServer, Wrapping,
    decode::{DEST, SERVICE, dest, service},
};

/// The version of the generic netlink family (`IPVS_GENL_VERSION`).
const VERSION: u8 = 1;

// Commands of the generic netlink family (`IPVS_CMD_*`).
const NEW_SERVICE: u8 = 1;
const SET_SERVICE: u8 = 2;
const DEL_SERVICE: u8 = 3;
pub(super) const GET_SERVICE: u8 = 4;
const NEW_DEST: u8 = 5;
const SET_DEST: u8 = 6;
const DEL_DEST: u8 = 7;
const GET_DEST: u8 = 8;
pub(super) const SET_CONFIG: u8 = 12;
pub(super) const GET_INFO: u8 = 15;

/// Returns a request to the generic netlink family with that number.
pub(super) fn request(
    family: u16,
    command: u8,
    operation: &'static str,
    object: impl Into<String>,
) -> Request {
    Request::new(family, 0, operation, object).header(&generic::header(command, VERSION))
}

/// Returns the request that makes `change`.
pub(super) fn change(family: u16, change: &Change) -> Request {
    let object = |id: &ServerId| format!("virtual server {id}");
    let pair = |id: &ServerId, at: &SocketAddr| format!("real server {at} of virtual server {id}");
    match change {
        Change::Add(server) => {
            let object = format!("{} with scheduler {}", object(&server.id), server.scheduler);
            request(family, NEW_SERVICE, "add", object).nested(SERVICE, |r| full_service(r, server))
        }
        Change::Edit(server) => {
            let object = format!("{} with scheduler {}", object(&server.id), server.scheduler);
            request(family, SET_SERVICE, "change", object)
                .nested(SERVICE, |r| full_service(r, server))
        }
        Change::Delete(id) => {
            request(family, DEL_SERVICE, "delete", object(id)).nested(SERVICE, |r| identity(r, id))
        }
        Change::AddReal(id, real) => request(family, NEW_DEST, "add", pair(id, &real.address))
            .nested(SERVICE, |r| identity(r, id))
            .nested(DEST, |r| full_dest(r, real)),
        Change::EditReal(id, real) => request(family, SET_DEST, "change", pair(id, &real.address))
            .nested(SERVICE, |r| identity(r, id))
            .nested(DEST, |r| full_dest(r, real)),
        Change::DeleteReal(id, address) => request(family, DEL_DEST, "delete", pair(id, address))
            .nested(SERVICE, |r| identity(r, id))
            .nested(DEST, |r| dest_address(r, address)),
    }
}

/// Pads an address to the 16 bytes that the kernel expects (`union nf_inet_addr`).
fn padded(ip: &IpAddr) -> [u8; 16] {
    let mut bytes = [0; 16];
    let octets = octets(ip);
    bytes[..octets.len()].copy_from_slice(&octets);
    bytes
}

fn u16_attribute(request: Request, kind: u16, value: u16) -> Request {
    request.attribute(kind, &value.to_ne_bytes())
}

fn port(request: Request, kind: u16, value: u16) -> Request {
    request.attribute(kind, &value.to_be_bytes())
}

fn identity(request: Request, id: &ServerId) -> Request {
    let ip = id.address.ip();
    let family = u16::from(Family::of(&ip).number());
    let request = u16_attribute(request, service::AF, family);
    let request = u16_attribute(request, service::PROTOCOL, id.protocol.number().into());
    let request = request.attribute(service::ADDR, &padded(&ip));
    port(request, service::PORT, id.address.port())
}

fn full_service(request: Request, server: &VirtualServer) -> Request {
    let mut flags = server.flags & !(PERSISTENT | HASHED);
    if server.persistence.is_some() {
        flags |= PERSISTENT;
    }
    // struct ip_vs_flags: the flags, and which of them are meant.
    let mut words = [0; 8];
    words[..4].copy_from_slice(&flags.to_ne_bytes());
    words[4..].copy_from_slice(&u32::MAX.to_ne_bytes());
    let seconds = server.persistence.map_or(0, |time| time.as_secs());
    let bits = server.client_bits;
    // A length for IPv6, a mask in network order for IPv4.
    let netmask = match Family::of(&server.id.address.ip()) {
        Family::V6 => u32::from(bits),
        Family::V4 => u32::MAX
            .checked_shl(32 - u32::from(bits.min(32)))
            .unwrap_or(0)
            .to_be(),
    };
    identity(request, &server.id)
        .text(service::SCHED_NAME, &server.scheduler)
        .attribute(service::FLAGS, &words)
        .u32(service::TIMEOUT, u32::try_from(seconds).unwrap_or(u32::MAX))
        .u32(service::NETMASK, netmask)
}

fn dest_address(request: Request, address: &SocketAddr) -> Request {
    let ip = address.ip();
    let family = u16::from(Family::of(&ip).number());
    let request = request.attribute(dest::ADDR, &padded(&ip));
    let request = port(request, dest::PORT, address.port());
    u16_attribute(request, dest::ADDR_FAMILY, family)
}

fn full_dest(request: Request, real: &RealServer) -> Request {
    let request = dest_address(request, &real.address)
        .u32(dest::FWD_METHOD, real.forwarding.number())
        .u32(dest::WEIGHT, real.weight.min(i32::MAX as u32))
        .u32(dest::U_THRESH, real.upper_threshold)
        .u32(dest::L_THRESH, real.lower_threshold);
    // Only where asked for: kernels before 5.2 know of no type.
    match real.wrapping {
        Wrapping::IpInIp => request,
        Wrapping::Gue { port: number } => {
            let request = request.attribute(dest::TUN_TYPE, &[1]);
            port(request, dest::TUN_PORT, number)
        }
        Wrapping::Gre => request.attribute(dest::TUN_TYPE, &[2]),
    }
}

/// Returns the request for the virtual server `id`.
pub(super) fn get(family: u16, id: &ServerId) -> Request {
    request(family, GET_SERVICE, "read", format!("virtual server {id}"))
        .nested(SERVICE, |r| identity(r, id))
}

/// Returns the request that lists the real servers of `id`.
pub(super) fn list_real(family: u16, id: &ServerId) -> Request {
    request(
        family,
        GET_DEST,
        "list",
        format!("real servers of virtual server {id}"),
    )
    .nested(SERVICE, |r| identity(r, id))
}
