//! Damage by others is repaired, and no connection breaks.

use std::time::Duration;

use super::rig::{Proxy, hint};
use crate::lab::{Lab, Service, Tripod, ask, ask_within, eventually, say, tcp, udp, udp_say};

/// The requirement is a second; the machine may be busy.
const SOON: Duration = Duration::from_secs(15);

#[test]
fn flushed_tables_come_back_and_connections_live_on() {
    Lab::run(|lab| broken(lab, "nft"));
}

#[test]
fn flushed_legacy_tables_come_back_and_connections_live_on() {
    Lab::run(|lab| broken(lab, "legacy"));
}

fn broken(lab: &mut Lab, engine: &str) {
    lab.node.enter(|| hint(engine));
    let service = Service::new("web", 1);
    lab.publish_all(&service);
    let flags = [
        "--cluster-cidr=10.244.0.0/16",
        // An unnoticed change must not be repaired by chance.
        "--iptables-sync-period=1h",
    ];
    let tripod = Tripod::start_beside(lab, "iptables", 0, &flags);
    let to = service.cluster()[0];
    let serves = |what: &str| {
        eventually(what, SOON, || {
            ask(&lab.client, to).map_err(|e| e.to_string())
        });
    };
    serves("the Service is applied");
    let mut open = tcp(&lab.client, to).expect("a connection");
    say(&mut open, "name").expect("an answer");
    for breakage in [
        "-t nat -F",
        "-t nat -D PREROUTING 1",
        "-t nat -F KUBE-SERVICES",
    ] {
        // Otherwise it could be repaired before it shows.
        tripod.freeze();
        lab.node.show(&format!("iptables-{engine} {breakage}"));
        let refused = ask_within(&lab.client, to, Duration::from_secs(1));
        assert!(refused.is_err(), "{breakage} breaks nothing: {refused:?}");
        tripod.thaw();
        serves(breakage);
        say(&mut open, "name").expect("the connection lives on");
    }
    let saved = lab.node.show(&format!("iptables-{engine}-save"));
    lab.node.show(&format!("iptables-{engine} -t filter -F"));
    eventually("filter is whole again", SOON, || {
        let now = lab.node.show(&format!("iptables-{engine}-save"));
        let rules = |text: &str| text.lines().filter(|line| line.starts_with("-A")).count();
        (rules(&now) == rules(&saved)).then_some(()).ok_or(now)
    });
}

/// `nf_conntrack_tcp_be_liberal`, no matter who sets it, decides whether invalid packets are
/// dropped, both when rules are written and later.
#[test]
fn invalid_packets_are_dropped_unless_the_kernel_is_liberal() {
    Lab::run(|lab| {
        lab.node.enter(|| hint("nft"));
        let set = |lab: &Lab, value: u8| {
            let setting = "net.netfilter.nf_conntrack_tcp_be_liberal";
            lab.node.show(&format!("sysctl -qw {setting}={value}"));
        };
        let drops = |lab: &Lab, expected: bool| {
            eventually("rules follow the setting", SOON, || {
                for program in ["iptables-nft", "ip6tables-nft"] {
                    let rules = lab.node.show(&format!("{program} -S KUBE-FORWARD"));
                    if rules.contains("INVALID") != expected {
                        return Err(rules);
                    }
                }
                Ok(())
            });
        };
        let service = Service::new("web", 1);
        lab.publish_all(&service);
        set(lab, 1);
        let flags = ["--cluster-cidr=10.244.0.0/16"];
        let proxy = Proxy::start(&lab.node, lab.manifests(), &flags);
        let to = service.cluster()[0];
        eventually("the Service is applied", SOON, || {
            ask(&lab.client, to).map_err(|e| e.to_string())
        });
        drops(lab, false);
        for (value, expected) in [(0, true), (1, false)] {
            set(lab, value);
            // Causes a full comparison.
            lab.node.show("iptables-nft -t nat -D PREROUTING 1");
            drops(lab, expected);
        }
        drop(proxy);
        // A requested setting that could not be made does not count.
        set(lab, 0);
        let flags = [flags[0], "--conntrack-tcp-be-liberal"];
        let _proxy = Proxy::start(&lab.node, lab.manifests(), &flags);
        drops(lab, true);
    });
}

#[test]
fn a_udp_client_follows_its_service_to_another_endpoint() {
    Lab::run(|lab| {
        let service = Service::new("dns", 2).with_node_port();
        lab.publish(&service, &["a"]);
        let flags = ["--cluster-cidr=10.244.0.0/16,fd00:244::/64"];
        let _proxy = Proxy::start(&lab.node, lab.manifests(), &flags);
        let node_port = |ip| (ip, service.node_port()).into();
        let [v4, v6] = service.cluster();
        let clients: Vec<_> = [
            (&lab.client, v4),
            (&lab.client, v6),
            (&lab.outside, node_port(lab.node.addresses[0])),
        ]
        .into_iter()
        .map(|(host, to)| udp(host, to).expect("a socket"))
        .collect();
        for (name, sent) in [("a", "first"), ("b", "second"), ("c", "third")] {
            lab.publish(&service, &[name]);
            for client in &clients {
                client
                    .set_read_timeout(Some(Duration::from_millis(100)))
                    .expect("a time limit");
                eventually(sent, SOON, || match udp_say(client, sent) {
                    Ok(who) if who == name => Ok(()),
                    other => Err(format!("{other:?}")),
                });
            }
        }
        // No endpoint, then one again.
        lab.publish(&service, &[]);
        for client in &clients {
            eventually("nobody answers", SOON, || match udp_say(client, "x") {
                Err(_) => Ok(()),
                Ok(who) => Err(who),
            });
        }
        lab.publish(&service, &["a"]);
        for client in &clients {
            eventually("back", SOON, || {
                udp_say(client, "back").map_err(|e| e.to_string())
            });
        }
    });
}

#[test]
fn a_udp_port_that_is_renamed_keeps_its_flows() {
    Lab::run(|lab| {
        let service = Service::new("dns", 2);
        lab.publish(&service, &["a", "b"]);
        let _proxy = Proxy::start(&lab.node, lab.manifests(), &[]);
        let clients: Vec<_> = (0..20)
            .map(|_| udp(&lab.client, service.cluster()[0]).expect("a socket"))
            .collect();
        let answers = || -> Result<Vec<String>, String> {
            let ask = |client| udp_say(client, "x").map_err(|error| error.to_string());
            clients.iter().map(ask).collect()
        };
        eventually("all are answered", SOON, || answers().map(drop));
        let before = answers().expect("answers");
        lab.publish(&service.udp_port_named("other"), &["a", "b"]);
        let in_force = |name: &str| {
            eventually(name, SOON, || {
                match lab.node.show("iptables-nft-save -t nat") {
                    rules if rules.contains(name) => Ok(()),
                    rules => Err(rules),
                }
            });
        };
        in_force("default/dns:other");
        // The sync that writes these rules comes after that which examined the flows of the first
        // Service.
        lab.publish(&Service::new("next", 3), &["a"]);
        in_force("default/next:udp");
        assert_eq!(answers().expect("answers"), before);
    });
}
