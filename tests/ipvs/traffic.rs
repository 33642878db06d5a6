//! The endpoints that connections reach, and the forwarding methods.

use std::{collections::BTreeMap, net::SocketAddr, net::TcpStream, time::Duration};

use serde_json::{Value, json};

use super::node;
use crate::lab::{Capture, Host, Lab, ask, eventually, run, say, tcp, tcp_from, tripod_binary};

/// A Service with one port, IPv4.
struct Web<'a> {
    number: u8,
    port: u16,
    annotations: &'a [(&'a str, &'a str)],
    /// Backends, each in a separate slice with a weight.
    backends: &'a [(&'a str, u16)],
}

impl Web<'_> {
    fn cluster(&self) -> SocketAddr {
        ([10, 96, 1, self.number], self.port).into()
    }

    fn external(&self) -> SocketAddr {
        ([198, 51, 100, self.number], self.port).into()
    }

    fn publish(&self, lab: &Lab) {
        let annotations: BTreeMap<&str, &str> = self.annotations.iter().copied().collect();
        let name = format!("web-{}", self.number);
        let mut items = vec![json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": name, "namespace": "default", "annotations": annotations},
            "spec": {
                "clusterIP": self.cluster().ip(),
                "externalIPs": [self.external().ip()],
                "ports": [{"port": self.port, "targetPort": 8080, "protocol": "TCP"}],
            },
        })];
        for (backend, weight) in self.backends {
            let [address, _] = pod(lab, backend).addresses;
            items.push(json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": {
                    "name": format!("{name}-{backend}"), "namespace": "default",
                    "labels": {"kubernetes.io/service-name": name},
                    "annotations": {"tripod.proxy/weight": weight.to_string()},
                },
                "addressType": "IPv4",
                "ports": [{"name": "", "port": 8080, "protocol": "TCP"}],
                "endpoints": [{"addresses": [address], "conditions": {"ready": true}}],
            }));
        }
        let list: Value = json!({"apiVersion": "v1", "kind": "List", "items": items});
        lab.write(&format!("{name}.json"), &list.to_string());
    }
}

fn pod<'a>(lab: &'a Lab, name: &str) -> &'a Host {
    let mut backends = lab.backends.iter();
    let found = backends.find(|backend| backend.name() == name);
    found.expect("a backend of that name").host()
}

/// The calls by which a scheduler is judged.
enum Calls {
    /// Each call ends before the next one.
    Short,
    /// No call ends before all are made.
    Open,
}

/// The expected distribution of the calls.
enum Spread {
    /// Backends, and the number of 16 calls that each gets; the tolerance.
    Counts([(&'static str, usize); 2], usize),
    /// As many calls as names, each answered by the one named.
    InOrder(&'static [&'static str]),
    /// All calls go to one backend, no matter which.
    One,
    /// All calls of one client go to one backend, but not those of all clients to the same.
    Sticky,
}

/// Each scheduler has backends `a` of weight 3 and `b` of weight 1.
const SCHEDULERS: [(&str, Calls, Spread); 12] = [
    ("rr", Calls::Short, Spread::Counts([("a", 8), ("b", 8)], 0)),
    (
        "wrr",
        Calls::Short,
        Spread::Counts([("a", 12), ("b", 4)], 0),
    ),
    ("lc", Calls::Open, Spread::Counts([("a", 8), ("b", 8)], 0)),
    ("wlc", Calls::Open, Spread::Counts([("a", 12), ("b", 4)], 1)),
    ("sed", Calls::Open, Spread::Counts([("a", 12), ("b", 4)], 1)),
    ("nq", Calls::Open, Spread::Counts([("a", 12), ("b", 4)], 1)),
    ("fo", Calls::Short, Spread::InOrder(&["a"; 16])),
    // Until one has more than its weight (`net/netfilter/ipvs/ip_vs_ovf.c`).
    (
        "ovf",
        Calls::Open,
        Spread::InOrder(&["a", "a", "a", "a", "b", "b"]),
    ),
    ("sh", Calls::Short, Spread::Sticky),
    ("dh", Calls::Short, Spread::One),
    ("lblc", Calls::Short, Spread::One),
    ("lblcr", Calls::Short, Spread::One),
];

/// The kernel refuses the timeout for any number of ticks a second from 100 on.
#[test]
#[ignore = "for a guest kernel with IPVS"]
fn weights_choose_the_scheduler_and_connections_go_on() {
    run(|| {
        let mut lab = Lab::new(Capture::Redirect);
        lab.add_backends(&["a", "b"]);
        let web = |weights: [u16; 2]| {
            let [a, b] = weights;
            let web = Web {
                number: 1,
                port: 80,
                annotations: &[],
                backends: &[("a", a), ("b", b)],
            };
            web.publish(&lab);
            web.external()
        };
        let at = web([1, 1]);
        let tripod = node::start(&lab, &["--ipvs-tcp-timeout=8760h"]);
        tripod.logs_once(&["ipvs.tcpTimeout", "31536000 s is not applied"]);
        let mut open = tcp(&lab.outside, at).expect("a connection");
        let name = say(&mut open, "name").expect("an answer");
        for (weights, scheduler, from_a) in [([3, 1], "wrr", 12), ([1, 1], "rr", 8)] {
            web(weights);
            let server = format!("-A -t {at} -s {scheduler}");
            eventually(&server, Duration::from_secs(10), || {
                let found = lab.node.show("ipvsadm -Sn");
                let reals = node::reals(&lab.node, at);
                let has_weight = reals
                    .iter()
                    .any(|real| real.ends_with(&format!(" {}", weights[0])));
                if has_weight && found.lines().any(|line| line == server) {
                    Ok(())
                } else {
                    Err(found)
                }
            });
            let answers = (0..16).map(|_| ask(&lab.outside, at).expect("an answer"));
            let found = answers.filter(|answer| answer == "a").count();
            assert_eq!(found, from_a, "{weights:?}");
            assert_eq!(say(&mut open, "name").expect("an answer"), name);
        }
    });
}

#[test]
#[ignore = "for a guest kernel with IPVS"]
fn a_hash_leads_no_client_to_an_endpoint_of_weight_0() {
    run(|| {
        let mut lab = Lab::new(Capture::Redirect);
        lab.add_backends(&["a", "b"]);
        let webs = ["dh", "sh", "mh"].map(|name| [("tripod.proxy/scheduler", name)]);
        let webs = webs.iter().zip(1..).map(|(annotations, number)| Web {
            number,
            port: 80,
            annotations,
            backends: &[("a", 0), ("b", 1)],
        });
        let webs: Vec<Web<'_>> = webs.collect();
        webs.iter().for_each(|web| web.publish(&lab));
        for number in 100..108 {
            let line = format!("addr add 192.0.2.{number}/32 dev eth0");
            lab.outside.ip(&[&line]);
        }
        let _tripod = node::start(&lab, &[]);
        for web in &webs {
            for number in 100..108 {
                let from = SocketAddr::from(([192, 0, 2, number], 0));
                let mut stream = tcp_from(&lab.outside, from, web.external()).expect("an answer");
                assert_eq!(say(&mut stream, "name").expect("an answer"), "b");
            }
        }
    });
}

#[test]
#[ignore = "for a guest kernel with IPVS"]
fn schedulers_spread_connections_as_they_say() {
    run(|| {
        let mut lab = Lab::new(Capture::Redirect);
        lab.add_backends(&["a", "b"]);
        for number in 100..108 {
            let line = format!("addr add 192.0.2.{number}/32 dev eth0");
            lab.outside.ip(&[&line]);
        }
        let annotations = SCHEDULERS.map(|(name, ..)| [("tripod.proxy/scheduler", name)]);
        let services: Vec<Web<'_>> = annotations
            .iter()
            .zip(1..)
            .map(|(annotations, number)| Web {
                number,
                port: 80,
                annotations,
                backends: &[("a", 3), ("b", 1)],
            })
            .collect();
        for service in &services {
            service.publish(&lab);
        }
        let tripod = node::start(&lab, &[]);
        assert_eq!(tripod.logged(&["no IPVS scheduler"]), 0, "{}", tripod.log());
        let mut wrong = Vec::new();
        for ((scheduler, calls, spread), service) in SCHEDULERS.iter().zip(&services) {
            let at = service.external();
            let listed = lab.node.show("ipvsadm -Sn");
            let as_asked = format!("-A -t {at} -s {scheduler}");
            assert!(listed.contains(&as_asked), "no {as_asked} in\n{listed}");
            if let Err(why) = judge(&lab, at, calls, spread) {
                wrong.push(format!("{scheduler}: {why}"));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    });
}

fn judge(lab: &Lab, at: SocketAddr, calls: &Calls, spread: &Spread) -> Result<(), String> {
    let call = |from: SocketAddr| {
        let mut stream = tcp_from(&lab.outside, from, at).map_err(|e| e.to_string())?;
        let name = say(&mut stream, "name").map_err(|e| e.to_string())?;
        Ok::<_, String>((name, stream))
    };
    let usual = SocketAddr::from(([192, 0, 2, 20], 0));
    if let Spread::Sticky = spread {
        let mut met = BTreeMap::<String, usize>::new();
        for number in 100..108 {
            let from = SocketAddr::from(([192, 0, 2, number], 0));
            let first = call(from)?.0;
            for _ in 0..3 {
                let again = call(from)?.0;
                if again != first {
                    return Err(format!("{from} got {first}, then {again}"));
                }
            }
            *met.entry(first).or_default() += 1;
        }
        return match met.len() {
            2 => Ok(()),
            _ => Err(format!("8 clients: {met:?}")),
        };
    }
    let number = match spread {
        Spread::InOrder(names) => names.len(),
        _ => 16,
    };
    let mut met: Vec<String> = Vec::new();
    let mut open: Vec<TcpStream> = Vec::new();
    for _ in 0..number {
        let (name, stream) = call(usual)?;
        met.push(name);
        if let Calls::Open = calls {
            open.push(stream);
        }
    }
    let of = |name: &str| met.iter().filter(|met| *met == name).count();
    let fits = match spread {
        Spread::Counts(expected, off) => {
            let mut expected = expected.iter();
            expected.all(|(name, n)| of(name).abs_diff(*n) <= *off)
        }
        Spread::InOrder(names) => met == *names,
        Spread::One => of(&met[0]) == number,
        Spread::Sticky => true,
    };
    if fits {
        Ok(())
    } else {
        Err(format!("{met:?}"))
    }
}

#[test]
#[ignore = "for a guest kernel with IPVS"]
fn least_connection_prefers_the_idle_one() {
    run(|| {
        let mut lab = Lab::new(Capture::Redirect);
        lab.add_backends(&["a", "b"]);
        let service = |backends| Web {
            number: 1,
            port: 80,
            annotations: &[("tripod.proxy/scheduler", "lc")],
            backends,
        };
        service(&[("a", 1)]).publish(&lab);
        let both = service(&[("a", 1), ("b", 1)]);
        let _tripod = node::start(&lab, &[]);
        let at = both.external();
        let hold = || {
            let mut stream = tcp(&lab.outside, at).expect("a connection");
            (say(&mut stream, "name").expect("an answer"), stream)
        };
        let busy: Vec<_> = (0..6).map(|_| hold()).collect();
        assert!(busy.iter().all(|(name, _)| name == "a"), "{busy:?}");
        both.publish(&lab);
        let both = ["10.244.0.11:8080 1", "10.244.0.12:8080 1"];
        eventually("both", Duration::from_secs(10), || {
            match node::reals(&lab.node, at) {
                found if found == both => Ok(()),
                found => Err(format!("{found:?}")),
            }
        });
        let then: Vec<_> = (0..6).map(|_| hold()).collect();
        assert!(then.iter().all(|(name, _)| name == "b"), "{then:?}");
    });
}

/// Gives the pod the address, on a link that answers no ARP request for it.
fn adopt(pod: &Host, link: &str, address: SocketAddr) {
    pod.enter(|| {
        for link in ["all", link] {
            for (key, value) in [("rp_filter", "0"), ("arp_ignore", "1")] {
                let file = format!("/proc/sys/net/ipv4/conf/{link}/{key}");
                std::fs::write(&file, value).unwrap_or_else(|e| panic!("{file}: {e}"));
            }
        }
    });
    pod.ip(&[
        &format!("link set {link} up"),
        &format!("addr add {}/32 dev {link}", address.ip()),
    ]);
}

/// Returns the endpoint that `tripod explain` shows for the only connection to `to`, which is
/// not stale. If IPVS does not translate, conntrack does not show the endpoint.
fn endpoint_explained(lab: &Lab, to: SocketAddr) -> Value {
    let mut command = lab.node.command(tripod_binary());
    command.args(["explain", "--output=json", "--to", &to.to_string()]);
    let done = command.output().expect("running tripod");
    let answer: Value = serde_json::from_slice(&done.stdout).expect("JSON");
    let found = &answer["connections"];
    assert_eq!(
        (&found["total"], &found["stale"]),
        (&json!(1), &json!(0)),
        "{answer:#}"
    );
    found["items"][0]["endpoint"].clone()
}

#[test]
#[ignore = "for a guest kernel with IPVS"]
fn every_way_of_forwarding_carries_connections() {
    run(|| {
        let mut lab = Lab::new(Capture::Redirect);
        lab.three_backends();
        lab.node.show("modprobe ipip");
        let client = lab.client.addresses[0];
        let gateway = "10.244.0.1";
        let through = |forwarding: &'static str| [("tripod.proxy/forwarding", forwarding)];
        let (dr, tunnel, fullnat) = (through("dr"), through("tunnel"), through("fullnat"));
        // On one bridge without br_netfilter: with nat alone, the answer of the pod would
        // bypass the node.
        let service = |number, port, annotations, backends| Web {
            number,
            port,
            annotations,
            backends,
        };
        let dr = service(1, 8080, &dr, &[("a", 1)]);
        let tunnel = service(2, 8080, &tunnel, &[("b", 1)]);
        let fullnat = service(3, 80, &fullnat, &[("c", 1)]);
        adopt(pod(&lab, "a"), "lo", dr.cluster());
        adopt(pod(&lab, "b"), "tunl0", tunnel.cluster());
        for service in [&dr, &tunnel, &fullnat] {
            service.publish(&lab);
        }
        let tripod = node::start(&lab, &[]);
        for (service, flag, backend, seen) in [
            (&dr, "-g", "a", client.to_string()),
            (&tunnel, "-i", "b", client.to_string()),
            (&fullnat, "-m", "c", gateway.to_owned()),
        ] {
            let at = service.cluster();
            let listed = lab.node.show("ipvsadm -Sn");
            let line = listed
                .lines()
                .find(|l| l.starts_with(&format!("-a -t {at} ")));
            assert!(
                line.is_some_and(|l| l.contains(flag)),
                "{at} {flag}: {listed}"
            );
            let mut stream = tcp(&lab.client, at).expect(flag);
            // In both directions, more than once.
            for _ in 0..3 {
                let who = say(&mut stream, "who").expect(flag);
                assert_eq!(who, format!("{backend} {seen} 8080"), "{flag}");
            }
            let endpoint = SocketAddr::new(pod(&lab, backend).addresses[0], 8080);
            assert_eq!(
                endpoint_explained(&lab, at),
                json!(endpoint.to_string()),
                "{flag}"
            );
        }

        // Requests that this method cannot serve are logged, and forwarded by nat.
        let other_port = Web {
            port: 80,
            ..service(4, 80, dr.annotations, &[("a", 1)])
        };
        other_port.publish(&lab);
        eventually("nat instead", Duration::from_secs(10), || {
            let listed = lab.node.show("ipvsadm -Sn");
            let masqueraded = format!("-a -t {} -r 10.244.0.11:8080 -m", other_port.external());
            if !listed.contains(&masqueraded) {
                return Err(listed);
            }
            match tripod.logged(&["dr does not translate ports"]) {
                0 => Err(tripod.log()),
                _ => ask(&lab.outside, other_port.external())
                    .map(drop)
                    .map_err(|e| e.to_string()),
            }
        });
    });
}
