//! The Service of `examples/local` answers on a machine without a cluster, in every mode.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use super::probe::kernel;
use crate::lab::{Host, Tripod, answer_in, ask, eventually, run, tripod_binary};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/local");

#[test]
fn the_local_example_answers_in_every_mode() {
    run(|| {
        let modes: &[&str] = match kernel().as_str() {
            "full" => &["ipvs"],
            "bare" => &["userspace"],
            _ => &["nftables", "iptables", "userspace"],
        };
        let node = Host::new("node", Ipv4Addr::new(192, 0, 2, 10), Ipv6Addr::LOCALHOST);
        node.ip(&[
            "link add eth0 type veth peer name peer",
            "link set eth0 up",
            "link set peer up",
            "addr add 192.0.2.10/24 dev eth0",
            "route add default via 192.0.2.1",
        ]);
        let _server = answer_in(&node);
        for mode in modes {
            let mut command = node.command(tripod_binary());
            command
                .args(["--manifests", FOLDER])
                .arg(format!("--proxy-mode={mode}"));
            let tripod = Tripod::spawn(command);
            let to = "10.96.0.20:80".parse().expect("an address");
            eventually(mode, Duration::from_secs(20), || {
                ask(&node, to).map_err(|e| format!("{e}\n{}", tripod.log()))
            });
        }
    });
}
