//! One mode of Tripod replaces another.

use std::net::SocketAddr;

use super::super::probe::kernel;
use super::{Long, SOON, under_load};
use crate::lab::{Capture, Lab, Service, Tripod, ask, eventually, run};

/// Starts another process on the node in exactly that mode; it can run together with
/// others.
fn start(lab: &Lab, mode: &str, number: u16) -> Tripod {
    // In nftables mode the default is the addresses of the Node object.
    let flags = [
        "--strict-proxy-mode",
        "--cluster-cidr=10.244.0.0/24",
        "--nodeport-addresses=all",
    ];
    Tripod::start_beside(lab, mode, number, &flags)
}

/// For each mode, whether it has something in the kernel.
fn traces(lab: &Lab) -> [(&'static str, bool); 4] {
    let nat = lab.node.show("iptables-save -t nat");
    // A guest may have no nf_tables.
    let tables = lab.node.command("nft").args(["list", "tables"]).output();
    let tables = tables.map(|output| output.stdout).unwrap_or_default();
    let tables = String::from_utf8_lossy(&tables);
    let links = lab.node.show("ip -o link");
    [
        ("userspace", nat.contains("TRIPOD")),
        ("iptables", nat.contains(":KUBE-SVC-")),
        ("nftables", tables.contains("table ip tripod")),
        ("ipvs", links.contains("kube-ipvs0")),
    ]
}

#[test]
fn clients_notice_nothing() {
    run(|| {
        let full = kernel() == "full";
        let order: &[&str] = if full {
            &["userspace", "iptables", "ipvs", "userspace"]
        } else {
            &["userspace", "nftables", "iptables", "nftables", "userspace"]
        };
        let mut lab = Lab::new(Capture::Redirect);
        let web = Service::new("web", 10).with_node_port();
        lab.three_backends().publish_all(&web);
        let lab = &lab;
        let to = SocketAddr::new(lab.node.addresses[0], web.node_port());

        let mut running = start(lab, order[0], 0);
        under_load(
            |_| ask(&lab.outside, to),
            |calls| {
                for (number, pair) in (1..).zip(order.windows(2)) {
                    let [old, new] = pair else { unreachable!() };
                    let before = calls.made();
                    let mut long = Long::open(&lab.outside, to);
                    // A process that relays stays while it has connections; connections through the
                    // kernel continue anyway.
                    running.ask_to_end();
                    long.is_served(&format!("{old} was asked to end"));
                    let next = start(lab, new, number);
                    let mut ending = std::mem::replace(&mut running, next);
                    long.is_served(&format!("{new} is applied after {old}"));
                    let mut fresh = Long::open(&lab.outside, to);
                    fresh.is_served("under the new mode");
                    // A connection through IPVS keeps the mode's objects, and one through a process
                    // keeps the process.
                    if *old != "ipvs" {
                        eventually(&format!("{old} is gone"), SOON, || {
                            if traces(lab).contains(&(*old, true)) {
                                Err(format!("{:?}", traces(lab)))
                            } else {
                                Ok(())
                            }
                        });
                    }
                    long.is_served(&format!("{old} is gone"));
                    drop(long);
                    assert!(ending.ended().success(), "{old} ended badly");
                    fresh.is_served("the old process is gone");
                    calls.wait((before + 20).saturating_sub(calls.made()));
                }
            },
        );
    });
}
