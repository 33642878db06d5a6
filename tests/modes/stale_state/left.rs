//! The leftovers of earlier proxies on a node.

use std::process::Stdio;

use super::super::probe::kernel;
use super::{engines, feed, restore};
use crate::lab::recorded::{self, Case, FLAGS};
use crate::lab::{Host, Tripod, eventually, tripod_binary};

/// Finds a recorded case by name.
pub fn case(name: &str) -> Case {
    let mut cases = recorded::cases().into_iter();
    cases
        .find(|case| case.name == name)
        .unwrap_or_else(|| panic!("no case {name}"))
}

/// Writes kube-proxy's kernel objects in that mode, with its rules in `engine`; `kubelet` is the
/// engine of the kubelet's rules.
pub fn kube_proxys(node: &Host, case: &Case, mode: &str, engine: &str, kubelet: &str) {
    let file = |name: &str| case.read(&format!("{mode}/{name}"));
    if mode == "ipvs" {
        let saved = file("ipset-save.txt");
        // Sets before their members.
        let (mut create, mut add) = (String::new(), String::new());
        for line in saved.lines() {
            if line.starts_with("create") {
                create += &format!("{line}\n");
            } else {
                add += &format!("{line}\n");
            }
        }
        feed(node, "ipset restore", &(create + &add));
        let addresses = file("kube-ipvs0-addrs.txt");
        let mut commands = vec!["link add kube-ipvs0 type dummy".to_owned()];
        for line in addresses.lines() {
            if let Some((_, address)) = line.split_once(' ') {
                commands.push(format!("addr add {address} dev kube-ipvs0"));
            }
        }
        node.ip(&commands.iter().map(|line| &**line).collect::<Vec<_>>());
        feed(node, "ipvsadm -R", &file("ipvsadm-save.txt"));
    }
    if mode == "iptables" {
        // The recordings count with these objects.
        for name in [
            "ct_state_invalid_dropped_pkts",
            "localhost_nps_accepted_pkts",
        ] {
            let _ = node
                .command("nfacct")
                .args(["add", name])
                .stderr(Stdio::null())
                .status();
        }
    }
    for of in ["iptables", "ip6tables"] {
        let batch = as_written(&file(&format!("{of}-save.txt")), engine == kubelet);
        restore(node, engine, of, &batch);
    }
}

/// Turns a recording into kube-proxy's input: jumps are inserted before rules of others in the
/// kernel's chains, and the kubelet's KUBE-FIREWALL exists already.
fn as_written(saved: &str, firewall_is_there: bool) -> String {
    let mut batch = String::new();
    let mut jumps: Vec<&str> = Vec::new();
    for line in saved.lines() {
        // nfacct(8) may not be installed; rules that do without it are enough.
        let skipped = line.contains("-m nfacct")
            || firewall_is_there && line.contains("KUBE-FIREWALL")
            || line.starts_with(':') && !line.ends_with('-');
        if skipped {
            continue;
        }
        let base = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];
        let rule = line.strip_prefix("-A ");
        if let Some(rule) = rule.filter(|r| base.iter().any(|base| r.starts_with(base))) {
            jumps.push(rule);
            continue;
        }
        if line == "COMMIT" {
            // Each is inserted at the top, so the last one ends up first.
            for rule in jumps.drain(..).rev() {
                batch += &format!("-I {rule}\n");
            }
        }
        batch += &format!("{line}\n");
    }
    batch
}

/// Writes a short form of kube-proxy's objects in nftables mode. There is no recording.
pub fn nftables(node: &Host) {
    if kernel() == "full" {
        return;
    }
    for (family, kind, address) in [
        ("ip", "ipv4_addr", "10.0.1.5"),
        ("ip6", "ipv6_addr", "fd00:10:96::5"),
    ] {
        feed(
            node,
            "nft -f -",
            &format!(
                "table {family} kube-proxy {{
                    map service-ips {{ type {kind} . inet_proto . inet_service : verdict; }}
                    chain masquerading {{ masquerade fully-random; }}
                    chain reject-chain {{ reject; }}
                    chain services {{
                        {family} daddr . meta l4proto . th dport vmap @service-ips
                    }}
                    chain nat-prerouting {{
                        type nat hook prerouting priority dstnat; jump services;
                    }}
                    chain nat-postrouting {{
                        type nat hook postrouting priority srcnat; jump masquerading;
                    }}
                    chain filter-forward {{ type filter hook forward priority -110; }}
                }}
                add element {family} kube-proxy service-ips {{
                    {address} . tcp . 80 : goto reject-chain
                }}\n"
            ),
        );
    }
}

/// Starts and kills a Tripod in userspace mode; its rules, if it writes any, go to that
/// engine.
pub fn userspace(node: &Host, manifests: &str, capture: &str, engine: &str) {
    let mut command = node.command(tripod_binary());
    if engine != engines()[0] {
        let folder = format!("/run/{engine}-first");
        std::fs::create_dir_all(&folder).expect("a folder");
        for of in ["iptables", "ip6tables"] {
            for what in ["restore", "save"] {
                let (from, to) = (
                    format!("/usr/sbin/xtables-{engine}-multi"),
                    format!("{folder}/{of}-{what}"),
                );
                if !std::path::Path::new(&to).exists() {
                    std::os::unix::fs::symlink(from, to).expect("a link");
                }
            }
        }
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{folder}:{path}"));
    }
    command
        .args(["--proxy-mode=userspace", "--v=4"])
        .arg(format!("--userspace-capture={capture}"))
        .arg(format!("--manifests={manifests}"))
        .arg(super::foreign::EXCLUDED)
        .args(FLAGS);
    let mut tripod = Tripod::spawn(command);
    eventually("it is applied", super::start::SOON, || {
        match tripod.logged(&["synced", "userspace"]) {
            0 => Err(tripod.log()),
            _ => Ok(()),
        }
    });
    tripod.kill();
}
