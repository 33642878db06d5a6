//! Virtual and real servers: each field reaches the kernel and comes back.

use std::time::Duration;

use ipvs::{
    Change, Forwarding, HASH_PORTS, Ipvs, RealServer, ServerId, Timeouts, VirtualServer, Wrapping,
};
use net::Protocol;

use super::{ipvs, lines, make, masqueraded, show, tcp};
use crate::lab::run;

#[test]
#[ignore = "for a guest kernel with IPVS"]
fn virtual_servers_are_what_ipvsadm_says_they_are() {
    run(|| {
        let mut ipvs = ipvs();
        let udp = ServerId {
            protocol: Protocol::Udp,
            ..tcp("10.96.0.10:53")
        };
        let sctp = ServerId {
            protocol: Protocol::Sctp,
            ..tcp("10.96.0.11:9")
        };
        let servers = [
            VirtualServer::new(tcp("10.96.0.1:443"), "rr"),
            VirtualServer {
                // IP_VS_SVC_F_ONEPACKET: every packet is a connection.
                flags: 0x4,
                ..VirtualServer::new(udp, "wlc")
            },
            VirtualServer::new(sctp, "lc"),
            VirtualServer {
                persistence: Some(Duration::from_secs(10_800)),
                client_bits: 24,
                ..VirtualServer::new(tcp("10.96.0.2:80"), "wrr")
            },
            VirtualServer {
                flags: HASH_PORTS,
                ..VirtualServer::new(tcp("10.96.0.3:80"), "sh")
            },
            VirtualServer {
                persistence: Some(Duration::from_secs(60)),
                client_bits: 64,
                ..VirtualServer::new(tcp("[fd00::a]:80"), "mh")
            },
        ];
        for server in &servers {
            ipvs.add(server).expect("adding");
        }
        let mut found: Vec<_> = ipvs.list().expect("listing");
        found.sort_by_key(|server| server.id);
        let mut expected = servers.to_vec();
        expected.sort_by_key(|server| server.id);
        assert_eq!(found, expected);
        assert_eq!(
            lines("ipvsadm -Sn"),
            [
                "-A -t 10.96.0.1:443 -s rr",
                "-A -t 10.96.0.2:80 -s wrr -p 10800 -M 255.255.255.0",
                "-A -t 10.96.0.3:80 -s sh -b sh-port",
                "-A -t [fd00::a]:80 -s mh -p 60 -M 64",
                "-A -u 10.96.0.10:53 -s wlc -o",
                "-A --sctp-service 10.96.0.11:9 -s lc",
            ]
            .sorted()
        );

        let mut other = servers[3].clone();
        (other.persistence, other.scheduler) = (None, "sed".into());
        make(&mut ipvs, &[Change::Edit(other.clone())]);
        let saved = show("ipvsadm -Sn");
        assert!(saved.contains("-A -t 10.96.0.2:80 -s sed"), "{saved}");
        assert!(!saved.contains("-p 10800"), "{saved}");
        ipvs.delete(&other.id).expect("deleting");
        ipvs.delete(&other.id).expect("gone is fine");
        let left = ipvs.list().expect("listing").into_iter();
        let deletions: Vec<_> = left.map(|server| Change::Delete(server.id)).collect();
        make(&mut ipvs, &deletions);
        assert!(ipvs.list().expect("listing").is_empty());
    });
}

#[test]
#[ignore = "for a guest kernel with IPVS"]
fn real_servers_are_what_ipvsadm_says_they_are() {
    run(|| {
        let mut ipvs = ipvs();
        let (four, six) = (tcp("10.96.0.1:80"), tcp("[fd00::a]:80"));
        for id in [four, six] {
            ipvs.add(&VirtualServer::new(id, "wrr")).expect("adding");
        }
        let at = |address, forwarding| RealServer {
            forwarding,
            ..masqueraded(address, 1)
        };
        let tunnel = |address, wrapping| RealServer {
            wrapping,
            ..at(address, Forwarding::Tunnel)
        };
        let reals = [
            RealServer {
                upper_threshold: 100,
                lower_threshold: 50,
                ..masqueraded("10.244.0.1:8080", 3)
            },
            masqueraded("10.244.0.2:8080", 0),
            at("10.244.0.3:80", Forwarding::DirectRoute),
            tunnel("10.244.0.4:80", Wrapping::IpInIp),
            tunnel("10.244.0.5:80", Wrapping::Gue { port: 6080 }),
            tunnel("10.244.0.6:80", Wrapping::Gre),
            at("127.0.0.1:80", Forwarding::Local),
        ];
        let additions = reals.map(|real| Change::AddReal(four, real));
        make(&mut ipvs, &additions);
        let real = masqueraded("[fd00:1::7]:8080", 5);
        make(&mut ipvs, &[Change::AddReal(six, real)]);

        let mut found = ipvs.list_real(&four).expect("listing");
        found.sort_by_key(|listed| listed.server.address);
        assert!(found.iter().all(|listed| listed.active == 0));
        let found: Vec<_> = found.into_iter().map(|listed| listed.server).collect();
        assert_eq!(found, reals);
        let limits = show("ipvsadm -Ln --thresholds");
        let limited = limits.lines().find(|line| line.contains("10.244.0.1:8080"));
        let words: Vec<_> = limited.unwrap_or_default().split_whitespace().collect();
        assert_eq!(words.get(2..4), Some(&["100", "50"][..]), "{limits}");
        let saved = show("ipvsadm -Sn");
        for line in [
            "-a -t 10.96.0.1:80 -r 10.244.0.1:8080 -m -w 3",
            "-a -t 10.96.0.1:80 -r 10.244.0.2:8080 -m -w 0",
            "-a -t 10.96.0.1:80 -r 10.244.0.3:80 -g -w 1",
            "-a -t 10.96.0.1:80 -r 10.244.0.4:80 -i -w 1",
            "-a -t 10.96.0.1:80 -r 10.244.0.5:80 -i -w 1 --tun-type gue --tun-port 6080",
            "-a -t 10.96.0.1:80 -r 10.244.0.6:80 -i -w 1 --tun-type gre",
            "-a -t [fd00::a]:80 -r [fd00:1::7]:8080 -m -w 5",
        ] {
            let met = saved.lines().any(|found| found.trim().starts_with(line));
            assert!(met, "{line}\n{saved}");
        }

        let drained = masqueraded("10.244.0.1:8080", 0);
        let deletion = Change::DeleteReal(four, reals[1].address);
        // Deleting a missing object is no error.
        make(
            &mut ipvs,
            &[
                Change::EditReal(four, drained),
                deletion.clone(),
                deletion.clone(),
            ],
        );
        let left = ipvs.list_real(&four).expect("listing");
        assert_eq!(left.len(), reals.len() - 1);
        let first = left.iter().find(|l| l.server.address == drained.address);
        assert_eq!(first.expect("it is there").server, drained);
    });
}

#[test]
#[ignore = "for a guest kernel with IPVS"]
fn each_change_of_a_batch_has_its_own_outcome() {
    run(|| {
        let mut ipvs = ipvs();
        let (web, none) = (tcp("10.96.0.1:80"), tcp("10.96.0.9:80"));
        let real = masqueraded("10.244.0.1:80", 1);
        let mut foo = VirtualServer::new(none, "foo");
        foo.id.address.set_port(81);
        let long = VirtualServer::new(none, "a-name-of-17-byte");
        let cases = [
            (Change::Add(VirtualServer::new(web, "rr")), None),
            (
                Change::Add(VirtualServer::new(web, "rr")),
                Some("virtual server 10.96.0.1:80/TCP"),
            ),
            (Change::Add(foo), Some("module ip_vs_foo")),
            (Change::Add(long), Some("virtual server 10.96.0.9:80/TCP")),
            (Change::AddReal(web, real), None),
            (
                Change::AddReal(web, real),
                Some("real server 10.244.0.1:80 of virtual server 10.96.0.1:80/TCP"),
            ),
            (
                Change::AddReal(none, real),
                Some("there is no such virtual server"),
            ),
            (
                Change::EditReal(web, masqueraded("10.244.0.2:80", 1)),
                Some("there is no such real server"),
            ),
            (Change::DeleteReal(web, real.address), None),
            (Change::DeleteReal(web, real.address), None),
            (Change::Delete(none), None),
        ];
        // Several datagrams, so that refusals meet their ends as well.
        let (changes, expected): (Vec<_>, Vec<_>) = cases.into_iter().unzip();
        let outcomes = ipvs.apply(&changes).expect("the socket");
        assert_eq!(outcomes.len(), expected.len());
        for ((outcome, expected), change) in outcomes.iter().zip(expected).zip(&changes) {
            let text = outcome.as_ref().err().map(ToString::to_string);
            match (&text, expected) {
                (None, None) => {}
                (Some(text), Some(words)) if text.contains(words) => {}
                _ => panic!("{change:?}: {text:?} instead of {expected:?}"),
            }
        }
        let again = vec![Change::Add(VirtualServer::new(web, "rr")); 200];
        let outcomes = ipvs.apply(&again).expect("the socket");
        assert_eq!(outcomes.len(), 200);
        assert!(outcomes.iter().all(Result::is_err));
        // The socket is still in step after all these refusals.
        assert_eq!(ipvs.list().expect("listing").len(), 1);
    });
}

#[test]
#[ignore = "for a guest kernel with IPVS"]
fn what_others_made_stays_as_it_is() {
    run(|| {
        show("ipvsadm -A -f 7 -s rr");
        show("ipvsadm -A -t 10.96.0.1:80 -s rr");
        let mut ipvs = ipvs();
        // A virtual server that a firewall mark names has no address.
        let found = ipvs.list().expect("listing");
        let [server] = &found[..] else {
            panic!("{found:?}");
        };
        assert_eq!(*server, VirtualServer::new(tcp("10.96.0.1:80"), "rr"));
        ipvs.delete(&server.id).expect("deleting");
        assert_eq!(lines("ipvsadm -Sn"), ["-A -f 7 -s rr"]);
    });
}

#[test]
#[ignore = "for a guest kernel with IPVS"]
fn timeouts_are_set_and_missing_schedulers_are_known() {
    run(|| {
        let mut ipvs = ipvs();
        ipvs.check().expect("root may read it");
        // "Timeout (tcp tcpfin udp): 900 120 300"
        let shown = || -> Vec<String> {
            let text = show("ipvsadm -l --timeout");
            let (_, values) = text.split_once(": ").expect("values");
            values.split_whitespace().map(str::to_owned).collect()
        };
        let before = shown();
        let timeouts = Timeouts {
            tcp: Duration::from_secs(1_000),
            udp: Duration::from_secs(77),
            ..Timeouts::default()
        };
        ipvs.set_timeouts(&timeouts).expect("setting them");
        let after = shown();
        assert_eq!((&*after[0], &*after[2]), ("1000", "77"));
        assert_eq!(after[1], before[1], "zero leaves it as it is");

        let long = "sixteen-bytes-xx";
        let names = ["rr", "wrr", "lc", "foo", long, "sed", "nq", "mh", "lblcr"];
        assert_eq!(missing(&mut ipvs, &names), ["foo", long]);
        assert!(ipvs.list().expect("listing").is_empty());
    });
}

#[test]
#[ignore = "for a guest kernel with IPVS"]
fn what_a_killed_trial_left_is_no_obstacle_to_the_next() {
    run(|| {
        let mut ipvs = ipvs();
        show("ipvsadm -A -t 192.0.2.1:1 -s wlc");
        assert_eq!(missing(&mut ipvs, &["wrr", "foo"]), ["foo"]);
        assert!(ipvs.list().expect("listing").is_empty());
        // A virtual server with endpoints belongs to another program.
        show("ipvsadm -A -t 192.0.2.1:1 -s wlc");
        show("ipvsadm -a -t 192.0.2.1:1 -r 10.244.0.1:80 -m");
        let error = ipvs.try_scheduler("wrr").expect_err("it is in use");
        assert!(error.to_string().contains("192.0.2.1:1"), "{error}");
        assert_eq!(lines("ipvsadm -Sn").len(), 2);
    });
}

/// Returns those of `names` for which this kernel has no scheduler.
fn missing<'a>(ipvs: &mut Ipvs, names: &[&'a str]) -> Vec<&'a str> {
    let names = names.iter().copied();
    names
        .filter(|name| ipvs.try_scheduler(name).expect("an answer").is_some())
        .collect()
}

trait Sorted {
    fn sorted(self) -> Self;
}

impl<T: Ord, const N: usize> Sorted for [T; N] {
    fn sorted(mut self) -> Self {
        self.sort();
        self
    }
}
