//! Pairs of virtual Ethernet links (`linux/veth.h`): packets that enter one end leave the other,
//! which may be in another network namespace.

use std::os::fd::{AsRawFd, BorrowedFd};

use nix::libc;

use crate::{Error, Request, Socket};

/// `VETH_INFO_PEER` of `linux/veth.h`: the other end, as a message about a link of its own.
const PEER: u16 = 1;

/// Adds a link `name` here, with its other end `peer` in the network namespace `there`.
/// Both stay down. They are deleted with either namespace.
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
    socket.acknowledge(&request)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use testing::{block_on, in_namespace, sh};

    use super::*;
    use crate::{Protocol, addresses, isolation::NetworkNamespace, links, routes};

    #[test]
    fn what_enters_one_end_leaves_the_other() {
        in_namespace(|| {
            // Sockets that Tokio has for signals belong to the namespace of the first runtime.
            block_on(async {});
            let there = NetworkNamespace::new("there").expect("a namespace");
            let mut socket = Socket::open(Protocol::Route).expect("a socket");
            let namespace = there.namespace();
            add(&mut socket, "one", "other", namespace.as_fd()).expect("a pair");
            let again = add(&mut socket, "one", "third", namespace.as_fd());
            let error = again.expect_err("the name is taken").to_string();
            assert!(error.contains("veth link one"), "{error}");

            let up = |name: &str, address: &str| {
                let mut socket = Socket::open(Protocol::Route).expect("a socket");
                let index = links::index(name).expect("the link");
                links::set_up(&mut socket, index).expect("it comes up");
                let address = address.parse().expect("an address");
                addresses::add_with_subnet(&mut socket, index, address).expect("an address");
            };
            up("one", "192.0.2.1/28");
            up("one", "2001:db8::1/124");
            let inside = there.run(async move {
                up("other", "192.0.2.2/28");
                up("other", "2001:db8::2/124");
            });
            block_on(inside).expect("it ends");
            for (destination, gateway) in [
                ("198.51.100.0/24", "192.0.2.2"),
                ("2001:db8:1::/64", "2001:db8::2"),
            ] {
                let gateway = gateway.parse().expect("an address");
                let destination = [destination.parse().expect("a network")];
                for _ in 0..2 {
                    routes::add_over_gateway(&mut socket, &destination, gateway)
                        .expect("one that is there is fine");
                }
            }
            let found = sh("ip route show 198.51.100.0/24; ip -6 route show 2001:db8:1::/64");
            assert!(found.contains("via 192.0.2.2 dev one"), "{found}");
            assert!(found.contains("via 2001:db8::2 dev one"), "{found}");

            let listener = block_on(there.run(async {
                let at = ("192.0.2.2", 80);
                tokio::net::TcpListener::bind(at).await.expect("a socket")
            }));
            let listener = listener.expect("it ends");
            std::net::TcpStream::connect(("192.0.2.2", 80)).expect("it answers");

            // A socket keeps its namespace.
            drop((listener, there));
            // The other end is deleted with its namespace, which the kernel takes down in the
            // background.
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
            while links::index("one").is_ok() {
                assert!(std::time::Instant::now() < deadline, "the link is left");
                std::thread::yield_now();
            }
        });
    }
}
