//! The cluster's part in running pods and Services: it starts the pods' processes, says that they
//! are ready, and keeps EndpointSlices.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::Duration,
};

use serde_json::{Value, json};

use super::network::Network;
use crate::{
    api::{
        cluster::{PODS, SERVICES, SLICES, Selector},
        server::Server,
    },
    lab::{Group, Host, eventually, tripod_binary},
};

/// A way in which it differs from a real cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// No pod starts.
    NoPods,
    /// The slices have another server's address in place of that of `here-2`.
    Stranger,
}

/// Runs until it is dropped.
pub struct Kubelet {
    done: Arc<AtomicBool>,
    server: Server,
    thread: Option<JoinHandle<()>>,
}

impl Kubelet {
    pub fn start(network: Arc<Network>, server: &Server, fault: Fault) -> Kubelet {
        let done = Arc::new(AtomicBool::new(false));
        let runtime = tokio::runtime::Handle::current();
        let mut work = Work {
            network,
            server: server.clone(),
            fault,
            pods: BTreeMap::new(),
            next: 11,
            stranger: None,
        };
        let until = Arc::clone(&done);
        let thread = std::thread::spawn(move || {
            let mut changes = work.server.changes();
            while !until.load(Relaxed) {
                changes.mark_unchanged();
                work.pods();
                work.services();
                if runtime.block_on(changes.changed()).is_err() {
                    return;
                }
            }
        });
        Kubelet {
            done,
            server: server.clone(),
            thread: Some(thread),
        }
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.done.store(true, Relaxed);
        self.server.change(|_| ());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The last byte of the address of the pod `here-2`.
const HERE_2: u8 = 90;

/// A pod that runs: its process, then its namespace, in the order in which they end.
struct Running {
    _process: Group,
    host: Host,
}

struct Work {
    network: Arc<Network>,
    server: Server,
    fault: Fault,
    pods: BTreeMap<String, Running>,
    next: u8,
    stranger: Option<Running>,
}

impl Work {
    fn list(&self, collection: &str) -> Vec<Value> {
        (self.server).inspect(|cluster| cluster.list(collection, &Selector::default()))
    }

    fn pods(&mut self) {
        let pods = self.list(PODS);
        self.pods.retain(|name, _| {
            let named = |pod: &Value| pod["metadata"]["name"] == **name;
            pods.iter().any(named)
        });
        for mut pod in pods {
            let name = pod["metadata"]["name"].as_str().expect("a name").to_owned();
            if self.pods.contains_key(&name) || self.fault == Fault::NoPods {
                continue;
            }
            let running = self.run(&name, &pod);
            let [v4, v6] = running.host.addresses;
            let node = match pod["spec"]["nodeName"].as_str() {
                Some("node") => &self.network.node,
                _ => &self.network.other,
            };
            let hosts = node.addresses.map(|ip| json!({"ip": ip}));
            pod["status"] = json!({
                "phase": "Running", "podIP": v4, "podIPs": [{"ip": v4}, {"ip": v6}],
                "hostIP": node.addresses[0], "hostIPs": hosts,
                "conditions": [{"type": "Ready", "status": "True"}],
            });
            self.pods.insert(name, running);
            self.server.change(|cluster| cluster.put(pod));
        }
    }

    /// Starts the pod's process as the container runtime would, and waits until it answers.
    fn run(&mut self, name: &str, pod: &Value) -> Running {
        let on = pod["spec"]["nodeName"].as_str().expect("a node");
        let container = &pod["spec"]["containers"][0];
        let command: Vec<&str> = (container["command"].as_array().expect("a command").iter())
            .map(|word| word.as_str().expect("a word"))
            .collect();
        assert_eq!(command[0], "/usr/local/bin/tripod");
        let arguments = &command[1..];
        // The others are numbered as they come, an order that differs from run to run.
        let number = if name == "here-2" { HERE_2 } else { self.next };
        self.next += u8::from(number == self.next);
        let host = self.network.pod(name, on, number);
        let running = start(host, arguments);
        if self.fault == Fault::Stranger && name == "here-2" {
            let host = self.network.pod("stranger", on, 99);
            let arguments: Vec<&str> = (arguments.iter())
                .map(|word| match *word {
                    "--name=here-2" => "--name=stranger",
                    word => word,
                })
                .collect();
            self.stranger = Some(start(host, &arguments));
        }
        running
    }

    fn services(&self) {
        let pods = self.list(PODS);
        let services = self.list(SERVICES);
        for service in &services {
            for (family, kind) in ["IPv4", "IPv6"].into_iter().enumerate() {
                self.keep(self.slice(service, &pods, family, kind));
            }
        }
        for slice in self.list(SLICES) {
            let of = &slice["metadata"]["labels"]["kubernetes.io/service-name"];
            let stays = services.iter().any(|service| {
                service["metadata"]["name"] == *of
                    && service["metadata"]["namespace"] == slice["metadata"]["namespace"]
            });
            if !stays {
                self.server.change(|cluster| cluster.delete(&slice));
            }
        }
    }

    /// Stores a slice if it differs from the stored one.
    fn keep(&self, slice: Value) {
        let text = |field: &str| slice["metadata"][field].as_str().expect("text");
        let (namespace, name) = (text("namespace"), text("name"));
        let same = self.server.inspect(|cluster| {
            let there = cluster.get(SLICES, namespace, name);
            there.is_some_and(|there| there["endpoints"] == slice["endpoints"])
        });
        if !same {
            self.server.change(|cluster| cluster.put(slice));
        }
    }

    fn slice(&self, service: &Value, pods: &[Value], family: usize, kind: &str) -> Value {
        let selector = service["spec"]["selector"].as_object().expect("a selector");
        let selected = pods.iter().filter(|pod| {
            let labels = &pod["metadata"]["labels"];
            let ready = pod["status"]["podIPs"].is_array();
            ready && selector.iter().all(|(key, value)| labels[key] == *value)
        });
        let endpoints = selected.map(|pod| {
            let mut address = pod["status"]["podIPs"][family]["ip"].clone();
            if let Some(stranger) = &self.stranger
                && pod["metadata"]["name"] == "here-2"
            {
                address = json!(stranger.host.addresses[family]);
            }
            let mut endpoint = json!({
                "addresses": [address], "nodeName": pod["spec"]["nodeName"],
                "conditions": {"ready": true, "serving": true, "terminating": false},
            });
            if service["spec"]["trafficDistribution"] == "PreferSameNode" {
                let name = &pod["spec"]["nodeName"];
                endpoint["hints"] = json!({"forNodes": [{"name": name}]});
            }
            endpoint
        });
        let name = service["metadata"]["name"].as_str().expect("a name");
        let ports = ["TCP", "UDP"].map(
            |protocol| json!({"name": protocol.to_lowercase(), "protocol": protocol, "port": 8080}),
        );
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": format!("{name}-{}", kind.to_lowercase()),
                "namespace": service["metadata"]["namespace"],
                "labels": {"kubernetes.io/service-name": name},
            },
            "addressType": kind, "ports": ports, "endpoints": endpoints.collect::<Vec<_>>(),
        })
    }
}

fn start(host: Host, arguments: &[&str]) -> Running {
    let mut command = host.command(tripod_binary());
    command.args(arguments);
    let process = Group::spawn(&mut command).expect("a pod's process");
    let at: SocketAddr = (Ipv4Addr::LOCALHOST, 8081).into();
    // The agent's port opens last.
    eventually("the pod answers", Duration::from_secs(20), || {
        host.enter(|| TcpStream::connect(at).map(drop))
            .map_err(|error| error.to_string())
    });
    Running {
        _process: process,
        host,
    }
}

/// Gives a Service its addresses and ports, as the API server does; other objects stay as
/// they are.
pub fn admit(object: &mut Value, number: u64) {
    if object["kind"] != "Service" {
        return;
    }
    let number = number % 200 + 10;
    let spec = &mut object["spec"];
    let v4 = format!("10.96.0.{number}");
    spec["clusterIP"] = json!(v4);
    spec["clusterIPs"] = json!([v4, format!("fd00:96::{number}")]);
    spec["ipFamilies"] = json!(["IPv4", "IPv6"]);
    if spec["type"] == "NodePort" {
        for (at, port) in spec["ports"]
            .as_array_mut()
            .expect("ports")
            .iter_mut()
            .enumerate()
        {
            port["nodePort"] = json!(30_000 + 2 * number + at as u64);
        }
    }
    if spec["type"] == "LoadBalancer" && spec["externalTrafficPolicy"] == "Local" {
        spec["healthCheckNodePort"] = json!(32_000 + number);
    }
    if spec["sessionAffinity"] == "ClientIP" {
        spec["sessionAffinityConfig"] = json!({"clientIP": {"timeoutSeconds": 10800}});
    }
}
