use std::sync::Arc;

use netlink::Malformed;
use testing::in_namespace;

use super::*;

fn of_each_kind(family: Family) -> Vec<(Kind, Vec<Element>)> {
    let (ip, other, net) = match family {
        Family::V4 => ("10.96.0.10", "10.244.1.7", "198.51.100.0/24"),
        Family::V6 => ("fd00::a", "fd00:1::7", "2001:db8::/64"),
    };
    let (ip, other, net) = (
        ip.parse().unwrap(),
        other.parse().unwrap(),
        net.parse().unwrap(),
    );
    let (protocol, port) = (libc::IPPROTO_UDP as u8, 53);
    let mut kinds = vec![
        (Kind::Ip, vec![Element::Ip(ip), Element::Ip(other)]),
        (
            Kind::IpPort,
            vec![
                Element::ip_port(ip, libc::IPPROTO_TCP as u8, 80),
                Element::ip_port(ip, libc::IPPROTO_SCTP as u8, 80),
            ],
        ),
        (
            Kind::IpPortIp,
            vec![Element::IpPortIp {
                ip,
                protocol,
                port,
                other,
            }],
        ),
        (
            Kind::IpPortNet,
            vec![Element::IpPortNet {
                ip,
                protocol,
                port,
                net,
            }],
        ),
    ];
    if family == Family::V4 {
        kinds.push((Kind::Port, vec![Element::Port(0), Element::Port(65_535)]));
    }
    kinds
}

fn saved(name: &str) -> Vec<String> {
    let output = std::process::Command::new("ipset")
        .args(["save", name])
        .output()
        .expect("ipset is installed");
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().filter_map(|line| line.strip_prefix("add "));
    let mut members: Vec<String> = lines
        .filter_map(|line| line.split_once(' '))
        .map(|(_, member)| member.to_owned())
        .collect();
    members.sort();
    members
}

/// An older program `ipset`, as network plugins have one, lists no set of a newer revision.
#[test]
fn sets_are_of_the_oldest_revision_that_does() {
    in_namespace(|| {
        let mut sets = IpSets::open().unwrap();
        for kind in Kind::ALL {
            sets.create(&Set::new("TEST", kind, Family::V4)).unwrap();
            let arguments = ["list", "-terse", "TEST"];
            let output = std::process::Command::new("ipset").args(arguments).output();
            let text = String::from_utf8(output.expect("ipset is installed").stdout).unwrap();
            let shown = text
                .lines()
                .find_map(|line| line.strip_prefix("Revision: "));
            assert_eq!(shown, Some(&*kind.revision().to_string()), "{kind}: {text}");
            sets.destroy("TEST").unwrap();
        }
    });
}

#[test]
fn members_of_each_kind_are_what_ipset_says_they_are() {
    in_namespace(|| {
        let mut sets = IpSets::open().unwrap();
        for family in Family::ALL {
            for (kind, members) in of_each_kind(family) {
                let set = Set::new("TEST", kind, family);
                sets.create(&set).unwrap();
                sets.create(&set).expect("once more is fine");
                assert!(sets.add(&set, &members).unwrap().is_empty());
                assert!(sets.add(&set, &members).unwrap().is_empty());
                let mut listed = sets.members("TEST").unwrap();
                let mut expected = members.clone();
                listed.sort();
                expected.sort();
                assert_eq!(listed, expected, "{kind} {family}");
                let mut printed: Vec<String> = expected.iter().map(Element::to_string).collect();
                printed.sort();
                assert_eq!(printed, saved("TEST"), "{kind} {family}");
                let all = sets.list().unwrap();
                assert_eq!(all.len(), 1);
                assert!(all[0].is(&set), "{all:?}");
                assert!(sets.remove(&set, &members[..1]).unwrap().is_empty());
                assert!(sets.remove(&set, &members[..1]).unwrap().is_empty());
                assert_eq!(sets.members("TEST").unwrap().len(), members.len() - 1);
                sets.destroy("TEST").unwrap();
                sets.destroy("TEST").expect("gone is fine");
            }
        }
    });
}

#[test]
fn a_member_that_is_refused_is_named_and_the_others_are_in() {
    in_namespace(|| {
        let mut sets = IpSets::open().unwrap();
        let set = Set {
            max_members: 65_536,
            ..Set::new("TEST", Kind::IpPort, Family::V4)
        };
        sets.create(&set).unwrap();
        let mut members: Vec<Element> = (1..=250)
            .map(|port| Element::ip_port([10, 0, 0, 1].into(), 6, port))
            .collect();
        let bad = Element::ip_port("fd00::1".parse().unwrap(), 6, 80);
        members.insert(120, bad);
        let refused = sets.add(&set, &members).unwrap();
        assert_eq!(refused.len(), 1, "{refused:?}");
        assert_eq!(refused[0].element, bad);
        assert!(
            refused[0]
                .error
                .to_string()
                .contains("fd00::1,tcp:80 in set TEST")
        );
        assert_eq!(sets.members("TEST").unwrap().len(), 250);
    });
}

#[test]
fn large_sets_are_listed_whole_and_sets_are_swapped() {
    in_namespace(|| {
        let mut sets = IpSets::open().unwrap();
        let (one, other) = (
            Set::new("ONE", Kind::IpPort, Family::V4),
            Set::new("OTHER", Kind::IpPort, Family::V4),
        );
        sets.create(&one).unwrap();
        sets.create(&other).unwrap();
        let members: Vec<Element> = (0..20_000u32)
            .map(|i| Element::ip_port((0x0a00_0000 + i).to_be_bytes().into(), 6, 80))
            .collect();
        assert!(sets.add(&one, &members).unwrap().is_empty());
        assert_eq!(sets.members("ONE").unwrap().len(), members.len());
        sets.swap("ONE", "OTHER").unwrap();
        assert_eq!(sets.members("OTHER").unwrap().len(), members.len());
        assert!(sets.members("ONE").unwrap().is_empty());
    });
}

#[test]
fn errors_name_the_set_and_the_cause() {
    in_namespace(|| {
        let mut sets = IpSets::open().unwrap();
        let long = Set::new("KUBE-6-LOAD-BALANCER-SOURCE-CIDR", Kind::Ip, Family::V6);
        let error = sets.create(&long).unwrap_err().to_string();
        assert!(error.contains("at most 31"), "{error}");
        sets.create(&Set::new("TEST", Kind::Ip, Family::V4))
            .unwrap();
        let other = Set::new("TEST", Kind::IpPort, Family::V4);
        let error = sets.create(&other).unwrap_err().to_string();
        assert!(
            error.contains("set TEST") && error.contains("another kind"),
            "{error}"
        );
        let error = sets.members("NONE").unwrap_err().to_string();
        assert!(error.contains("set NONE"), "{error}");
    });
}

#[test]
fn a_set_that_is_full_says_so() {
    in_namespace(|| {
        let mut sets = IpSets::open().unwrap();
        let set = Set {
            max_members: 2,
            ..Set::new("SMALL", Kind::Ip, Family::V4)
        };
        sets.create(&set).unwrap();
        let members = [1, 2, 3].map(|last| Element::Ip([10, 0, 0, last].into()));
        let refused = sets.add(&set, &members).unwrap();
        let [Refused { element, error }] = &refused[..] else {
            panic!("{refused:?}");
        };
        assert_eq!(*element, members[2]);
        let expected = "cannot add 10.0.0.3 in set SMALL: the set is full";
        assert!(error.to_string().starts_with(expected), "{error}");
    });
}

fn many(first: u32, number: u32) -> Vec<Element> {
    let ip = |i: u32| (0x0a00_0000 + i).to_be_bytes().into();
    let members = (first..first + number).map(|i| Element::ip_port(ip(i), 6, 80));
    members.collect()
}

#[test]
fn members_without_room_are_not_sent_one_by_one() {
    in_namespace(|| {
        let mut sets = IpSets::open().unwrap();
        let set = Set {
            max_members: 150,
            ..Set::new("SMALL", Kind::IpPort, Family::V4)
        };
        sets.create(&set).unwrap();
        let mut members = many(0, 20_000);
        // Another reason, in a message of its own.
        let bad = Element::ip_port("fd00::1".parse().unwrap(), 6, 80);
        members.insert(50, bad);
        let refused = sets.add(&set, &members).unwrap();
        assert_eq!(sets.members("SMALL").unwrap().len(), 150);
        assert_eq!(refused.len(), members.len() - 150);
        let mut reasons: Vec<_> = refused
            .iter()
            .map(|refused| Arc::as_ptr(&refused.error))
            .collect();
        reasons.dedup();
        assert_eq!(reasons.len(), 2, "reasons");
        assert_eq!(refused[0].element, bad);
        let full = refused[1].error.to_string();
        assert!(full.contains("in set SMALL: the set is full"), "{full}");
    });
}

#[test]
fn a_set_is_enlarged_with_its_members_under_the_rules_that_use_it() {
    in_namespace(|| {
        let mut sets = IpSets::open().unwrap();
        let small = Set {
            max_members: 64,
            ..Set::new("GROWING", Kind::IpPort, Family::V4)
        };
        sets.create(&small).unwrap();
        let (before, more) = (many(0, 64), many(64, 100_000));
        assert!(sets.add(&small, &before).unwrap().is_empty());
        let sh = |line: &str| {
            let mut command = std::process::Command::new("sh");
            command.args(["-ec", line]).output().unwrap()
        };
        let rule = "iptables -A INPUT -p tcp -m set --match-set GROWING dst,dst -j DROP";
        let added = sh(rule);
        assert!(added.status.success(), "{added:?}");
        // A temporary set left by a process that was killed.
        sets.create(&Set::new(TEMPORARY, Kind::Ip, Family::V6))
            .unwrap();

        let larger = small.clone().with_room_for(64 + 100_000);
        sets.enlarge(&larger).unwrap();
        let mut found = sets.members("GROWING").unwrap();
        found.sort();
        assert_eq!(found, before);
        assert!(sets.add(&larger, &more).unwrap().is_empty());
        let listed = sets.list().unwrap();
        let [only] = &listed[..] else {
            panic!("{listed:?}");
        };
        assert!(only.is(&larger) && only.references == 1, "{only:?}");
        assert_eq!(only.max_members, 131_072);
        assert!(sets.destroy("GROWING").is_err(), "the rule uses it");

        // The name is in use: all stays as it is.
        sets.create(&Set::new(TEMPORARY, Kind::Ip, Family::V4))
            .unwrap();
        let added = sh(&format!(
            "iptables -A INPUT -m set --match-set {TEMPORARY} src -j DROP"
        ));
        assert!(added.status.success(), "{added:?}");
        let error = sets.enlarge(&larger.clone().with_room_for(1 << 20));
        let error = error.unwrap_err().to_string();
        assert!(error.contains(TEMPORARY), "{error}");
        assert_eq!(sets.members("GROWING").unwrap().len(), 100_064);
        assert!(
            sets.enlarge(&Set::new("NONE", Kind::Ip, Family::V4))
                .is_err()
        );
    });
}

/// The kernel takes any bytes as a name.
#[test]
fn sets_of_others_whose_name_is_no_text_are_left_out() {
    in_namespace(|| {
        let mut sets = IpSets::open().unwrap();
        let line = r"printf 'create caf\351 hash:ip\n' | ipset restore";
        let mut command = std::process::Command::new("sh");
        let made = command.args(["-ec", line]).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        sets.create(&Set::new("OURS", Kind::Ip, Family::V4))
            .unwrap();
        let names: Vec<String> = sets.list().unwrap().into_iter().map(|s| s.name).collect();
        assert_eq!(names, ["OURS"]);
    });
}

/// The kernel begins no other list on the socket before the end of one.
#[test]
fn a_list_that_cannot_be_read_is_no_obstacle_to_the_next() {
    in_namespace(|| {
        let mut sets = IpSets::open().unwrap();
        // More than the few datagrams that the kernel sends ahead.
        for number in 0..1_500 {
            let name = format!("A-SET-WITH-A-LONG-NAME-{number}");
            sets.create(&Set::new(name, Kind::Ip, Family::V4)).unwrap();
        }
        let request = sets.request(7, libc::AF_INET as u8, 0, "list", "sets");
        let read = sets
            .socket
            .dump(&request, |_| Err::<Option<()>, _>(Malformed("odd")));
        let error = read.unwrap_err().to_string();
        assert!(error.contains("odd"), "{error}");
        assert_eq!(sets.list().unwrap().len(), 1_500);
    });
}

#[test]
fn sizes_follow_from_what_a_set_holds() {
    let sized = |members| {
        let set = Set::new("SIZED", Kind::Ip, Family::V4).with_room_for(members);
        (set.hash_size, set.max_members)
    };
    assert_eq!(sized(0), (1024, 65_536));
    assert_eq!(sized(52_428), (16_384, 65_536));
    assert_eq!(sized(65_792), (32_768, 131_072));
    assert_eq!(sized(u32::MAX), (1 << 30, u32::MAX));
}
