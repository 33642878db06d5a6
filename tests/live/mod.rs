//! `tripod test` alongside a running Tripod: the API server is one of `api`, and the test plays the
//! kubelet and the controllers.

mod check;
mod external;
mod kubelet;
mod network;
mod nodes;

use std::{
    collections::BTreeSet,
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use self::{
    kubelet::{Fault, Kubelet, admit},
    network::Network,
};
use crate::{
    api::{
        cluster::{NAMESPACES, PODS, SERVICES, SLICES, Selector},
        server::Server,
        tcp_server::TcpServer,
        tls::Authority,
    },
    lab::{
        Group, Tripod, eventually,
        guest::{Profile, in_guest},
        run, tripod_binary,
    },
};

const SOON: Duration = Duration::from_secs(30);

/// A cluster of two nodes, with Tripod on one of them.
struct Cluster {
    _kubelet: Kubelet,
    _tripod: Tripod,
    tcp: TcpServer,
    network: Arc<Network>,
    _runtime: tokio::runtime::Runtime,
}

fn node(name: &str, number: u8) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
        "status": {
            "addresses": [
                {"type": "InternalIP", "address": format!("192.0.2.{number}")},
                {"type": "InternalIP", "address": format!("2001:db8::{number}")},
            ],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    })
}

impl Cluster {
    fn start(flags: &[&str], fault: Fault) -> Cluster {
        let network = Arc::new(Network::new());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        let server = Server::new();
        server.script().admit = Some(admit);
        server.change(|cluster| {
            cluster.put(node("node", 10));
            cluster.put(node("other", 30));
        });
        let entered = runtime.enter();
        let listener = network
            .node
            .enter(|| std::net::TcpListener::bind("127.0.0.1:0"));
        let listener = listener.expect("a listener");
        listener.set_nonblocking(true).expect("a listener");
        let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
        let authority = Authority::new();
        let tcp = TcpServer::open_by(listener, "127.0.0.1", server, "live", &authority, false);
        tcp.server.script().token = Some("first".to_owned());
        let kubelet = Kubelet::start(Arc::clone(&network), &tcp.server, fault);
        drop(entered);
        let mut command = network.node.command(tripod_binary());
        command
            .arg("--kubeconfig")
            .arg(tcp.file("kubeconfig"))
            .args(["--hostname-override=node", "--conntrack-max-per-core=0"])
            .args(["--cluster-cidr=10.244.0.0/24,fd00:244::/64", "--v=2"])
            .args(flags);
        let tripod = Tripod::start_on(&network.node, command);
        Cluster {
            _kubelet: kubelet,
            _tripod: tripod,
            tcp,
            network,
            _runtime: runtime,
        }
    }

    /// The command that tests this cluster from its node.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.network.node.command(tripod_binary());
        command
            .args(["test", "--output=json", "--image=tripod:test"])
            .arg("--kubeconfig")
            .arg(self.tcp.file("kubeconfig"))
            .args(arguments);
        command
    }

    /// A kubeconfig that names files by absolute paths, and a DaemonSet with an image.
    fn inline_kubeconfig(&self) -> std::path::PathBuf {
        let daemon_set = json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet",
            "metadata": {"name": "kube-proxy", "namespace": "kube-system"},
            "spec": {
                "selector": {},
                "template": {"spec": {"containers": [{"name": "c", "image": "tripod:own"}]}},
            },
        });
        self.tcp.server.change(|cluster| cluster.put(daemon_set));
        let path = |name: &str| self.tcp.file(name).display().to_string();
        let url = format!("https://{}", self.tcp.address);
        self.tcp.configure(
            &format!("server: {url}, certificate-authority: {}", path("ca.crt")),
            &format!("tokenFile: {}", path("token")),
        );
        self.tcp.file("kubeconfig")
    }

    fn test(&self, arguments: &[&str]) -> Tested {
        Tested::of(self.command(arguments))
    }

    fn list(&self, collection: &str) -> Vec<Value> {
        let server = &self.tcp.server;
        server.inspect(|cluster| cluster.list(collection, &Selector::default()))
    }

    /// Checks that nothing is left of the objects that a test made.
    fn is_clean(&self) {
        for collection in [NAMESPACES, PODS, SERVICES] {
            assert_eq!(self.list(collection), [] as [Value; 0], "{collection}");
        }
        eventually("the slices go with their Services", SOON, || {
            let left = self.list(SLICES).len();
            if left == 0 {
                Ok(())
            } else {
                Err(left.to_string())
            }
        });
    }
}

/// The output of `tripod test`, and its exit status.
#[derive(Debug)]
struct Tested {
    status: Option<i32>,
    text: String,
    error: String,
}

impl Tested {
    fn of(mut command: Command) -> Tested {
        let output = command.output().expect("running tripod");
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        Tested {
            status: output.status.code(),
            text: text(&output.stdout),
            error: text(&output.stderr),
        }
    }

    /// The rows, each as name, sender, protocol and outcome.
    fn rows(&self) -> Vec<[String; 4]> {
        let report: Value =
            serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {self:?}"));
        let checks = report["checks"].as_array().expect("rows");
        let fields = ["name", "from", "protocol", "outcome"];
        let text = |check: &Value, field: &str| check[field].as_str().expect("text").to_owned();
        checks
            .iter()
            .map(|check| fields.map(|field| text(check, field)))
            .collect()
    }

    /// The promise in the first row of that ServicePort and sender.
    fn promised(&self, port: &str, from: &str) -> String {
        let report: Value = serde_json::from_str(&self.text).expect("JSON");
        let mut checks = report["checks"].as_array().expect("rows").iter();
        let check = checks.find(|check| {
            let of = check["servicePort"].as_str().expect("text");
            of.ends_with(port) && check["from"] == from
        });
        let text = check.expect("a row")["promised"].as_str();
        text.expect("text").to_owned()
    }

    fn with(&self, outcome: &str) -> BTreeSet<String> {
        let rows = self.rows().into_iter();
        let chosen = rows.filter(|row| row[3] == outcome);
        chosen.map(|[name, ..]| name).collect()
    }
}

/// nftables mode, where node ports are also served at loopback addresses.
const NFTABLES: [&str; 2] = [
    "--proxy-mode=nftables",
    "--nodeport-addresses=primary,localhost",
];

/// Names of the rows that pass in every mode.
const ALWAYS: [&str; 17] = [
    "cluster IP",
    "hairpin",
    "node port",
    "externalTrafficPolicy Local",
    "internalTrafficPolicy Local",
    "session affinity",
    "no endpoints",
    "a removed endpoint is not called any more",
    "connections outlive a change",
    "cluster IP, client address",
    "external IP",
    "load-balancer IP",
    "loadBalancerSourceRanges",
    "health-check node port",
    "node port on localhost",
    "trafficDistribution PreferSameNode",
    "scheduler sh",
];

fn all_is_as_promised(flags: &'static [&'static str]) {
    run(|| {
        let cluster = Cluster::start(flags, Fault::None);
        let tested = cluster.test(&[]);
        assert_eq!(tested.status, Some(0), "{tested:?}");
        assert_eq!(tested.with("failed"), BTreeSet::new(), "{tested:?}");
        // iptables mode has neither schedulers nor node ports at ::1.
        let skipped: &[&str] = match flags[0] {
            "--proxy-mode=iptables" => &["scheduler sh", "node port on localhost"],
            _ => &[],
        };
        let skipped: BTreeSet<String> = skipped.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(tested.with("skipped"), skipped, "{tested:?}");
        let mut expected: BTreeSet<String> = ALWAYS.map(str::to_owned).into();
        if skipped.contains("scheduler sh") {
            expected.remove("scheduler sh");
        }
        if flags[0].contains("userspace") {
            expected.remove("cluster IP, client address");
        } else {
            expected.insert("externalTrafficPolicy Local, client address".to_owned());
            expected.insert("internalTrafficPolicy Local, client address".to_owned());
            expected.insert("load-balancer IP, client address".to_owned());
        }
        assert_eq!(tested.with("passed"), expected, "{tested:?}");
        let local = tested.promised("external-local:tcp", "a pod of another node");
        assert_eq!(local, "each of here-1, here-2 answers");
        let all = tested.promised("external-local:tcp", "a pod of this node");
        // IPVS has one virtual server for all callers.
        let expected = if flags[0].contains("ipvs") {
            "each of here-1, here-2 answers"
        } else {
            "each of elsewhere-1, here-1, here-2 answers"
        };
        assert_eq!(all, expected);
        let all = tested.promised("load-balancer:tcp", "a pod of this node");
        assert_eq!(all, expected);
        let shut_out = tested.promised("source-ranges:tcp", "this node");
        assert_eq!(shut_out, "no answer");
        cluster.is_clean();
    });
}

#[test]
fn all_is_as_promised_in_nftables_mode() {
    all_is_as_promised(&NFTABLES);
}

#[test]
fn all_is_as_promised_in_iptables_mode() {
    all_is_as_promised(&["--proxy-mode=iptables"]);
}

#[test]
fn all_is_as_promised_in_userspace_mode() {
    all_is_as_promised(&["--proxy-mode=userspace", "--userspace-capture=redirect"]);
}

#[test]
#[ignore = "for a guest kernel with IPVS"]
fn all_is_as_promised_in_ipvs_mode() {
    all_is_as_promised(&[
        "--proxy-mode=ipvs",
        "--nodeport-addresses=primary,localhost",
    ]);
}

#[test]
fn guest_full_live() {
    let names = ["live::all_is_as_promised_in_ipvs_mode"];
    in_guest(Profile::Full, &names, &[]);
}

/// Features that the kernel lacks are not promised.
#[test]
fn all_is_as_promised_without_refusals_and_random_numbers() {
    run(|| {
        let flags = ["--proxy-mode=nftables", "--without=nft-reject,nft-numgen"];
        let cluster = Cluster::start(&flags, Fault::None);
        let tested = cluster.test(&[]);
        assert_eq!(tested.status, Some(0), "{tested:?}");
        let pod = "a pod of this node";
        assert_eq!(
            tested.promised("no-endpoints:tcp", pod),
            "refused, or no answer"
        );
        let promised = tested.promised("cluster-ip:tcp", pod);
        assert_eq!(promised, "of elsewhere-1, here-1, here-2 only some answer");
        cluster.is_clean();
    });
}

/// An address in an EndpointSlice is not always that of one of the Service's pods.
#[test]
fn a_stranger_who_answers_is_found() {
    run(|| {
        let cluster = Cluster::start(&["--proxy-mode=nftables"], Fault::Stranger);
        let tested = cluster.test(&[]);
        assert_eq!(tested.status, Some(1), "{tested:?}");
        assert!(tested.with("failed").contains("cluster IP"), "{tested:?}");
        assert!(tested.text.contains("stranger"), "{tested:?}");
        assert!(tested.with("passed").contains("hairpin"), "{tested:?}");
        cluster.is_clean();
    });
}

/// A rule of another program keeps the node's calls from an endpoint.
#[test]
fn calls_that_another_program_drops_are_found() {
    run(|| {
        let cluster = Cluster::start(&["--proxy-mode=nftables"], Fault::None);
        let rule = "iptables -I OUTPUT -d 10.244.0.90 -p tcp --dport 8080 -j DROP";
        cluster.network.node.show(rule);
        let tested = cluster.test(&[]);
        assert_eq!(tested.status, Some(1), "{tested:?}");
        let rows = tested.rows();
        let of = |name: &str, from: &str, protocol: &str| {
            let mut rows = rows.iter().filter(|row| row[..3] == [name, from, protocol]);
            rows.next_back().expect("the row")[3].clone()
        };
        let v4: Value = serde_json::from_str(&tested.text).expect("JSON");
        let dropped = v4["checks"].as_array().expect("rows").iter().find(|check| {
            check["name"] == "cluster IP"
                && check["from"] == "this node"
                && check["protocol"] == "TCP"
        });
        let dropped = dropped.expect("the row");
        assert_eq!(dropped["outcome"], "failed", "{tested:?}");
        let seen = dropped["seen"].as_str().expect("text");
        assert!(
            seen.contains("late answer") && !seen.contains("here-2"),
            "{seen}"
        );
        assert_eq!(of("cluster IP", "a pod of this node", "TCP"), "passed");
        assert_eq!(of("cluster IP", "this node", "UDP"), "passed");
        cluster.is_clean();
    });
}

#[test]
fn what_is_not_ready_is_named_and_removed() {
    run(|| {
        let cluster = Cluster::start(&["--proxy-mode=nftables"], Fault::NoPods);
        let tested = cluster.test(&["--timeout=1s"]);
        assert_eq!(tested.status, Some(2), "{tested:?}");
        for words in [
            "not ready within 1s",
            "pod here-1 on node node",
            "tripod:test",
        ] {
            assert!(tested.error.contains(words), "{words}: {tested:?}");
        }
        cluster.is_clean();

        let forbidden = "/api/v1/nodes";
        cluster.tcp.server.script().refuse = vec![(forbidden, 403, None)];
        let tested = cluster.test(&["--timeout=1s"]);
        assert!(!tested.error.contains("elsewhere-1"), "{tested:?}");
        cluster.is_clean();

        cluster.tcp.server.script().refuse = vec![(NAMESPACES, 403, None)];
        let tested = cluster.test(&[]);
        assert_eq!(tested.status, Some(2), "{tested:?}");
        let words = "the API server refuses to create namespaces";
        assert!(tested.error.contains(words), "{tested:?}");
        cluster.is_clean();
    });
}

#[test]
fn an_interrupted_test_removes_what_it_made() {
    run(|| {
        let cluster = Cluster::start(&["--proxy-mode=nftables"], Fault::NoPods);
        for signal in [Signal::SIGINT, Signal::SIGTERM] {
            let mut command = cluster.command(&[]);
            command.stdout(Stdio::null()).stderr(Stdio::null());
            let mut testing = Group::spawn(&mut command).expect("tripod test");
            eventually("it has made its Services", SOON, || {
                match cluster.list(SERVICES).len() {
                    // All but the one whose ranges have the address of a pod.
                    11 => Ok(()),
                    n => Err(n.to_string()),
                }
            });
            testing.signal(signal);
            let deadline = std::time::Instant::now() + SOON;
            let status = testing.wait_until(deadline).expect("it ends");
            assert_eq!(status.code(), Some(2));
            cluster.is_clean();
        }
    });
}

#[test]
fn what_is_kept_stays_and_can_be_called_as_a_given_service() {
    run(|| {
        let cluster = Cluster::start(&["--proxy-mode=nftables"], Fault::None);
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "mine"}});
        cluster.tcp.server.change(|stored| stored.put(namespace));
        let kubeconfig = std::fs::File::open(cluster.inline_kubeconfig()).expect("a file");
        let mut command = cluster.network.node.command(tripod_binary());
        command
            .args([
                "test",
                "--output=json",
                "--kubeconfig=-",
                "--namespace=mine",
                "--keep",
            ])
            .stdin(kubeconfig);
        let tested = Tested::of(command);
        assert_eq!(tested.status, Some(0), "{tested:?}");
        assert!(
            tested.error.contains("stay in namespace mine"),
            "{tested:?}"
        );
        let services = cluster.list(SERVICES);
        assert_eq!(services.len(), 12);
        let image = cluster.list(PODS)[0]["spec"]["containers"][0]["image"].clone();
        assert_eq!(image, "tripod:own");
        let named = |end: &str| {
            let names = services.iter().map(|service| &service["metadata"]["name"]);
            let mut names = names.filter_map(Value::as_str);
            let name = names.find(|name| name.ends_with(end)).expect("a Service");
            format!("--service=mine/{name}")
        };
        let mut command = cluster.network.node.command(tripod_binary());
        command.args(["test", "--output=json"]);
        command.args([
            named("cluster-ip"),
            named("node-port"),
            named("no-endpoints"),
        ]);
        let tested = Tested::of(command);
        assert_eq!(tested.status, Some(0), "{tested:?}");
        let rows = tested.rows();
        let of = |name: &str, protocol: &str, outcome: &str| {
            let of = |row: &&[String; 4]| row[0] == name && row[2] == protocol && row[3] == outcome;
            rows.iter().filter(of).count()
        };
        assert_eq!(of("cluster IP", "TCP", "passed"), 6, "{tested:?}");
        assert_eq!(of("node port", "TCP", "passed"), 2, "{tested:?}");
        assert_eq!(of("cluster IP", "UDP", "skipped"), 6, "{tested:?}");

        let mut command = cluster.network.node.command(tripod_binary());
        command.args(["test", "--service=mine/nothing"]);
        let tested = Tested::of(command);
        assert_eq!(tested.status, Some(2), "{tested:?}");
        assert!(
            tested.error.contains("no Service mine/nothing"),
            "{tested:?}"
        );
    });
}
