//! A connection that began before its Service existed gets through when the Service is served.

use std::{path::Path, thread, time::Duration};

use super::hostile::start;
use super::probe::default_mode;
use crate::lab::{Capture, Lab, Service, ask, ask_within, eventually, run, skip};

const SOON: Duration = Duration::from_secs(10);
/// How long a client waits: it sends its SYN after 1, 3, 7 and 15 seconds again (RFC 6298), and its
/// entry of connection tracking ends 120 seconds after the last one.
const WAITED: Duration = Duration::from_secs(20);
/// The kernel's list of what it tracks, if it has one (`CONFIG_NF_CONNTRACK_PROCFS`).
const TRACKED: &str = "/proc/net/nf_conntrack";

/// `mode` translates by connection tracking.
fn a_syn_from_before_the_service_is_translated(mode: &str, capture: Capture) {
    run(|| {
        if default_mode() != "nftables" {
            return skip("the kernel has no nf_tables");
        }
        if !Path::new(TRACKED).exists() {
            return skip("the kernel does not list tracked connections");
        }
        let mut lab = Lab::new(capture);
        lab.add_backends(&["a", "b"]);
        // Otherwise the client would be told that there is nothing, and give up.
        lab.outside.ip(&[
            "route replace blackhole default",
            "route del unreachable ::/0",
            "route add blackhole ::/0",
        ]);
        let [served, late] = [Service::new("served", 1), Service::new("late", 2)];
        lab.publish(&served, &["b"]);
        let _tripod = start(&lab, mode);
        for to in served.cluster() {
            eventually("another Service", SOON, || {
                ask(&lab.client, to).map_err(|error| error.to_string())
            });
        }
        let lab = &lab;
        let clients = lab.cluster_clients().into_iter();
        let calls = clients.flat_map(|host| late.cluster().map(|to| (host, to)));
        thread::scope(|scope| {
            let calls = calls.map(|(host, to)| {
                let call = scope.spawn(move || ask_within(host, to, WAITED));
                (host.name(), to, call)
            });
            let calls: Vec<_> = calls.collect();
            eventually("their SYNs have left the node", SOON, || {
                let tracked = lab.node.show(&format!("cat {TRACKED}"));
                let sent = tracked.lines().filter(|line| line.contains("SYN_SENT"));
                if sent.count() == calls.len() {
                    Ok(())
                } else {
                    Err(tracked)
                }
            });
            lab.publish(&late, &["a"]);
            for (host, to, call) in calls {
                let answer = call.join().expect("a caller does not panic");
                let answer = answer.map_err(|error| error.to_string());
                assert_eq!(answer.as_deref(), Ok("a"), "{host} to {to}");
            }
        });
    });
}

#[test]
fn a_syn_from_before_the_service_is_translated_in_nftables_mode() {
    a_syn_from_before_the_service_is_translated("nftables", Capture::Redirect);
}

#[test]
fn a_syn_from_before_the_service_is_translated_in_iptables_mode() {
    a_syn_from_before_the_service_is_translated("iptables", Capture::Redirect);
}

#[test]
fn a_syn_from_before_the_service_is_translated_by_redirect_capture() {
    a_syn_from_before_the_service_is_translated("userspace", Capture::Redirect);
}
