//! From a kube-proxy that has just ended, and leaves all its objects in the kernel, to Tripod, and
//! back.

use std::{collections::BTreeSet, net::SocketAddr, path::Path};

use serde_json::json;

use super::super::probe::kernel;
use super::super::stale_state::{feed, program};
use super::{Long, SOON, under_load};
use crate::lab::{
    Capture, Host, Lab, Service, Tripod, ask, eventually, run, tripod_binary, udp_ask,
};
use crate::userspace::capture::traces;

/// The proxy that served before.
#[derive(Clone, Copy)]
enum Old {
    /// kube-proxy in this mode, with its rules in this engine.
    Mode(&'static str, &'static str),
    /// kube-proxy in nftables mode.
    Nftables,
}

const FLAGS: [&str; 2] = [
    "--hostname-override=node",
    "--cluster-cidr=10.244.0.0/24,fd00:244::/64",
];

impl Old {
    fn leave(self, lab: &Lab) {
        match self {
            Old::Mode(mode, engine) => {
                // As the recordings show, Tripod would write exactly kube-proxy's rules there.
                let text = lab.node.show(&format!(
                    "{} render --proxy-mode={mode} --manifests={} {}",
                    tripod_binary().display(),
                    lab.manifests().display(),
                    FLAGS.join(" "),
                ));
                if mode == "ipvs" {
                    lab.node.enter(|| {
                        let path = "/proc/sys/net/ipv4/vs/conntrack";
                        std::fs::write(path, "1").expect("the setting of kube-proxy");
                    });
                }
                let lines = text.lines().filter(|line| !line.contains("KUBE-FIREWALL"));
                let text: String = lines.map(|line| format!("{line}\n")).collect();
                replay(&lab.node, engine, &text);
            }
            Old::Nftables => feed(&lab.node, "nft -f -", NFTABLES),
        }
    }
}

/// Feeds the output of `tripod render` to the programs that it names.
fn replay(node: &Host, engine: &str, text: &str) {
    let mut parts: Vec<(String, String)> = Vec::new();
    for line in text.lines() {
        let command = line.strip_prefix("# ").filter(|l| !l.starts_with("needs"));
        if let Some(command) = command {
            let command = match command.strip_suffix("tables-restore --noflush") {
                Some(family) => {
                    program(&format!("{family}tables"), engine, "restore") + " --noflush"
                }
                None => command.to_owned(),
            };
            parts.push((command, String::new()));
        } else if let Some((_, input)) = parts.last_mut()
            // nfacct(8) may not be installed; rules that do without it are enough.
            && !line.starts_with('#')
            && !line.contains("-m nfacct")
        {
            *input += &format!("{line}\n");
        }
    }
    assert!(!parts.is_empty(), "{text}");
    for (command, input) in parts {
        feed(node, &command, &input);
    }
}

/// The rules of its nftables mode, as far as calls of this test need them.
const NFTABLES: &str = "
table ip kube-proxy {
    map service-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
    map service-nodeports { type inet_proto . inet_service : verdict; }
    chain mark-for-masquerade { meta mark set meta mark or 0x4000; }
    chain masquerading {
        meta mark and 0x4000 == 0 return
        meta mark set meta mark xor 0x4000
        masquerade fully-random
    }
    chain endpoint-a { meta l4proto { tcp, udp } dnat to 10.244.0.11:8080; }
    chain endpoint-b { meta l4proto { tcp, udp } dnat to 10.244.0.12:8080; }
    chain service-web {
        ip saddr != 10.244.0.0/24 jump mark-for-masquerade
        numgen random mod 2 vmap { 0 : goto endpoint-a, 1 : goto endpoint-b }
    }
    chain services {
        ip daddr . meta l4proto . th dport vmap @service-ips
        fib daddr type local meta l4proto . th dport vmap @service-nodeports
    }
    chain nat-prerouting { type nat hook prerouting priority dstnat; jump services; }
    chain nat-output { type nat hook output priority -100; jump services; }
    chain nat-postrouting { type nat hook postrouting priority srcnat; jump masquerading; }
}
add element ip kube-proxy service-ips {
    10.96.0.10 . tcp . 80 : goto service-web,
    10.96.0.10 . udp . 80 : goto service-web
}
add element ip kube-proxy service-nodeports { tcp . 30010 : goto service-web }
";

/// Writes the Node object, and the kubelet's rules.
pub(super) fn join_cluster(lab: &Lab, kubelet: &str) {
    let node = &lab.node;
    lab.write(
        "node.json",
        &json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": "node"},
            "spec": {"podCIDR": "10.244.0.0/24"},
            "status": {"addresses": node.addresses.map(|ip| json!({
                "type": "InternalIP", "address": ip,
            }))},
        })
        .to_string(),
    );
    for of in ["iptables", "ip6tables"] {
        let hint = "*mangle\n:KUBE-IPTABLES-HINT - [0:0]\nCOMMIT\n";
        // More of the kubelet's rules, such as KUBE-FIREWALL, would keep connection tracking
        // active, whatever happens to other rules.
        let restore = program(of, kubelet, "restore");
        feed(node, &format!("{restore} --noflush"), hint);
    }
}

fn start(lab: &Lab, flags: &[&str]) -> Tripod {
    let mut command = lab.node.command(tripod_binary());
    command
        .args(flags)
        .arg(format!("--manifests={}", lab.manifests().display()))
        .args(["--strict-proxy-mode", "--conntrack-max-per-core=0", "--v=4"])
        .args(FLAGS);
    Tripod::spawn(command)
}

/// Waits until the log has this text.
fn says(tripod: &Tripod, sign: &str) {
    eventually(sign, SOON, || match tripod.logged(&[sign]) {
        0 => Err(tripod.log()),
        _ => Ok(()),
    });
}

/// Starts with `flags` on a node whose kubelet has its rules in `kubelet`.
fn take_over(old: Old, flags: &[&str], kubelet: &str) {
    let mut lab = Lab::new(Capture::Redirect);
    let web = Service::new("web", 10).with_node_port();
    lab.three_backends().publish_all(&web);
    let lab = &lab;
    let node = &lab.node;
    join_cluster(lab, kubelet);
    old.leave(lab);
    let node_port = SocketAddr::new(node.addresses[0], web.node_port());
    let [cluster, _] = web.cluster();
    // From a pod only with local capture: without br_netfilter, answers from pods of the
    // same bridge would not return the way the question came. Calls by the node itself fail while
    // local capture routes them to loopback and remaining nat rules send them on from there
    // (EACCES, EINVAL).
    let inside = if flags == LOCAL { &lab.client } else { node };
    let call = |number| match number % 3 {
        0 => ask(&lab.outside, node_port),
        1 => ask(inside, cluster),
        _ => udp_ask(inside, cluster),
    };
    let open = || {
        [
            Long::open(&lab.outside, node_port),
            Long::open(inside, cluster),
        ]
    };
    let served = |all: &mut [Long; 2], when: &str| {
        for long in all {
            long.is_served(when);
        }
    };
    let mut tripod = None;
    under_load(call, |calls| {
        let mut before = open();
        calls.wait(6);
        let tripod = tripod.insert(start(lab, flags));
        // Connections through IPVS keep its objects for as long as it remembers them, two minutes
        // after their end; and connections that need translation keep the rules that make the
        // kernel translate, if this mode has none.
        let keeps = match old {
            Old::Mode("ipvs", _) => flags != IPVS,
            _ => flags == LOCAL,
        };
        let sign = if keeps {
            "synced"
        } else {
            "there are no rules of other modes"
        };
        says(tripod, sign);
        served(&mut before, "open since before");
        let mut after = open();
        calls.wait(30);
        served(&mut before, "open since before, later");
        served(&mut after, "opened afterwards");
    });
}

macro_rules! take_over {
    ($($name:ident: $kernel:literal, $old:expr, $flags:expr, $engine:literal;)+) => { $(
        #[test]
        fn $name() {
            run(|| {
                if kernel() == $kernel {
                    take_over($old, &$flags, $engine);
                }
            });
        }
    )+ };
}

const IPVS: [&str; 1] = ["--proxy-mode=ipvs"];
const NFT: [&str; 1] = ["--proxy-mode=nftables"];
const IPTABLES: [&str; 1] = ["--proxy-mode=iptables"];
const REDIRECT: [&str; 2] = ["--proxy-mode=userspace", "--userspace-capture=redirect"];
const LOCAL: [&str; 2] = ["--proxy-mode=userspace", "--userspace-capture=local"];

take_over! {
    nft_to_nft: "host", Old::Mode("iptables", "nft"), IPTABLES, "nft";
    legacy_to_nft: "host", Old::Mode("iptables", "legacy"), IPTABLES, "nft";
    nft_to_legacy: "host", Old::Mode("iptables", "nft"), IPTABLES, "legacy";
    nft_to_redirect: "host", Old::Mode("iptables", "nft"), REDIRECT, "nft";
    legacy_to_redirect: "host", Old::Mode("iptables", "legacy"), REDIRECT, "nft";
    nft_to_local: "host", Old::Mode("iptables", "nft"), LOCAL, "nft";
    nftables_to_nft: "host", Old::Nftables, IPTABLES, "nft";
    nftables_to_redirect: "host", Old::Nftables, REDIRECT, "nft";
    nftables_to_local: "host", Old::Nftables, LOCAL, "nft";
    nft_to_nftables: "host", Old::Mode("iptables", "nft"), NFT, "nft";
    legacy_to_nftables: "host", Old::Mode("iptables", "legacy"), NFT, "nft";
    nftables_to_nftables: "host", Old::Nftables, NFT, "nft";
    iptables_to_ipvs: "full", Old::Mode("iptables", "legacy"), IPVS, "legacy";
    ipvs_to_ipvs: "full", Old::Mode("ipvs", "legacy"), IPVS, "legacy";
    ipvs_to_iptables: "full", Old::Mode("ipvs", "legacy"), IPTABLES, "legacy";
    ipvs_to_redirect: "full", Old::Mode("ipvs", "legacy"), REDIRECT, "legacy";
}

/// IPVS gets packets before local capture: its leftovers are removed, so that they do not refuse
/// new connections, and its link does not take routes with it.
#[test]
fn ipvs_to_local() {
    run(|| {
        if kernel() != "full" {
            return;
        }
        let mut lab = Lab::new(Capture::Redirect);
        let web = Service::new("web", 10).with_node_port();
        lab.three_backends().publish_all(&web);
        let lab = &lab;
        let node = &lab.node;
        join_cluster(lab, "legacy");
        Old::Mode("ipvs", "legacy").leave(lab);
        let node_port = SocketAddr::new(node.addresses[0], web.node_port());
        let [cluster, _] = web.cluster();
        let _open = Long::open(&lab.outside, node_port);
        let tripod = start(lab, &LOCAL);
        says(&tripod, "there are no rules of other modes");
        for _ in 0..20 {
            ask(&lab.outside, node_port).expect("a node port");
            ask(node, cluster).expect("a cluster IP");
            udp_ask(node, cluster).expect("a cluster IP over UDP");
        }
    });
}

/// Tripod ran with `flags` and has ended, and kube-proxy has written its rules: objects that only
/// Tripod has are removed, and no rule of kube-proxy.
fn back(flags: &[&str]) {
    let mut lab = Lab::new(Capture::Redirect);
    let web = Service::new("web", 10).with_node_port();
    lab.three_backends().publish_all(&web);
    let lab = &lab;
    let node = &lab.node;
    let [cluster, _] = web.cluster();
    let answers = |when: &str| {
        eventually(when, SOON, || {
            let answer = ask(&lab.client, cluster);
            answer.map(drop).map_err(|error| error.to_string())
        });
    };
    let traces = || {
        let mut lines = traces(node);
        lines.extend(node.show("nft list tables").lines().filter_map(|line| {
            let is_tripod = line.contains("tripod");
            is_tripod.then(|| line.to_owned())
        }));
        lines
    };
    let at_first = traces();
    let mut command = node.command(tripod_binary());
    command
        .args(flags)
        .arg(format!("--manifests={}", lab.manifests().display()))
        .args(["--strict-proxy-mode", "--conntrack-max-per-core=0"])
        .arg("--userspace-drain-timeout=1s")
        .args(FLAGS);
    let mut tripod = Tripod::spawn(command);
    answers("by Tripod");
    assert!(tripod.terminate().success());
    let left = traces();
    assert_ne!(left, at_first, "Tripod leaves something");
    let clean_up = || {
        let mut cleanup = node.command(tripod_binary());
        let output = cleanup.args(["cleanup", "--keep-kube-proxy"]).output();
        output.expect("tripod cleanup")
    };
    if flags == NFT {
        // Before kube-proxy has written anything.
        let early = clean_up();
        let says = String::from_utf8_lossy(&early.stderr);
        let refuses = says.contains("kube-proxy has no rules on this node");
        assert!(!early.status.success() && refuses, "{early:?}");
        assert_eq!(traces(), left);
        answers("by the table that Tripod left");
    }
    Old::Mode("iptables", "nft").leave(lab);
    let of_kube_proxy: BTreeSet<String> = traces().difference(&left).cloned().collect();
    assert!(!of_kube_proxy.is_empty());
    let output = clean_up();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(traces(), &at_first | &of_kube_proxy);
    assert!(!Path::new("/run/tripod").exists(), "{output:?}");
    answers("by kube-proxy");
}

macro_rules! back {
    ($($name:ident: $flags:expr;)+) => { $(
        #[test]
        fn $name() {
            run(|| {
                if kernel() == "host" {
                    back(&$flags);
                }
            });
        }
    )+ };
}

back! {
    nftables_and_back: NFT;
    redirect_and_back: REDIRECT;
    local_and_back: LOCAL;
}
