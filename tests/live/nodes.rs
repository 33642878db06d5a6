//! Three nodes with two pods each, all of which run Tripod, and a substitute for kubectl.
//!
//! ```text
//!   node-a 192.0.2.11 ──┬── 192.0.2.12 node-b      node-c 192.0.2.13
//!    10.244.1.11, .12   └──────────┬────────────────┘
//! ```

use std::{
    fs,
    net::{Ipv4Addr, Ipv6Addr},
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    process::Command,
};

use serde_json::{Value, json};

use super::{SOON, network::pod_on, node};
use crate::{
    api::{cluster::Cluster, server::Server, tcp_server::TcpServer, tls::Authority},
    lab::{BACKEND_PORT, Group, Host, Tripod, answer_in, eventually, tripod_binary},
};

pub const NAMES: [&str; 3] = ["node-a", "node-b", "node-c"];

/// A pod, which answers under its name.
pub struct Pod {
    pub host: Host,
    pub server: Option<Group>,
    node: &'static str,
}

/// One of the nodes.
pub struct Node {
    pub tripod: Option<Tripod>,
    pub pods: Vec<Pod>,
    pub host: Host,
    api: TcpServer,
}

/// The cluster. The last node has an API server of its own, with the same objects.
pub struct Nodes {
    pub nodes: Vec<Node>,
    pub servers: [Server; 2],
    _switch: Host,
    runtime: tokio::runtime::Runtime,
}

/// Where the plugin is.
const FOLDER: &str = "/run/kubectl";

const KUBECTL: &str = r#"#!/bin/sh
case "$*" in
*"get pods"*) cat "${0%/*}/pods" ;;
*"get nodes"*) cat "${0%/*}/nodes" ;;
*"exec"*)
    while [ "$1" != -- ]; do
        case "$1" in tripod-*) node=${1#tripod-} ;; esac
        shift
    done
    shift 2
    ip netns exec "$node" "$TRIPOD_IN_POD" "$@" "--status-socket=/run/$node.sock"
    status=$?
    [ $status = 0 ] || echo "command terminated with exit code $status" >&2
    exit $status ;;
*) exit 1 ;;
esac
"#;

impl Nodes {
    pub fn start() -> Nodes {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        let switch = Host::new("switch", Ipv4Addr::UNSPECIFIED, Ipv6Addr::UNSPECIFIED);
        switch.ip(&["link add bridge type bridge", "link set bridge up"]);
        let servers = [Server::new(), Server::new()];
        let authority = Authority::new();
        let nodes = NAMES.into_iter().enumerate().map(|(at, name)| {
            let host = connected(&switch, at, name);
            let _entered = runtime.enter();
            let listener = host.enter(|| std::net::TcpListener::bind("127.0.0.1:0"));
            let listener = listener.expect("a listener");
            listener.set_nonblocking(true).expect("a listener");
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
            let server = servers[at / 2].clone();
            let pods = [1, 2].map(|number| {
                let name = format!("{name}-{number}");
                let host = pod_on(&host, at as u8 + 1, &name, 10 + number);
                Pod {
                    server: Some(answer_in(&host)),
                    node: NAMES[at],
                    host,
                }
            });
            Node {
                api: TcpServer::open_by(listener, "127.0.0.1", server, name, &authority, false),
                pods: pods.into(),
                host,
                tripod: None,
            }
        });
        let mut nodes = Nodes {
            nodes: nodes.collect(),
            servers,
            _switch: switch,
            runtime,
        };
        let objects = nodes.objects();
        nodes.change(|cluster| {
            objects
                .iter()
                .for_each(|object| cluster.put(object.clone()))
        });
        for at in 0..NAMES.len() {
            nodes.run_tripod(at, "nftables");
        }
        nodes.write_plugin();
        nodes
    }

    /// Changes the objects of all nodes.
    pub fn change(&self, change: impl Fn(&mut Cluster)) {
        self.servers
            .iter()
            .for_each(|server| server.change(&change));
    }

    /// Starts Tripod on a node, in place of the one that runs.
    pub fn run_tripod(&mut self, at: usize, mode: &str) {
        let node = &mut self.nodes[at];
        if let Some(mut tripod) = node.tripod.take() {
            tripod.terminate();
        }
        let (name, subnet) = (NAMES[at], at + 1);
        let mut command = node.host.command(tripod_binary());
        command
            .arg("--kubeconfig")
            .arg(node.api.file("kubeconfig"))
            .arg(format!("--status-socket=/run/{name}.sock"))
            .arg(format!("--hostname-override={name}"))
            .arg(format!("--proxy-mode={mode}"))
            .arg(format!(
                "--cluster-cidr=10.244.{subnet}.0/24,fd00:244:0:{subnet}::/64"
            ))
            .args(["--conntrack-max-per-core=0", "--v=2"]);
        node.tripod = Some(Tripod::start_on(&node.host, command));
    }

    fn objects(&self) -> Vec<Value> {
        let mut objects: Vec<Value> = (11..).zip(NAMES).map(|(n, name)| node(name, n)).collect();
        let web = json!({"type": "NodePort", "ports": [port("TCP", 80, Some(30_080))]});
        let balanced = json!({
            "type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 32_003,
            "ports": [port("TCP", 80, Some(30_083))],
        });
        let external = json!({
            "externalIPs": ["198.51.100.4", "2001:db8:51::4"], "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 10_800}},
            "ports": [port("TCP", 80, None)],
        });
        objects.extend(self.service("web", 1, web, true));
        let empty = json!({"ports": [port("TCP", 80, None)]});
        objects.extend(self.service("empty", 2, empty, false));
        objects.extend(self.service("balanced", 3, balanced, true));
        objects.extend(self.service("external", 4, external, true));
        let dns = json!({"ports": [port("UDP", 53, None)]});
        objects.extend(self.service("dns", 5, dns, true));
        // No server answers at it, and nothing is sent there.
        let quiet = json!({"ports": [port("UDP", 9, None)]});
        objects.extend(self.service("quiet", 6, quiet, true));
        objects
    }

    /// Returns a Service and its slices, with all pods as endpoints or with none.
    pub fn service(&self, name: &str, number: u8, mut spec: Value, served: bool) -> [Value; 3] {
        let v4 = format!("10.96.0.{number}");
        spec["clusterIP"] = json!(v4);
        spec["clusterIPs"] = json!([v4, format!("fd00:96::{number}")]);
        spec["ipFamilies"] = json!(["IPv4", "IPv6"]);
        let status = match &spec["type"] {
            kind if kind == "LoadBalancer" => json!({"loadBalancer": {"ingress": [
                {"ip": format!("203.0.113.{number}")}, {"ip": format!("2001:db8:113::{number}")},
            ]}}),
            _ => json!({}),
        };
        let protocol = spec["ports"][0]["protocol"].clone();
        let slice = |family: usize, kind: &str| {
            let pods = self.nodes.iter().flat_map(|node| &node.pods);
            let endpoints = pods.filter(|_| served).map(|pod| {
                json!({
                    "addresses": [pod.host.addresses[family]], "nodeName": pod.node,
                    "conditions": {"ready": true, "serving": true, "terminating": false},
                })
            });
            json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": {
                    "name": format!("{name}-{family}"), "namespace": "default",
                    "labels": {"kubernetes.io/service-name": name},
                },
                "addressType": kind, "endpoints": endpoints.collect::<Vec<_>>(),
                "ports": [{"name": "", "protocol": protocol, "port": BACKEND_PORT}],
            })
        };
        let service = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": name, "namespace": "default"}, "spec": spec, "status": status,
        });
        [service, slice(0, "IPv4"), slice(1, "IPv6")]
    }

    fn write_plugin(&self) {
        let folder = Path::new(FOLDER);
        fs::create_dir_all(folder).expect("a folder");
        symlink(tripod_binary(), folder.join("kubectl-tripod")).expect("a link");
        let kubectl = folder.join("kubectl");
        fs::write(&kubectl, KUBECTL).expect("a file");
        fs::set_permissions(&kubectl, fs::Permissions::from_mode(0o755)).expect("its mode");
        let pods = self.nodes.iter().zip(NAMES).map(|(node, name)| {
            let ips = node.host.addresses.map(|ip| json!({"ip": ip}));
            json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": format!("tripod-{name}")},
                "spec": {"nodeName": name, "containers": [{"name": "kube-proxy"}]},
                "status": {"phase": "Running", "hostIPs": ips},
            })
        });
        let pods = json!({"items": pods.collect::<Vec<_>>()});
        fs::write(folder.join("pods"), pods.to_string()).expect("a file");
        let nodes = NAMES.map(|name| format!("{name}   Ready   <none>   1d   v1.36.0\n"));
        fs::write(folder.join("nodes"), nodes.concat()).expect("a file");
    }

    /// Runs the plugin.
    pub fn plugin(&self, arguments: &[&str]) -> Command {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new(Path::new(FOLDER).join("kubectl-tripod"));
        command
            .args(arguments)
            .env("TRIPOD_IN_POD", tripod_binary())
            .env("PATH", format!("{FOLDER}:{path}"));
        command
    }

    /// Waits until the status of a node is as required.
    pub fn until_status(&self, at: usize, what: &str, is: impl Fn(&Value) -> bool) {
        eventually(what, SOON, || {
            let mut status = self.plugin(&["status", "--output=json", "--node", NAMES[at]]);
            let output = status.output().expect("running tripod");
            let status: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            if is(&status) {
                Ok(())
            } else {
                Err(status.to_string())
            }
        });
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        let _entered = self.runtime.enter();
        self.nodes.clear();
    }
}

/// A port of a Service.
pub fn port(protocol: &str, number: u16, node_port: Option<u16>) -> Value {
    let mut port = json!({"protocol": protocol, "port": number, "targetPort": BACKEND_PORT});
    if let Some(node_port) = node_port {
        port["nodePort"] = json!(node_port);
    }
    port
}

/// Makes a node, and routes to the pods of the others.
fn connected(switch: &Host, at: usize, name: &str) -> Host {
    let own = at + 1;
    let v4 = Ipv4Addr::new(192, 0, 2, 10 + own as u8);
    let v6: Ipv6Addr = format!("2001:db8::1{own}").parse().expect("an address");
    let host = Host::new(name, v4, v6);
    host.ip(&[
        &format!("link add eth0 type veth peer name {name} netns switch"),
        "link set eth0 up",
        &format!("addr add {v4}/24 dev eth0"),
        &format!("addr add {v6}/64 dev eth0 nodad"),
        "route add default via 192.0.2.1",
        "route add ::/0 via 2001:db8::1",
    ]);
    for other in (1..=NAMES.len()).filter(|other| *other != own) {
        host.ip(&[
            &format!("route add 10.244.{other}.0/24 via 192.0.2.1{other}"),
            &format!("route add fd00:244:0:{other}::/64 via 2001:db8::1{other}"),
        ]);
    }
    switch.ip(&[&format!("link set {name} master bridge up")]);
    host
}
