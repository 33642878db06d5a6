//! The answers of IPVS (`ip_vs_genl_fill_service`, `ip_vs_genl_fill_dest`), and its table under
//! `/proc/net` (`ip_vs_info_seq_show`).

use std::{
    fmt::Write as _,
    net::{IpAddr, SocketAddr},
};

use ipvs::decode::{DEST, SERVICE, dest, service};
use net::{Family, octets};
use netlink::{Request, generic};
use nix::{errno::Errno, libc};

use super::{Id, Ipvs, Real, Server};
use crate::message::ByKind;

/// The number of the controller of generic netlink (`GENL_ID_CTRL`).
pub(super) const CONTROLLER: u16 = 16;
/// `CTRL_CMD_NEWFAMILY` of `linux/genetlink.h`.
const NEW_FAMILY: u8 = 1;
/// `CTRL_ATTR_FAMILY_ID` and `CTRL_ATTR_FAMILY_NAME`
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// `IPVS_INFO_ATTR_VERSION` and `IPVS_INFO_ATTR_CONN_TAB_SIZE`
const VERSION: u16 = 1;
const TABLE_SIZE: u16 = 2;
/// How many counters of `IPVS_STATS_ATTR_*` there are, numbered from 1.
const COUNTERS: u16 = 5;

fn padded(ip: &IpAddr) -> [u8; 16] {
    let mut bytes = [0; 16];
    let octets = octets(ip);
    bytes[..octets.len()].copy_from_slice(&octets);
    bytes
}

/// Appends counters that have counted nothing.
fn nothing_counted(request: Request, kind: u16) -> Request {
    request.nested(kind, |stats| {
        (1..=COUNTERS).fold(stats, |stats, kind| stats.attribute(kind, &[0; 8]))
    })
}

/// Returns an address as the table has it.
fn in_hex(at: &SocketAddr) -> String {
    match at.ip() {
        IpAddr::V4(ip) => format!("{:08X}:{:04X}", u32::from(ip), at.port()),
        IpAddr::V6(ip) => {
            let parts = ip.segments().map(|part| format!("{part:04x}"));
            format!("[{}]:{:04X}", parts.join(":"), at.port())
        }
    }
}

impl Ipvs {
    /// Answers a request for the number of a family.
    pub(super) fn controller(&self, attributes: &ByKind<'_>) -> Result<Request, Errno> {
        match attributes.text(FAMILY_NAME) {
            Some("IPVS") => Ok(Request::new(CONTROLLER, 0, "", "")
                .header(&generic::header(NEW_FAMILY, 2))
                .attribute(FAMILY_ID, &self.family.to_ne_bytes())
                .text(FAMILY_NAME, "IPVS")),
            _ => Err(Errno::ENOENT),
        }
    }

    fn answer(&self, command: u8) -> Request {
        Request::new(self.family, 0, "", "").header(&generic::header(command, 1))
    }

    pub(super) fn info(&self) -> Request {
        let answer = self.answer(super::read::GET_INFO);
        // 1.2.1
        answer.u32(VERSION, 0x01_02_01).u32(TABLE_SIZE, 4096)
    }

    /// Returns the message for a virtual server.
    pub(super) fn service(&self, id: Id, server: &Server) -> Request {
        let (protocol, at) = id;
        let family = u16::from(Family::of(&at.ip()).number());
        let mut flags = [0xff; 8];
        flags[..4].copy_from_slice(&server.flags.to_ne_bytes());
        let answer = self.answer(super::read::NEW_SERVICE);
        answer.nested(SERVICE, |one| {
            let one = one
                .attribute(service::AF, &family.to_ne_bytes())
                .attribute(service::PROTOCOL, &protocol.to_ne_bytes())
                .attribute(service::ADDR, &padded(&at.ip()))
                .attribute(service::PORT, &at.port().to_be_bytes())
                .text(service::SCHED_NAME, &server.scheduler)
                .attribute(service::FLAGS, &flags)
                .u32(service::TIMEOUT, server.timeout)
                .u32(service::NETMASK, server.netmask);
            nothing_counted(one, service::STATS64)
        })
    }

    /// Returns the message for a real server.
    pub(super) fn destination(&self, id: Id, at: SocketAddr, real: &Real) -> Request {
        let (active, inactive) = self.counts(id, at);
        let family = u16::from(Family::of(&at.ip()).number());
        let answer = self.answer(super::read::NEW_DEST);
        answer.nested(DEST, |one| {
            let one = one
                .attribute(dest::ADDR, &padded(&at.ip()))
                .attribute(dest::PORT, &at.port().to_be_bytes())
                .u32(dest::FWD_METHOD, real.method)
                .u32(dest::WEIGHT, real.weight)
                .attribute(dest::TUN_TYPE, &[real.tunnel])
                .attribute(dest::TUN_PORT, &real.tunnel_port.to_be_bytes())
                .u32(dest::U_THRESH, real.upper_threshold)
                .u32(dest::L_THRESH, real.lower_threshold)
                .u32(dest::ACTIVE_CONNS, active)
                .u32(dest::INACT_CONNS, inactive)
                .attribute(dest::ADDR_FAMILY, &family.to_ne_bytes());
            nothing_counted(one, dest::STATS64)
        })
    }

    /// Prints `/proc/net/ip_vs`.
    pub fn table(&self) -> String {
        let mut text = "IP Virtual Server version 1.2.1 (size=4096)\n\
                        Prot LocalAddress:Port Scheduler Flags\n  \
                        -> RemoteAddress:Port Forward Weight ActiveConn InActConn\n"
            .to_owned();
        for (id, server) in &self.servers {
            let (protocol, at) = id;
            let protocol = match i32::from(*protocol) {
                libc::IPPROTO_TCP => "TCP",
                libc::IPPROTO_UDP => "UDP",
                _ => "SCTP",
            };
            let _ = writeln!(text, "{protocol}  {} {} ", in_hex(at), server.scheduler);
            for (address, real) in &server.reals {
                let method = ["Masq", "Local", "Tunnel", "Route"];
                let method = method[real.method as usize % method.len()];
                let (active, inactive) = self.counts(*id, *address);
                let _ = writeln!(
                    text,
                    "  -> {}      {method:<7} {:<6} {active:<10} {inactive:<10}",
                    in_hex(address),
                    real.weight
                );
            }
        }
        text
    }
}
