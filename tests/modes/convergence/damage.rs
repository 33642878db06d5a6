//! Random changes to a proxy's objects, such as another program or a half-written transaction could
//! leave.

use std::{
    collections::BTreeSet,
    io::Write,
    net::{IpAddr, SocketAddr},
    process::Stdio,
};

use net::Family;

use super::{
    super::{
        probe::kernel,
        stale_state::{engines, program},
    },
    map::digits,
};
use crate::lab::Host;

/// One change: a program with its arguments, and its input.
struct Change {
    line: String,
    input: String,
}

/// The output of the programs, line by line, for a node with only other programs' objects: none of
/// these is changed.
pub struct Foreign(BTreeSet<String>);

impl Foreign {
    pub fn of(node: &Host) -> Foreign {
        let mut lines = BTreeSet::new();
        for command in commands() {
            lines.extend(node.show(&command).lines().map(|line| key(&command, line)));
        }
        Foreign(lines)
    }

    /// Lists the lines that `command` prints in addition to these, each with its iptables table, if
    /// any.
    fn beyond(&self, node: &Host, command: &str) -> Vec<(String, String)> {
        let mut table = String::new();
        let mut found = Vec::new();
        for line in node.show(command).lines() {
            if let Some(name) = line.strip_prefix('*') {
                name.clone_into(&mut table);
            }
            let skipped = line.starts_with(['#', '*']) || line == "COMMIT";
            if !skipped && !self.0.contains(&key(command, line)) {
                found.push((table.clone(), line.to_owned()));
            }
        }
        found
    }
}

/// The part of a line of `command` that identifies it: the parameters with which a set was created
/// differ each time.
fn key(command: &str, line: &str) -> String {
    let words = line.split(' ');
    let count = if line.starts_with("create ") {
        3
    } else {
        usize::MAX
    };
    let line: Vec<&str> = words.take(count).collect();
    format!("{command} {}", line.join(" "))
}

fn saves() -> Vec<String> {
    let families = ["iptables", "ip6tables"];
    let all = engines()
        .iter()
        .flat_map(|engine| families.map(|of| program(of, engine, "save")));
    all.collect()
}

fn commands() -> Vec<String> {
    let others = [
        "ip rule",
        "ip -6 rule",
        "ip route show table all",
        "ip -6 route show table all",
        "ip -o addr show",
        "ipset save",
    ];
    let mut all = saves();
    all.extend(others.map(str::to_owned));
    if kernel() == "full" {
        all.push("ipvsadm -Sn".to_owned());
    }
    all
}

/// Makes the change that `number` chooses among all possible changes of the objects that are not in
/// `foreign`. The kernel refuses some, which does not matter.
pub fn damage(node: &Host, foreign: &Foreign, number: u128) {
    let mut pick = digits(number);
    let mut kinds =
        [rules, sets, routes, addresses, servers, tables].map(|changes| changes(node, foreign));
    let there: Vec<usize> = (0..kinds.len())
        .filter(|at| !kinds[*at].is_empty())
        .collect();
    if there.is_empty() {
        return;
    }
    let changes = &mut kinds[there[pick(there.len())]];
    let change = changes.swap_remove(pick(changes.len()));
    println!("damage: {} <<< {}", change.line, change.input);
    let mut words = change.line.split(' ');
    let mut child = node
        .command(words.next().expect("a program"))
        .args(words)
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("starting it");
    // It may have ended without reading.
    let _ = child
        .stdin
        .take()
        .map(|mut stdin| stdin.write_all(change.input.as_bytes()));
    child.wait().expect("its end");
}

/// Lists changes of iptables rules and chains.
fn rules(node: &Host, foreign: &Foreign) -> Vec<Change> {
    let mut found = Vec::new();
    for save in saves() {
        let restore = save.replace("-save", "-restore") + " --noflush";
        let mut change = |table: &str, commands: &str| {
            found.push(Change {
                line: restore.clone(),
                input: format!("*{table}\n{commands}\nCOMMIT\n"),
            });
        };
        for (table, line) in foreign.beyond(node, &save) {
            if let Some(chain) = line.strip_prefix(':') {
                let (chain, policy) = chain.split_once(' ').unwrap_or((chain, ""));
                if policy.starts_with('-') {
                    change(&table, &format!("-F {chain}"));
                    change(&table, &format!("-I {chain} -j RETURN"));
                    change(&table, &format!("-A {chain} -s 192.0.2.77/32 -j ACCEPT"));
                }
            } else if let Some(rule) = line.strip_prefix("-A ")
                // A change must not remove other programs' rules there.
                && !rule.starts_with("KUBE-FIREWALL ")
            {
                change(&table, &format!("-D {rule}"));
                // The rule exists twice, at either end.
                change(&table, &format!("-A {rule}"));
                change(&table, &format!("-I {rule}"));
            }
        }
        if !found.is_empty() {
            let ours = "KUBE-SVC-AAAAAAAAAAAAAAAA";
            let input = format!("*nat\n:{ours} - [0:0]\n-A {ours} -j RETURN\nCOMMIT\n");
            found.push(Change {
                line: restore,
                input,
            });
        }
    }
    found
}

fn run(line: impl Into<String>) -> Change {
    Change {
        line: line.into(),
        input: String::new(),
    }
}

/// An address that no host has.
fn unused(family: Family) -> IpAddr {
    match family {
        Family::V4 => [192, 0, 2, 66].into(),
        Family::V6 => [0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x66].into(),
    }
}

/// Lists changes of ipsets.
fn sets(node: &Host, foreign: &Foreign) -> Vec<Change> {
    let mut found = Vec::new();
    for (_, line) in foreign.beyond(node, "ipset save") {
        if let Some(member) = line.strip_prefix("add ") {
            found.push(run(format!("ipset del {member}")));
        } else if let Some(set) = line.strip_prefix("create ") {
            let mut words = set.split(' ');
            let (name, kind) = (words.next().unwrap_or(set), words.next().unwrap_or(""));
            found.push(run(format!("ipset flush {name}")));
            found.push(run(format!("ipset destroy {name}")));
            found.push(run(format!("ipset rename {name} KUBE-RENAMED")));
            let is_v6 = set.contains("inet6");
            let ip = unused(if is_v6 { Family::V6 } else { Family::V4 });
            let member = match kind {
                "hash:ip,port" => format!("{ip},tcp:66"),
                "hash:ip,port,ip" => format!("{ip},tcp:66,{ip}"),
                "hash:ip,port,net" => format!("{ip},tcp:66,{ip}/32"),
                _ => "66".to_owned(),
            };
            found.push(run(format!("ipset add {name} {member}")));
        }
    }
    found
}

/// Lists changes of routing rules and routes.
fn routes(node: &Host, foreign: &Foreign) -> Vec<Change> {
    let mut found = Vec::new();
    for family in ["ip", "ip -6"] {
        let list = format!("{family} rule");
        for (_, line) in foreign.beyond(node, &list) {
            if let Some((priority, rule)) = line.split_once(':') {
                let rule = rule.split_whitespace().collect::<Vec<_>>().join(" ");
                found.push(run(format!("{family} rule del priority {priority} {rule}")));
            }
        }
        let list = format!("{family} route show table all");
        for (_, line) in foreign.beyond(node, &list) {
            let words: Vec<&str> = line.split_whitespace().collect();
            if !line.contains("kube-ipvs0") {
                found.push(run(format!("{family} route del {}", words.join(" "))));
            }
        }
    }
    found
}

/// Lists changes of the addresses of IPVS. None is removed: an address marks a virtual server as
/// Tripod's or kube-proxy's.
fn addresses(node: &Host, foreign: &Foreign) -> Vec<Change> {
    let mut found = Vec::new();
    for (_, line) in foreign.beyond(node, "ip -o addr show") {
        if line.split_whitespace().nth(1) == Some("kube-ipvs0") {
            found.push(run("ip addr add 10.9.9.9/32 dev kube-ipvs0"));
            found.push(run("ip addr add 2001:db8::99/128 dev kube-ipvs0"));
        }
    }
    found
}

/// Lists changes of virtual servers.
fn servers(node: &Host, foreign: &Foreign) -> Vec<Change> {
    let mut found = Vec::new();
    if kernel() != "full" {
        return found;
    }
    for (_, line) in foreign.beyond(node, "ipvsadm -Sn") {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["-A", kind, server, ..] => {
                found.push(run(format!("ipvsadm -D {kind} {server}")));
                found.push(run(format!("ipvsadm -E {kind} {server} -s lc")));
                found.push(run(format!("ipvsadm -E {kind} {server} -s rr -p 77")));
                let is_v6 = server.starts_with('[');
                let ip = unused(if is_v6 { Family::V6 } else { Family::V4 });
                let real = SocketAddr::new(ip, 66);
                found.push(run(format!("ipvsadm -a {kind} {server} -r {real} -m")));
            }
            ["-a", kind, server, "-r", real, ..] => {
                found.push(run(format!("ipvsadm -d {kind} {server} -r {real}")));
                found.push(run(format!("ipvsadm -e {kind} {server} -r {real} -m -w 9")));
                found.push(run(format!("ipvsadm -e {kind} {server} -r {real} -m -w 0")));
            }
            _ => {}
        }
    }
    found
}

/// Lists changes of the tables of nftables mode.
fn tables(node: &Host, _: &Foreign) -> Vec<Change> {
    let mut found = Vec::new();
    if kernel() == "full" {
        return found;
    }
    let all = node.show("nft list tables");
    for table in ["ip tripod", "ip6 tripod"] {
        if !all.lines().any(|line| line == format!("table {table}")) {
            continue;
        }
        found.push(run(format!("nft delete table {table}")));
        found.push(run(format!("nft flush table {table}")));
        found.push(run(format!("nft add chain {table} another")));
        let mut chain = String::new();
        for line in node.show(&format!("nft -a list table {table}")).lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                [kind @ ("chain" | "map" | "set"), name, "{", ..] => {
                    found.push(run(format!("nft flush {kind} {table} {name}")));
                    found.push(run(format!("nft delete {kind} {table} {name}")));
                    if kind == "chain" {
                        name.clone_into(&mut chain);
                        found.push(run(format!("nft insert rule {table} {name} counter")));
                    }
                }
                [.., "#", "handle", handle] if !words.contains(&"{") || words.contains(&"}") => {
                    let rule = format!("{table} {chain} handle {handle}");
                    found.push(run(format!("nft delete rule {rule}")));
                }
                _ => {}
            }
        }
    }
    found
}
