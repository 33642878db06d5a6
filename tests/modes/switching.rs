//! From one mode to the next while clients go on calling.

use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use super::probe::kernel;
use crate::lab::{
    Capture, Lab, Service, Share, Tripod, ask, eventually, run, say, tcp, tripod_binary,
};

/// Time that a mode may take to come, in a slow guest.
const SOON: Duration = Duration::from_secs(60);

/// A tripod in that mode, in force; its ports are its own, so that it can start
/// while another runs.
fn start(lab: &Lab, mode: &str, number: u16) -> Tripod {
    let mut command = lab.node.command(tripod_binary());
    command
        .arg(format!("--proxy-mode={mode}"))
        .arg("--strict-proxy-mode")
        .arg("--manifests")
        .arg(lab.manifests())
        .args(["--hostname-override=node", "--cluster-cidr=10.244.0.0/24"])
        .arg(format!(
            "--healthz-bind-address=127.0.0.1:{}",
            11000 + number
        ))
        .arg(format!(
            "--metrics-bind-address=127.0.0.1:{}",
            12000 + number
        ))
        .args(["--conntrack-max-per-core=0", "--v=4"]);
    let tripod = Tripod::spawn(command);
    eventually(&format!("{mode} is in force"), SOON, || {
        match tripod.said(&["synced", mode]) {
            0 => Err(tripod.log()),
            _ => Ok(()),
        }
    });
    tripod
}

/// A connection that stays open, and who answers on it.
struct Long(TcpStream, String);

impl Long {
    fn open(lab: &Lab, to: SocketAddr) -> Long {
        let mut stream = tcp(&lab.outside, to).expect("a connection");
        let name = say(&mut stream, "name").expect("an answer");
        Long(stream, name)
    }

    fn is_served(&mut self, when: &str) {
        let answer = say(&mut self.0, "name");
        assert_eq!(answer.expect(when), self.1, "{when}");
    }
}

/// What a mode leaves in the kernel.
fn traces(lab: &Lab) -> [(&'static str, bool); 3] {
    let nat = lab.node.show("iptables-save -t nat");
    let links = lab.node.show("ip -o link");
    [
        ("userspace", nat.contains("TRIPOD")),
        ("iptables", nat.contains(":KUBE-SVC-")),
        ("ipvs", links.contains("kube-ipvs0")),
    ]
}

#[test]
fn clients_notice_nothing() {
    let name = concat!(module_path!(), "::clients_notice_nothing");
    run(name, Share::Beside, || {
        let full = kernel() == "full";
        let order: &[&str] = match full {
            true => &["userspace", "iptables", "ipvs", "userspace"],
            false => &["userspace", "iptables", "userspace"],
        };
        let mut lab = Lab::new(Capture::Redirect);
        let web = Service::new("web", 10).with_node_port();
        lab.three_backends().publish_all(&web);
        let lab = &lab;
        let to = SocketAddr::new(lab.node.addresses[0], web.node_port());
        let (stop, calls) = (AtomicBool::new(false), AtomicUsize::new(0));

        let mut running = start(lab, order[0], 0);
        std::thread::scope(|scope| {
            let caller = scope.spawn(|| {
                let mut failures = Vec::new();
                while !stop.load(Relaxed) {
                    if let Err(error) = ask(&lab.outside, to) {
                        failures.push((calls.load(Relaxed), error));
                    }
                    calls.fetch_add(1, Relaxed);
                }
                failures
            });
            // Whatever fails below must not leave the caller calling.
            let _stop = Stop(&stop);
            for (number, pair) in (1..).zip(order.windows(2)) {
                let [old, new] = pair else { unreachable!() };
                let before = calls.load(Relaxed);
                let mut long = Long::open(lab, to);
                // What runs in a process goes on while it has connections, what
                // is in the kernel goes on anyway.
                running.ask_to_end();
                long.is_served(&format!("{old} was asked to end"));
                let next = start(lab, new, number);
                let mut ending = std::mem::replace(&mut running, next);
                long.is_served(&format!("{new} is in force after {old}"));
                let mut fresh = Long::open(lab, to);
                fresh.is_served("under the new mode");
                // A connection through IPVS keeps it, and one through a process
                // keeps that.
                if *old != "ipvs" {
                    eventually(&format!("{old} is gone"), SOON, || {
                        match traces(lab).contains(&(*old, true)) {
                            true => Err(format!("{:?}", traces(lab))),
                            false => Ok(()),
                        }
                    });
                }
                long.is_served(&format!("{old} is gone"));
                drop(long);
                assert!(ending.ended().success(), "{old} ended badly");
                fresh.is_served("the old process is gone");
                eventually("some calls under the new mode", SOON, || {
                    match calls.load(Relaxed) > before + 20 {
                        true => Ok(()),
                        false => Err("too few".into()),
                    }
                });
            }
            stop.store(true, Relaxed);
            let failures = caller.join().expect("the caller does not panic");
            assert!(
                failures.is_empty(),
                "of {} calls {} failed: {:?}",
                calls.load(Relaxed),
                failures.len(),
                &failures[..failures.len().min(5)]
            );
        });
    });
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}
