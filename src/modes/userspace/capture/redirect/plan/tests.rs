//! The rules as text.

use std::sync::Arc;

use xtables::{difference::difference, observed::Observed};

use super::*;
use crate::modes::userspace::capture::OtherPorts;

fn bare() -> Features {
    use Extension::{Addrtype, Comment, Conntrack, Dnat, Reject};

    Features::all() - (Comment | Addrtype | Dnat | Conntrack | Reject)
}

/// The rules as text.
fn words(rules: &[Rule], family: Family) -> Vec<String> {
    let words = rules.iter().map(|rule| rule.words(family).to_string());
    words.collect()
}

fn rules(address: Option<&str>, features: Features, destination: Option<&str>) -> Vec<String> {
    let address: Option<IpAddr> = address.map(|a| a.parse().unwrap());
    let frontend = match address {
        Some(ip) => Frontend::service(Protocol::Tcp, ip, 80),
        None => Frontend::node_port(Protocol::Tcp, Family::V4, 80),
    };
    let target = Target {
        port: 40_000,
        name: Arc::from("default/we\"b\n:http"),
        other_ports: OtherPorts::Refuse,
    };
    let own = [own("192.0.2.1", 2, 0, 0), own("10.0.0.1", 3, 0, 0)];
    let environment = Environment {
        family: frontend.family,
        features,
        destination: destination.map(|a| a.parse().unwrap()),
        node: node(
            &features,
            &Served::All,
            own.iter().map(|a| a.address),
            Family::V4,
        ),
        only_to_ours: false,
    };
    words(&nat(&frontend, &target, &environment), frontend.family)
}

fn own(address: &str, index: u32, scope: u8, flags: u32) -> Address {
    let address = address.parse().unwrap();
    Address {
        address,
        prefix: Family::of(&address).bits(),
        index,
        interface: String::new(),
        scope,
        flags,
        own: false,
    }
}

#[test]
fn nat_rules() {
    let (bare, v4, v6) = (bare(), Some("10.96.0.1"), Some("fd96::1"));
    let (here, here6) = (Some("192.0.2.1"), Some("fd01::1"));
    let redirected = "-d 10.96.0.1/32 -p tcp -m tcp --dport 80 \
                      -m comment --comment \"default/we_b_:http\" -j REDIRECT --to-ports 40000";
    let translated = "-d 10.96.0.1/32 -p tcp -m tcp --dport 80 \
                      -j DNAT --to-destination 192.0.2.1:40000";
    let translated6 = "-d fd96::1/128 -p tcp -m tcp --dport 80 \
                       -j DNAT --to-destination [fd01::1]:40000";
    let node_port = "-p tcp -m addrtype --dst-type LOCAL -m tcp --dport 80 \
                     -m comment --comment \"default/we_b_:http\" \
                     -j DNAT --to-destination 192.0.2.1:40000";
    let each_address = [
        "-d 10.0.0.1/32 -p tcp -m tcp --dport 80 -j REDIRECT --to-ports 40000",
        "-d 192.0.2.1/32 -p tcp -m tcp --dport 80 -j REDIRECT --to-ports 40000",
    ];
    let cases: [(_, _, _, &[&str]); 5] = [
        (v4, Features::all(), None, &[redirected]),
        (v4, bare, here, &[translated]),
        (v6, bare, here6, &[translated6]),
        (None, Features::all(), here, &[node_port]),
        (None, bare, None, &each_address),
    ];
    for (address, features, destination, expected) in cases {
        assert_eq!(rules(address, features, destination), expected);
    }
}

#[test]
fn node_ports_stay_on_the_nodes_own_addresses() {
    let own = [own("192.0.2.1", 2, 0, 0), own("10.0.0.1", 3, 0, 0)];
    let within = Served::Within(vec![
        "10.0.0.0/8".parse().unwrap(),
        "fd00::/8".parse().unwrap(),
    ]);
    let matches = |features, family| {
        words(
            &node(&features, &within, own.iter().map(|a| a.address), family),
            family,
        )
    };
    let of_network = "-d 10.0.0.0/8 -m addrtype --dst-type LOCAL";
    assert_eq!(matches(Features::all(), Family::V4), [of_network]);
    assert_eq!(matches(bare(), Family::V4), ["-d 10.0.0.1/32"]);
    assert!(matches(bare(), Family::V6).is_empty());
    let everywhere = ["192.0.2.0/24", "0.0.0.0/0"].map(|net| net.parse().unwrap());
    let everywhere = Served::Within(everywhere.into());
    assert_eq!(
        words(
            &node(
                &Features::all(),
                &everywhere,
                own.iter().map(|a| a.address),
                Family::V4
            ),
            Family::V4
        ),
        ["-m addrtype --dst-type LOCAL"]
    );
}

#[test]
fn nat_leads_to_a_steady_address_of_the_node() {
    let addresses = [
        own("127.0.0.1", 1, 254, 0),
        own("fe80::1", 2, 253, 0),
        own("192.0.2.9", 2, 0, 0x01),
        own("192.0.2.1", 2, 0, 0),
        own("10.0.0.1", 3, 0, 0),
    ];
    let pick = |before: Option<&str>, services: &[&str]| {
        let services = services.iter().map(|a| a.parse().unwrap()).collect();
        let before = before.map(|b| b.parse().unwrap());
        destination(&addresses, Family::V4, before, &services).map(|a| a.to_string())
    };
    assert_eq!(pick(None, &[]).as_deref(), Some("192.0.2.1"));
    assert_eq!(pick(Some("10.0.0.1"), &[]).as_deref(), Some("10.0.0.1"));
    assert_eq!(pick(Some("10.0.0.9"), &[]).as_deref(), Some("192.0.2.1"));
    assert_eq!(pick(None, &["192.0.2.1"]).as_deref(), Some("10.0.0.1"));
    let all = ["192.0.2.1", "10.0.0.1"];
    assert_eq!(pick(None, &all).as_deref(), Some("192.0.2.1"));
    let v6 = destination(&addresses, Family::V6, None, &BTreeSet::new());
    assert_eq!(v6, None);
}

/// The jump of the node's own packets.
const OWN: &str = "OUTPUT -m mark ! --mark 0x54500050 -j TRIPOD-USERSPACE";

#[test]
fn jumps_are_repaired_to_exactly_one() {
    let right = format!("-A PREROUTING -j TRIPOD-USERSPACE\n-A {OWN}\n");
    let [insert, delete] = ["I", "D"].map(|verb| format!("-{verb} {OWN}"));
    let cases: [(&str, &[&str]); 6] = [
        (&right, &[]),
        (
            "-A PREROUTING -j OTHER\n-A OUTPUT -j TRIPOD-USERSPACE-2\n",
            &[&insert, "-I PREROUTING -j TRIPOD-USERSPACE"],
        ),
        // As an earlier version wrote it.
        (
            "-A PREROUTING -j TRIPOD-USERSPACE\n-A OUTPUT -j TRIPOD-USERSPACE\n",
            &["-D OUTPUT -j TRIPOD-USERSPACE", &insert],
        ),
        (&format!("{right}-A {OWN}\n"), &[&delete, &delete, &insert]),
        (
            &format!("{right}-A POSTROUTING -j TRIPOD-USERSPACE\n"),
            &["-D POSTROUTING -j TRIPOD-USERSPACE"],
        ),
        (
            &format!("-A PREROUTING -s 192.0.2.0/24 -j TRIPOD-USERSPACE\n-A {OWN}\n"),
            &[
                "-D PREROUTING -s 192.0.2.0/24 -j TRIPOD-USERSPACE",
                "-I PREROUTING -j TRIPOD-USERSPACE",
            ],
        ),
    ];
    let environment = Environment {
        family: Family::V4,
        features: bare(),
        destination: None,
        node: Vec::new(),
        only_to_ours: false,
    };
    let empty = Chain {
        table: Table::Nat,
        name: CHAIN.to_owned(),
        rules: Vec::new(),
    };
    let desired = rule_set(vec![empty], &environment);
    for (saved, expected) in cases {
        let mut observed = Observed::new(interest);
        let chains = ["PREROUTING", "OUTPUT", "POSTROUTING", CHAIN];
        for chain in chains {
            observed.line(Table::Nat, &format!(":{chain} - [0:0]"));
        }
        let lines = saved.lines();
        lines.for_each(|line| observed.line(Table::Nat, line));
        let text = difference(&observed, &desired, Family::V4).to_string();
        let commands = text.lines().filter(|line| line.starts_with('-'));
        assert_eq!(commands.collect::<Vec<_>>(), expected, "{saved}");
    }
    for (only_to_ours, expected) in [(false, 1), (true, 2)] {
        let guarded = Environment {
            features: Features::all(),
            only_to_ours,
            ..environment.clone()
        };
        let jumps = rule_set(Vec::new(), &guarded).jumps;
        let of_filter = jumps.iter().filter(|jump| jump.table == Table::Filter);
        assert_eq!(of_filter.count(), expected);
    }
}

#[test]
fn what_is_redirected_gets_to_no_socket_of_another_user() {
    let environment = |only_to_ours| Environment {
        family: Family::V4,
        features: Features::all(),
        destination: None,
        node: Vec::new(),
        only_to_ours,
    };
    for (only_to_ours, expected) in [
        (
            true,
            "-m conntrack --ctstate DNAT -m socket --transparent --nowildcard -j RETURN",
        ),
        // An earlier process of another version may have sockets without the option.
        (false, "-m conntrack --ctstate DNAT -j RETURN"),
    ] {
        let rule = translated(&environment(only_to_ours));
        assert_eq!(words(&[rule], Family::V4), [expected]);
    }
    let jumps = rule_set(Vec::new(), &environment(true)).jumps;
    let rules: Vec<_> = jumps.into_iter().map(|jump| jump.rule).collect();
    let udp = "-p udp -m conntrack --ctstate ESTABLISHED -m conntrack --ctstate DNAT";
    let all = words(&rules, Family::V4);
    assert!(all.iter().any(|rule| rule.starts_with(udp)), "{all:?}");
}
