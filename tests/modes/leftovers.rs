//! What an earlier proxy left goes, and what is somebody else's stays.

use std::io::Write;
use std::process::Stdio;

use super::probe::{kernel, node, state};
use crate::lab::{Host, Share, recorded, run, tripod_binary};

/// The recorded cases between them hold every kind of thing that kube-proxy
/// installs.
const CASES: [&str; 5] = [
    "04-session-affinity",
    "05-nodeport",
    "09-lb-source-ranges",
    "10-lb-etp-local-healthcheck",
    "17-dualstack",
];

fn feed(node: &Host, line: &str, input: &str) {
    let mut words = line.split(' ');
    let mut command = node.command(words.next().expect("a program"));
    let mut child = command
        .args(words)
        .stdin(Stdio::piped())
        .spawn()
        .expect("starting it");
    let mut stdin = child.stdin.take().expect("it is piped");
    stdin.write_all(input.as_bytes()).expect("feeding it");
    drop(stdin);
    assert!(child.wait().expect("its end").success(), "{line}:\n{input}");
}

/// Rules, sets and addresses of somebody else's, among ours where that can be.
fn foreign(node: &Host) {
    for program in ["iptables-restore", "ip6tables-restore"] {
        let rules = "*nat\n:CNI-HOSTPORT - [0:0]\n-A CNI-HOSTPORT -p tcp -j RETURN\n\
             -A PREROUTING -j CNI-HOSTPORT\nCOMMIT\n*filter\n-A FORWARD -p tcp -j ACCEPT\n\
             :KUBE-ROUTER-INPUT - [0:0]\n-A INPUT -j KUBE-ROUTER-INPUT\nCOMMIT\n";
        feed(node, &format!("{program} --noflush"), rules);
    }
    feed(
        node,
        "ipset restore",
        "create KUBE-ROUTER-PODS hash:ip family inet hashsize 1024 maxelem 65536 bucketsize 12 \
         initval 0x1\nadd KUBE-ROUTER-PODS 10.1.2.3\n",
    );
    node.ip(&[
        "addr add 198.18.7.7/32 dev lo",
        "rule add from 198.18.7.7 lookup 100 priority 500",
        "route add local 198.18.8.8/32 dev lo table 100",
    ]);
    if kernel() == "full" {
        feed(
            node,
            "ipvsadm -R",
            "-A -t 198.18.7.7:443 -s rr\n-a -t 198.18.7.7:443 -r 10.1.2.3:443 -m -w 1\n",
        );
    }
}

/// Virtual servers too.
fn everything(node: &Host) -> String {
    let mut all = state(node);
    if kernel() == "full" {
        all += &node.show("ipvsadm -Sn");
    }
    all
}

/// Puts the recorded state of a case into the kernel.
fn leave(node: &Host, case: &recorded::Case, mode: &str) {
    let file = |name: &str| case.read(&format!("{mode}/{name}"));
    if mode == "ipvs" {
        feed(node, "ipset restore", &{
            let saved = file("ipset-save.txt");
            // Sets before their members.
            let (mut create, mut add) = (String::new(), String::new());
            for line in saved.lines() {
                match line.starts_with("create") {
                    true => create += &format!("{line}\n"),
                    false => add += &format!("{line}\n"),
                }
            }
            create + &add
        });
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
        // The recordings count with these.
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
    for (program, name) in [
        ("iptables-restore", "iptables-save.txt"),
        ("ip6tables-restore", "ip6tables-save.txt"),
    ] {
        let text = file(name);
        // nfacct(8) need not be installed; rules without it do as well.
        let lines = text.lines().filter(|line| !line.contains("-m nfacct"));
        let batch = lines.map(|line| format!("{line}\n")).collect::<String>();
        feed(node, &format!("{program} --noflush"), &batch);
    }
}

#[test]
fn cleanup_leaves_exactly_what_is_others() {
    let name = concat!(module_path!(), "::cleanup_leaves_exactly_what_is_others");
    run(name, Share::Beside, || {
        let modes: &[&str] = match kernel().as_str() {
            "full" => &["iptables", "ipvs"],
            _ => &["iptables"],
        };
        let node = node();
        foreign(&node);
        let before = everything(&node);
        for case in recorded::cases() {
            if !CASES.contains(&&*case.name) {
                continue;
            }
            for mode in modes {
                leave(&node, &case, mode);
                assert_ne!(before, everything(&node));
                for _ in 0..2 {
                    node.show(&format!("{} cleanup", tripod_binary().display()));
                    assert_eq!(before, everything(&node), "{} {mode}", case.name);
                }
            }
        }
    });
}
