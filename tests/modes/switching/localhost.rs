//! Node ports on localhost, from one process to the next.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};

use super::{Long, SOON, under_load};
use crate::lab::{self, Capture, Lab, Service, Share, Tripod, eventually, say};

fn start(lab: &Lab, mode: &str, number: u16) -> Tripod {
    let flags = [
        "--nodeport-addresses=primary,localhost",
        "--userspace-capture=local",
        "--userspace-workers=2",
        "--userspace-drain-timeout=5s",
    ];
    Tripod::start_beside(lab, mode, number, &flags)
}

#[test]
fn node_ports_on_localhost_are_handed_over() {
    lab::run(Share::Beside, || {
        let mut lab = Lab::new(Capture::Local);
        let web = Service::new("web", 1).with_node_port();
        lab.three_backends().publish_all(&web);
        let lab = &lab;
        let addresses = [
            SocketAddr::from((Ipv4Addr::LOCALHOST, web.node_port())),
            SocketAddr::from((Ipv6Addr::LOCALHOST, web.node_port())),
        ];
        let call = |number: usize| {
            lab.node.enter(|| {
                let to = addresses[number % 2];
                let mut stream = TcpStream::connect_timeout(&to, SOON)?;
                stream.set_read_timeout(Some(SOON))?;
                say(&mut stream, "name")
            })
        };
        let mut old = start(lab, "nftables", 0);
        for number in 0..2 {
            eventually("it is served", SOON, || {
                call(number).map_err(|error| error.to_string())
            });
        }
        under_load(call, |calls| {
            let modes = ["nftables", "userspace", "nftables"];
            for (number, mode) in (1..).zip(modes) {
                calls.wait(50);
                let mut open = addresses.map(|to| Long::open(&lab.node, to));
                let new = start(lab, mode, number);
                calls.wait(50);
                open.iter_mut().for_each(|open| open.is_served("beside"));
                drop(open);
                let mut former = std::mem::replace(&mut old, new);
                former.ask_to_end();
                assert!(former.ended().success(), "{mode}");
                calls.wait(50);
            }
        });
    });
}
