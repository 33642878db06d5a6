//! Pairs of virtual Ethernet links (`linux/veth.h`): what enters one end leaves the other,
//! which may be in another network namespace.

use std::os::fd::{AsRawFd, BorrowedFd};

use nix::libc;

use super::netlink::{Error, Request, Socket};

/// `VETH_INFO_PEER` of `linux/veth.h`: the other end, as a message about a link of its own.
const PEER: u16 = 1;

/// Adds a link `name` here, with its other end `peer` in the network namespace `there`.
/// Both stay down. They go with either namespace.
///
/// # Errors
/// When this kernel has no such links (module `veth`), a name is taken, or for lack of
/// `CAP_NET_ADMIN` in one of the namespaces.
pub fn add(
    socket: &mut Socket,
    name: &str,
    peer: &str,
    there: BorrowedFd<'_>,
) -> Result<(), Error> {
    let flags = (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
    let object = format!("veth link {name}");
    // A descriptor that is open is not negative.
    let there = there.as_raw_fd() as u32;
    let request = Request::new(libc::RTM_NEWLINK, flags, "add", object)
        .header(&[0; 16])
        .text(libc::IFLA_IFNAME, name)
        .nested(libc::IFLA_LINKINFO, |request| {
            request.attribute(libc::IFLA_INFO_KIND, b"veth").nested(
                libc::IFLA_INFO_DATA,
                |request| {
                    request.nested(PEER, |request| {
                        // struct ifinfomsg stands before the attributes of the peer.
                        request
                            .header(&[0; 16])
                            .text(libc::IFLA_IFNAME, peer)
                            .u32(libc::IFLA_NET_NS_FD, there)
                    })
                },
            )
        });
    socket.call(&request, |_| Ok(None::<()>)).map(|_| ())
}
