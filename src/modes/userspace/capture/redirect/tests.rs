//! Against the real kernel, in a network namespace of the test's own thread.

use super::*;
use crate::{
    kernel::{
        conntrack::flows::tests::{enter_udp, udp},
        namespace::{block_on, in_namespace, ip},
        xtables::{Search, Xtables},
    },
    modes::userspace::capture::{Capture, Method, Target},
    net,
};

const BOTH: [Family; 2] = [Family::V4, Family::V6];

fn frontend(family: Family, address: Option<&str>, port: u16) -> Frontend {
    match address {
        Some(ip) => Frontend::service(net::Protocol::Tcp, ip.parse().unwrap(), port),
        None => Frontend::node_port(net::Protocol::Tcp, family, port),
    }
}

/// Our lines in both tables of `family`, without those that declare chains.
async fn ours(family: Family) -> String {
    let xtables = Xtables::chosen(&Search::new(family)).await.unwrap().0;
    let saved = xtables.saved("filter").await.unwrap() + &xtables.saved("nat").await.unwrap();
    let rules = saved.lines().filter(|line| line.starts_with("-A"));
    let ours = rules.filter(|line| line.contains(plan::CHAIN));
    ours.map(|line| format!("{line}\n")).collect()
}

#[test]
fn rules_follow_are_repaired_and_go() {
    in_namespace(|| {
        ip("addr add 192.0.2.1/32 dev lo");
        block_on(async {
            let mut redirect = Capture::of_both(Method::Redirect);
            let web = frontend(Family::V4, Some("10.96.0.1"), 80);
            let web6 = frontend(Family::V6, Some("fd96::1"), 80);
            let node = frontend(Family::V4, None, 30_080);
            let mut desired = Desired::from([web, web6, node].map(|f| (f, Target::at(40_000))));
            assert_eq!(redirect.sync_both(&desired, None).await.unwrap().failed, []);
            let v4 = ours(Family::V4).await;
            for part in [
                "-A PREROUTING -m comment",
                "-A OUTPUT -m comment",
                "-A INPUT -m conntrack",
                "--dport 40000 -j REJECT",
                "-d 10.96.0.1/32 -p tcp -m tcp --dport 80",
                "--dst-type LOCAL -m tcp --dport 30080",
                "--to-destination 192.0.2.1:40000",
            ] {
                assert!(v4.contains(part), "{part} is missing in\n{v4}");
            }
            // Without an address of the family only REDIRECT is left.
            let v6 = ours(Family::V6).await;
            assert!(v6.contains("-j REDIRECT --to-ports 40000"), "{v6}");

            desired.remove(&web6);
            let https = frontend(Family::V4, Some("10.96.0.1"), 443);
            desired.insert(https, Target::at(40_001));
            redirect
                .sync_both(&desired, Some(&[web6, https]))
                .await
                .unwrap();
            let step = ours(Family::V4).await;
            assert!(step.contains("--dport 443") && step.contains("40001 -j REJECT"));
            assert!(!ours(Family::V6).await.contains("40000"));

            // Someone flushes our chain and drops a jump: a full sync repairs.
            let xtables = Xtables::chosen(&Search::new(Family::V4)).await.unwrap().0;
            let sorted = |text: String| {
                let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
                lines.sort();
                lines
            };
            let broken = format!("*nat\n-F {}\n-F PREROUTING\nCOMMIT\n", plan::CHAIN);
            xtables.restore(&broken).await.unwrap();
            redirect.sync_both(&desired, None).await.unwrap();
            assert_eq!(sorted(ours(Family::V4).await), sorted(step));

            // A failed step is made good by the next one, of its own accord.
            xtables.restore(&broken).await.unwrap();
            desired.remove(&https);
            redirect
                .sync_both(&desired, Some(&[https]))
                .await
                .unwrap_err();
            redirect.sync_both(&desired, Some(&[])).await.unwrap();
            let good = ours(Family::V4).await;
            assert!(!good.contains("--dport 443") && good.contains("--dport 30080"));

            let foreign = "*nat\n-A POSTROUTING -s 192.0.2.0/24 -j RETURN\nCOMMIT\n";
            xtables.restore(foreign).await.unwrap();
            Redirect::cleanup(&BOTH, &Preserved::nothing())
                .await
                .unwrap();
            Redirect::cleanup(&BOTH, &Preserved::nothing())
                .await
                .unwrap();
            assert_eq!(ours(Family::V4).await + &ours(Family::V6).await, "");
            let left = xtables.saved("nat").await.unwrap();
            assert!(left.contains("-A POSTROUTING -s 192.0.2.0/24"), "{left}");
        });
    });
}

#[test]
fn udp_flows_that_lead_elsewhere_are_forgotten_when_rules_change() {
    in_namespace(|| {
        ip("addr add 192.0.2.1/32 dev lo");
        block_on(async {
            let udp_frontend = |address, port| Frontend {
                protocol: net::Protocol::Udp,
                ..frontend(Family::V4, address, port)
            };
            let dns = udp_frontend(Some("10.96.0.10"), 53);
            let node = udp_frontend(None, 30_053);
            let other = udp_frontend(Some("10.96.0.11"), 53);
            let mut netfilter = Socket::open(Protocol::Netfilter).unwrap();
            let socket = &mut netfilter;
            let good = "10.96.0.10:53 192.0.2.1:40000";
            let strange = "10.96.0.99:53 10.1.0.9:53";
            let enter = |socket: &mut Socket| {
                for (client, called, served) in [
                    ("10.0.0.1:1001", "10.96.0.10:53", "192.0.2.1:40000"),
                    ("10.0.0.1:1002", "10.96.0.10:53", "192.0.2.1:39999"),
                    ("10.0.0.1:1003", "10.96.0.10:53", "10.96.0.10:53"),
                    ("10.0.0.1:1004", "192.0.2.1:30053", "192.0.2.1:30053"),
                    ("10.0.0.1:1005", "10.96.0.99:53", "10.1.0.9:53"),
                ] {
                    enter_udp(socket, client, called, served);
                }
            };
            let mut redirect = Capture::of_both(Method::Redirect);
            let mut desired =
                Desired::from([(dns, Target::at(40_000)), (node, Target::at(40_001))]);
            enter(socket);
            let report = redirect.sync_both(&desired, None).await.unwrap();
            assert_eq!(report, Report::default());
            assert_eq!(udp(socket, Family::V4), [good, strange]);

            // Nothing changed: no flows are read.
            let stray = ("10.0.0.1:1002", "10.96.0.10:53", "192.0.2.1:39999");
            enter_udp(socket, stray.0, stray.1, stray.2);
            redirect.sync_both(&desired, None).await.unwrap();
            desired.insert(other, Target::at(40_002));
            redirect
                .sync_both(&desired, Some(&[other, node]))
                .await
                .unwrap();
            assert_eq!(udp(socket, Family::V4).len(), 3);

            // Another listener, in one step; and it went, in a full sync.
            desired.insert(dns, Target::at(39_999));
            redirect.sync_both(&desired, Some(&[dns])).await.unwrap();
            let led = "10.96.0.10:53 192.0.2.1:39999";
            assert_eq!(udp(socket, Family::V4), [led, strange]);
            desired.remove(&dns);
            redirect.sync_both(&desired, None).await.unwrap();
            assert_eq!(udp(socket, Family::V4), [strange]);

            // What could not be written is made good, and its flows with it.
            let xtables = Xtables::chosen(&Search::new(Family::V4)).await.unwrap().0;
            let broken = format!("*nat\n-F {}\nCOMMIT\n", plan::CHAIN);
            xtables.restore(&broken).await.unwrap();
            enter_udp(socket, "10.0.0.1:1006", "10.96.0.11:53", "192.0.2.1:40002");
            desired.remove(&other);
            redirect
                .sync_both(&desired, Some(&[other]))
                .await
                .unwrap_err();
            assert_eq!(udp(socket, Family::V4).len(), 2);
            redirect.sync_both(&desired, Some(&[])).await.unwrap();
            assert_eq!(udp(socket, Family::V4), [strange]);
        });
    });
}
