//! `tripod check` on three nodes: a healthy cluster has no fault, and each fault that is made is
//! found at its node.

use std::{
    collections::BTreeSet,
    net::TcpListener,
    process::{Child, Command, Stdio},
    time::Instant,
};

use serde_json::{Value, json};

use super::{
    Cluster, NFTABLES, SOON, kubelet,
    nodes::{NAMES, Nodes, port},
};
use crate::lab::{answer_in, eventually, figure, run, tripod_binary};

/// What a report says.
#[derive(Debug)]
struct Checked {
    status: Option<i32>,
    text: String,
}

impl Checked {
    fn of(mut command: Command) -> Checked {
        let output = command.output().expect("running tripod");
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        Checked {
            status: output.status.code(),
            text: text(&output.stdout),
        }
    }

    fn of_all(nodes: &Nodes) -> Checked {
        Checked::of(nodes.plugin(&["check", "--timeout=5s", "--output=json"]))
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    fn faults(&self) -> Vec<Value> {
        self.json()["faults"].as_array().expect("a list").clone()
    }

    /// Checks that the fault is found, and that no other node is blamed.
    fn finds(&self, fault: &Fault) {
        assert_eq!(self.status, Some(1), "{}: {self:?}", fault.name);
        let nodes = |found: &Value| -> BTreeSet<String> {
            serde_json::from_value(found["nodes"].clone()).expect("names")
        };
        let faults = self.faults();
        let is_it = |found: &&Value| {
            let has = |field: &str, words: &str| {
                found[field]
                    .as_str()
                    .is_some_and(|text| text.contains(words))
            };
            let blamed = nodes(found);
            let right = fault.nodes.iter().all(|at| blamed.contains(NAMES[*at]));
            right && has("object", fault.object) && has("problem", fault.problem)
        };
        assert!(
            faults.iter().any(|found| is_it(&found)),
            "{}: {faults:#?}",
            fault.name
        );
        let allowed: BTreeSet<String> =
            fault.nodes.iter().map(|at| NAMES[*at].to_owned()).collect();
        for found in &faults {
            assert!(
                nodes(found).is_subset(&allowed),
                "{}: {faults:#?}",
                fault.name
            );
            for field in ["object", "problem", "remedy"] {
                assert_ne!(found[field], "", "{found}");
            }
        }
    }
}

/// Something wrong, and how it must be reported.
struct Fault {
    name: &'static str,
    make: fn(&mut Nodes) -> Option<Cleanup>,
    repair: fn(&mut Nodes),
    nodes: &'static [usize],
    object: &'static str,
    problem: &'static str,
}

/// What ends with a fault.
enum Cleanup {
    Program(Child),
    Listener(#[allow(dead_code, reason = "it is held")] TcpListener),
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        if let Cleanup::Program(child) = self {
            let _ = child.kill().and_then(|()| child.wait());
        }
    }
}

const FAULTS: [Fault; 15] = [
    Fault {
        name: "another program removes rules again and again",
        make: |nodes| {
            let mut shell = nodes.nodes[0].host.command("sh");
            shell.args([
                "-c",
                "while :; do nft flush map ip tripod services; sleep 0.02; done",
            ]);
            shell.stderr(Stdio::null());
            Some(Cleanup::Program(shell.spawn().expect("running sh")))
        },
        repair: |_| (),
        nodes: &[0],
        object: "cluster IP 10.96.0.1:80 TCP of default/web",
        problem: "promised: sent to one of",
    },
    Fault {
        name: "Tripod is stopped",
        make: |nodes| {
            nodes.nodes[1].tripod.as_ref()?.freeze();
            None
        },
        repair: |nodes| {
            nodes.nodes[1]
                .tripod
                .iter()
                .for_each(|tripod| tripod.thaw())
        },
        nodes: &[1],
        object: "Tripod",
        problem: "does not answer",
    },
    Fault {
        name: "Tripod has lost the API server",
        make: |nodes| {
            nodes.servers[1].down();
            nodes.until_status(2, "it is noticed", |status| status["healthy"] == false);
            None
        },
        repair: |nodes| {
            nodes.servers[1].up();
            nodes.until_status(2, "it follows again", |status| status["healthy"] == true);
        },
        nodes: &[2],
        object: "Tripod",
        problem: "cannot be followed",
    },
    Fault {
        name: "Tripod hears of no changes",
        make: |nodes| {
            let late = json!({"ports": [port("TCP", 80, None)]});
            let late = nodes.service("late", 7, late, true);
            nodes.servers[0].change(|cluster| late.into_iter().for_each(|one| cluster.put(one)));
            for at in [0, 1] {
                nodes.until_status(at, "it is served", |status| {
                    status["counts"]["services"] == 7
                });
            }
            None
        },
        repair: |nodes| {
            let late = nodes.service("late", 7, json!({"ports": [port("TCP", 80, None)]}), true);
            nodes.servers[0].change(|cluster| late.iter().for_each(|one| cluster.delete(one)));
        },
        nodes: &[2],
        object: "Services and EndpointSlices",
        problem: "does not follow changes",
    },
    Fault {
        name: "an endpoint is dead",
        make: |nodes| {
            nodes.nodes[1].pods[1].server = None;
            None
        },
        repair: |nodes| {
            let pod = &mut nodes.nodes[1].pods[1];
            pod.server = Some(answer_in(&pod.host));
        },
        nodes: &[1],
        object: "endpoint 10.244.2.12:",
        problem: "refuses connections",
    },
    Fault {
        name: "a packet filter drops a health-check node port",
        make: |nodes| {
            block(
                nodes,
                2,
                "-t raw -I PREROUTING -i eth0 -p tcp --dport 32003 -j DROP",
            )
        },
        repair: |nodes| unblock(nodes, 2, "-t raw -F PREROUTING"),
        nodes: &[2],
        object: "health-check node port 192.0.2.13:32003 of default/balanced",
        problem: "timed out",
    },
    Fault {
        name: "a packet filter drops a node port",
        make: |nodes| {
            block(
                nodes,
                0,
                "-t raw -I PREROUTING -i eth0 -p tcp --dport 30080 -j DROP",
            )
        },
        repair: |nodes| unblock(nodes, 0, "-t raw -F PREROUTING"),
        nodes: &[0],
        object: "node port 192.0.2.11:30080 TCP of default/web",
        problem: "does not answer",
    },
    Fault {
        name: "a packet filter drops all node ports",
        make: |nodes| {
            let ports = [port("TCP", 80, Some(30_087))];
            put(nodes, "more", json!({"type": "NodePort", "ports": ports}));
            block(
                nodes,
                0,
                "-t raw -I PREROUTING -i eth0 -p tcp --dport 30000:30100 -j DROP",
            )
        },
        repair: |nodes| {
            unblock(nodes, 0, "-t raw -F PREROUTING");
            remove(nodes, "more");
        },
        nodes: &[0],
        object: "node ports of 192.0.2.11",
        problem: "none of those called answers",
    },
    Fault {
        name: "a node cannot reach a cluster IP",
        make: |nodes| block(nodes, 0, "-t raw -I OUTPUT -d 10.96.0.1 -j DROP"),
        repair: |nodes| unblock(nodes, 0, "-t raw -F OUTPUT"),
        nodes: &[0],
        object: "cluster IP 10.96.0.1:80 TCP of default/web",
        problem: "promised: sent to one of",
    },
    Fault {
        name: "a Service without endpoints hangs",
        make: |nodes| block(nodes, 2, "-t raw -I OUTPUT -d 10.96.0.2 -j DROP"),
        repair: |nodes| unblock(nodes, 2, "-t raw -F OUTPUT"),
        nodes: &[2],
        object: "cluster IP 10.96.0.2:80 TCP of default/empty",
        problem: "promised: refused",
    },
    Fault {
        name: "a node forwards nothing to its pods",
        make: |nodes| block(nodes, 1, "-P FORWARD DROP"),
        repair: |nodes| unblock(nodes, 1, "-P FORWARD ACCEPT"),
        nodes: &[1],
        object: "IPv4 pods of node node-b",
        problem: "none of its endpoints answers another node",
    },
    Fault {
        name: "a kernel setting was changed",
        make: |nodes| {
            let setting = "net.netfilter.nf_conntrack_tcp_timeout_established=60";
            nodes.nodes[1].host.show(&format!("sysctl -qw {setting}"));
            None
        },
        repair: |nodes| {
            let setting = "net.netfilter.nf_conntrack_tcp_timeout_established=86400";
            nodes.nodes[1].host.show(&format!("sysctl -qw {setting}"));
        },
        nodes: &[1],
        object: "nf_conntrack_tcp_timeout_established",
        problem: "altered in the kernel",
    },
    Fault {
        name: "two Services have one external IP",
        make: |nodes| {
            put(
                nodes,
                "thief",
                json!({
                    "externalIPs": ["198.51.100.4"], "ports": [port("TCP", 80, None)],
                }),
            );
            None
        },
        repair: |nodes| remove(nodes, "thief"),
        nodes: &[0, 1, 2],
        object: "default/thief",
        problem: "198.51.100.4",
    },
    Fault {
        name: "another program has a health-check node port",
        make: |nodes| {
            let listener = nodes.nodes[1]
                .host
                .enter(|| TcpListener::bind("0.0.0.0:32007"));
            put(
                nodes,
                "taken",
                json!({
                    "type": "LoadBalancer", "externalTrafficPolicy": "Local",
                    "healthCheckNodePort": 32_007, "ports": [port("TCP", 80, Some(30_087))],
                }),
            );
            nodes.until_status(1, "it is refused", |status| status["healthy"] == false);
            Some(Cleanup::Listener(listener.expect("a listener")))
        },
        repair: |nodes| remove(nodes, "taken"),
        nodes: &[1],
        object: "health-check node port 192.0.2.12:32007 of default/taken",
        problem: "cannot be served",
    },
    Fault {
        name: "a node runs another mode",
        make: |nodes| {
            nodes.run_tripod(2, "iptables");
            None
        },
        repair: |nodes| nodes.run_tripod(2, "nftables"),
        nodes: &[2],
        object: "mode",
        problem: "iptables runs, and nftables on most nodes",
    },
];

fn block(nodes: &Nodes, at: usize, rule: &str) -> Option<Cleanup> {
    nodes.nodes[at].host.show(&format!("iptables {rule}"));
    None
}

fn unblock(nodes: &Nodes, at: usize, rule: &str) {
    block(nodes, at, rule);
}

/// Adds a Service to the objects of all nodes, and waits until it is known.
fn put(nodes: &Nodes, name: &str, spec: Value) {
    let objects = nodes.service(name, 7, spec, true);
    nodes.change(|cluster| objects.iter().for_each(|one| cluster.put(one.clone())));
    for at in 0..NAMES.len() {
        nodes.until_status(at, "it is known", |status| {
            status["counts"]["services"] == 7
        });
    }
}

fn remove(nodes: &Nodes, name: &str) {
    let objects = nodes.service(name, 7, json!({"ports": [port("TCP", 80, None)]}), true);
    nodes.change(|cluster| objects.iter().for_each(|one| cluster.delete(one)));
}

#[test]
fn each_fault_of_three_nodes_is_found_where_it_is() {
    run(|| {
        let mut nodes = Nodes::start();
        let begun = Instant::now();
        let healthy = Checked::of_all(&nodes);
        figure(
            "check of three healthy nodes, seconds",
            begun.elapsed().as_secs_f64(),
        );
        assert_eq!(healthy.status, Some(0), "{healthy:?}");
        assert_eq!(healthy.json()["notes"], json!([]), "{healthy:?}");
        for fault in FAULTS {
            let made = (fault.make)(&mut nodes);
            let begun = Instant::now();
            Checked::of_all(&nodes).finds(&fault);
            figure(fault.name, begun.elapsed().as_secs_f64());
            drop(made);
            (fault.repair)(&mut nodes);
            eventually("it is repaired", SOON, || {
                let checked = Checked::of_all(&nodes);
                match checked.status {
                    Some(0) => Ok(()),
                    _ => Err(format!("{}: {checked:?}", fault.name)),
                }
            });
        }
    });
}

/// Adds 25 Services whose endpoints, on a node that is not checked, are silent.
fn add_silent(nodes: &Nodes) {
    let spec = json!({"ports": [port("TCP", 80, None)]});
    let objects = (100..125).flat_map(|number| {
        let name = format!("silent-{number}");
        let [service, mut slice, _] = nodes.service(&name, number, spec.clone(), true);
        let endpoints = (1..=8).map(
            |host| json!({"addresses": [format!("10.244.{number}.{host}")], "nodeName": "node-d"}),
        );
        slice["endpoints"] = endpoints.collect();
        [service, slice]
    });
    let objects: Vec<Value> = objects.collect();
    nodes.change(|cluster| objects.iter().for_each(|one| cluster.put(one.clone())));
    nodes.until_status(0, "they are known", |status| {
        status["counts"]["services"] == 31
    });
}

#[test]
fn silent_endpoints_leave_time_for_addresses() {
    run(|| {
        let nodes = Nodes::start();
        add_silent(&nodes);
        block(&nodes, 0, "-t raw -I OUTPUT -d 10.96.0.1 -j DROP");
        let arguments = ["check", "--timeout=10s", "--output=json", "--node=node-a"];
        let checked = Checked::of(nodes.plugin(&arguments));
        let faults = checked.faults();
        let objects: Vec<&Value> = faults.iter().map(|one| &one["object"]).collect();
        assert_eq!(objects, ["cluster IP 10.96.0.1:80 TCP of default/web"]);
        let notes = checked.json()["notes"].to_string();
        assert!(notes.contains("addresses cannot be judged"), "{notes}");
    });
}

#[test]
fn a_tripod_that_stops_during_the_check_is_found() {
    run(|| {
        let nodes = Nodes::start();
        add_silent(&nodes);
        let mut check = nodes.plugin(&["check", "--output=json"]);
        let check = check.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let check = check.expect("running tripod");
        eventually("endpoints are called", SOON, || {
            let calls = nodes.nodes[0].host.show("ss -Htn state syn-sent");
            (!calls.is_empty()).then_some(()).ok_or(calls)
        });
        let tripod = nodes.nodes[0].tripod.as_ref().expect("it runs");
        tripod.freeze();
        let output = check.wait_with_output().expect("its output");
        tripod.thaw();
        let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
        let fault = &report["faults"][0];
        assert_eq!(fault["nodes"], json!(["node-a"]), "{report}");
        assert_eq!(fault["object"], "Tripod", "{report}");
        assert_eq!(
            report["nodes"].as_array().map(Vec::len),
            Some(3),
            "{report}"
        );
    });
}

#[test]
fn a_limit_of_connections_is_no_fault() {
    run(|| {
        let mut nodes = Nodes::start();
        let mut objects = nodes.service("few", 7, json!({"ports": [port("TCP", 80, None)]}), true);
        objects[0]["metadata"]["annotations"] = json!({"tripod.proxy/max-connections": "1"});
        nodes.change(|cluster| objects.iter().for_each(|one| cluster.put(one.clone())));
        for mode in ["nftables", "userspace"] {
            nodes.run_tripod(0, mode);
            let arguments = ["check", "--output=json", "--node=node-a"];
            let checked = Checked::of(nodes.plugin(&arguments));
            assert_eq!(checked.status, Some(0), "{mode}: {checked:?}");
        }
    });
}

/// The rules of the node refuse the query before it is sent.
#[test]
fn a_dns_service_without_endpoints_is_no_fault() {
    run(|| {
        let mut nodes = Nodes::start();
        let objects = nodes.service("none", 7, json!({"ports": [port("UDP", 53, None)]}), false);
        nodes.change(|cluster| objects.iter().for_each(|one| cluster.put(one.clone())));
        for mode in ["nftables", "iptables", "userspace"] {
            nodes.run_tripod(0, mode);
            let arguments = ["check", "--output=json", "--node=node-a"];
            let checked = Checked::of(nodes.plugin(&arguments));
            assert_eq!(checked.status, Some(0), "{mode}: {checked:?}");
        }
    });
}

#[test]
fn healthy_nodes_have_no_fault_in_other_modes() {
    run(|| {
        let mut nodes = Nodes::start();
        for mode in ["iptables", "userspace"] {
            for at in 0..NAMES.len() {
                nodes.run_tripod(at, mode);
            }
            let checked = Checked::of_all(&nodes);
            assert_eq!(checked.status, Some(0), "{mode}: {checked:?}");
            assert_eq!(checked.json()["notes"], json!([]), "{mode}: {checked:?}");
            assert_eq!(checked.json()["nodes"][0]["mode"], mode);
        }
    });
}

#[test]
fn services_made_for_a_check_are_tested_and_removed() {
    run(|| {
        for (fault, status) in [(kubelet::Fault::None, 0), (kubelet::Fault::Stranger, 1)] {
            let cluster = Cluster::start(&NFTABLES, fault);
            let mut command = cluster.network.node.command(tripod_binary());
            let kubeconfig = cluster.tcp.file("kubeconfig");
            command
                .args([
                    "check",
                    "--output=json",
                    "--image=tripod:test",
                    "--timeout=60s",
                ])
                .arg(format!("--make={}", kubeconfig.display()));
            let checked = Checked::of(command);
            assert_eq!(checked.status, Some(status), "{checked:?}");
            let names_it = |fault: &Value| fault["problem"].to_string().contains("stranger");
            assert_eq!(checked.faults().iter().any(names_it), status == 1);
            cluster.is_clean();
        }
    });
}
