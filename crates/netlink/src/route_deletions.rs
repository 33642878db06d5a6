//! Notices that routes or routing rules of Tripod ([`PROTOCOL`]) were deleted, by any process:
//! systemd-networkd removes unknown ones when it starts (`ManageForeignRoutes=` and
//! `ManageForeignRoutingPolicyRules=`, networkd.conf(5)).

use std::io;

use neli::consts::rtnl::Frattr;
use net::Family;
use nix::libc;

use super::PROTOCOL;
use crate::{Error, Malformed, Message, Protocol, Socket};

/// Receives the kernel's notifications of one family.
pub struct RouteDeletions {
    socket: Socket,
}

impl RouteDeletions {
    /// Subscribes in the network namespace of the calling thread.
    ///
    /// # Errors
    /// When no netlink socket can be opened.
    pub fn open(family: Family) -> Result<RouteDeletions, Error> {
        let groups = match family {
            Family::V4 => [libc::RTNLGRP_IPV4_ROUTE, libc::RTNLGRP_IPV4_RULE],
            Family::V6 => [libc::RTNLGRP_IPV6_ROUTE, libc::RTNLGRP_IPV6_RULE],
        };
        let socket = Socket::listen(Protocol::Route, &groups)?;
        Ok(RouteDeletions { socket })
    }

    /// Returns whether some of Tripod's may have been deleted since the last call.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn happened(&mut self) -> io::Result<bool> {
        let mut happened = false;
        let lost = self.socket.drain(|message| {
            // A message that cannot be read may have been a deletion.
            happened |= is_of_ours(message).unwrap_or(true);
        })?;
        Ok(happened || lost)
    }
}

/// Returns whether a notification says that a route or a rule of Tripod's was deleted.
pub fn is_of_ours(message: Message<'_>) -> Result<bool, Malformed> {
    match message.kind {
        libc::RTM_DELROUTE => {
            // struct rtmsg: family, two lengths, TOS, table, protocol.
            let [_, _, _, _, _, protocol] = message.header::<6>()?;
            Ok(protocol == PROTOCOL)
        }
        libc::RTM_DELRULE => {
            for attribute in message.attributes(12) {
                let attribute = attribute?;
                if Frattr::from(attribute.kind) == Frattr::Protocol {
                    return Ok(attribute.u8()? == PROTOCOL);
                }
            }
            Ok(false)
        }
        _ => Ok(false),
    }
}
