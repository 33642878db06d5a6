//! Tests of matching and reading; some run against the real kernel, whose table they
//! fill over ctnetlink.

use proptest::prelude::*;
use testing::in_namespace;

use super::*;
use crate::{Messages, Protocol, conntrack::entries};

fn at(address: &str) -> SocketAddr {
    address.parse().unwrap()
}

fn sources<const N: usize>(sources: [&str; N]) -> HashSet<Source> {
    sources.into_iter().map(|s| at(s).into()).collect()
}

fn to(destination: &str, reply: Reply) -> Match {
    let destination = at(destination);
    Match {
        protocol: UDP,
        destination: Some(destination.ip()),
        port: Some(destination.port()),
        reply,
    }
}

fn flow(protocol: u8, client: &str, called: &str, served: &str) -> Flow {
    let original = Tuple {
        source: at(client),
        destination: at(called),
    };
    let reply = Tuple {
        source: at(served),
        destination: at(client),
    };
    Flow {
        protocol,
        original,
        reply,
        state: State::default(),
        tuple: Vec::new(),
        id: None,
        zone: None,
    }
}

/// Enters a flow into the table, in `zone` if it is not 0.
pub(crate) fn enter(socket: &mut Socket, flow: &Flow, zone: u16) {
    let mut request = entries::flow(flow.protocol, flow.original, flow.reply, 600);
    if zone != 0 {
        request = request.attribute(ZONE, &zone.to_be_bytes());
    }
    socket.call(&request, |_| Ok(None::<()>)).unwrap();
}

/// Enters a UDP flow as nat leaves it.
pub(crate) fn enter_udp(socket: &mut Socket, client: &str, called: &str, served: &str) {
    enter(socket, &flow(UDP, client, called, served), 0);
}

/// Lists all UDP flows of `family`, each as the called address and the answering one, in order.
pub(crate) fn udp(socket: &mut Socket, family: Family) -> Vec<String> {
    let flows = list(socket, family, &[Match::all(UDP)]).unwrap();
    let mut lines: Vec<_> = flows
        .iter()
        .map(|f| format!("{} {}", f.original.destination, f.reply.source))
        .collect();
    lines.sort();
    lines
}

#[test]
fn what_is_meant() {
    let led = flow(UDP, "10.0.0.1:999", "10.96.0.1:53", "10.1.0.7:5353");
    let open = |address: Option<&str>, port| Source {
        address: address.map(|a| a.parse().unwrap()),
        port,
    };
    let any = || Reply::Any;
    let to_dns = |reply| to("10.96.0.1:53", reply);
    let cases = [
        (true, to_dns(Reply::Any)),
        (false, to("10.96.0.1:54", any())),
        (false, to("10.96.0.2:53", any())),
        (
            false,
            Match {
                protocol: TCP,
                ..to_dns(any())
            },
        ),
        (
            true,
            Match {
                destination: None,
                ..to_dns(any())
            },
        ),
        (
            true,
            Match {
                port: None,
                ..to_dns(any())
            },
        ),
        (true, to_dns(Reply::From(sources(["10.1.0.7:5353"])))),
        (false, to_dns(Reply::NotFrom(sources(["10.1.0.7:5353"])))),
        (false, to_dns(Reply::From(sources(["10.1.0.7:53"])))),
        (true, to_dns(Reply::NotFrom(sources(["10.1.0.7:53"])))),
        (false, to_dns(Reply::From(HashSet::new()))),
        (true, to_dns(Reply::NotFrom(HashSet::new()))),
        (true, to_dns(Reply::From([open(None, Some(5353))].into()))),
        (
            true,
            to_dns(Reply::From([open(Some("10.1.0.7"), None)].into())),
        ),
        (
            false,
            to_dns(Reply::NotFrom([open(Some("10.1.0.7"), None)].into())),
        ),
        (
            false,
            to_dns(Reply::From([open(Some("10.1.0.8"), None)].into())),
        ),
    ];
    for (expected, case) in cases {
        let matches = [case, to("192.0.2.1:1", Reply::Any)];
        assert_eq!(Index::new(&matches).means(&led), expected, "{matches:?}");
    }
    // One of several flows with the same destination is enough.
    let both = [
        to_dns(Reply::From(HashSet::new())),
        to_dns(Reply::From(sources(["10.1.0.7:5353"]))),
    ];
    assert!(Index::new(&both).means(&led));
}

#[test]
fn the_kernel_deletes_what_is_meant_and_nothing_else() {
    in_namespace(|| {
        let mut socket = Socket::open(Protocol::Netfilter).unwrap();
        let fill = |socket: &mut Socket| {
            for (protocol, client, called, served) in [
                (UDP, "10.0.0.1:1001", "10.96.0.1:53", "10.1.0.7:53"),
                (UDP, "10.0.0.1:1002", "10.96.0.1:53", "10.1.0.8:53"),
                (UDP, "10.0.0.1:1003", "10.96.0.1:53", "10.96.0.1:53"),
                (UDP, "10.0.0.1:1004", "10.96.0.2:53", "10.1.0.7:53"),
                (UDP, "10.0.0.1:1005", "192.0.2.1:30053", "10.1.0.7:53"),
                (UDP, "[fd00::1]:1006", "[fd96::1]:53", "[fd01::7]:53"),
                (UDP, "[fd00::1]:1007", "[fd96::1]:54", "[fd01::7]:54"),
            ] {
                let added = flow(protocol, client, called, served);
                enter(socket, &added, 0);
            }
            let zoned = flow(UDP, "10.0.0.1:1001", "10.96.0.1:53", "10.1.0.7:53");
            enter(socket, &zoned, 7);
        };
        let open = |port| Match {
            protocol: UDP,
            destination: None,
            port: Some(port),
            reply: Reply::Any,
        };
        let good = || Reply::NotFrom(sources(["10.1.0.8:53"]));
        // Filtered by the kernel for all of it, for a part, and not at all.
        let cases: [(Family, Vec<Match>, usize); 8] = [
            (Family::V4, vec![], 0),
            (Family::V4, vec![to("10.96.0.1:53", good())], 3),
            (
                Family::V4,
                vec![to("10.96.0.1:53", good()), to("10.96.0.2:53", good())],
                4,
            ),
            (Family::V4, vec![to("10.96.0.2:53", good()), open(30053)], 2),
            (
                Family::V4,
                vec![
                    open(30053),
                    Match {
                        protocol: TCP,
                        ..open(53)
                    },
                ],
                1,
            ),
            (Family::V4, vec![to("[fd96::1]:53", Reply::Any)], 0),
            (Family::V6, vec![to("[fd96::1]:53", Reply::Any)], 1),
            (Family::V6, vec![open(53), open(54)], 2),
        ];
        fill(&mut socket);
        let whole = Family::ALL.map(|family| udp(&mut socket, family));
        assert_eq!(whole.each_ref().map(Vec::len), [6, 2], "{whole:?}");
        for (family, matches, expected) in cases {
            let meant = list(&mut socket, family, &matches).unwrap();
            assert_eq!(meant.len(), expected, "{family} {matches:?}: {meant:?}");
            let deleted = delete(&mut socket, family, &matches).unwrap();
            assert_eq!(deleted, expected, "{family} {matches:?}");
            assert_eq!(list(&mut socket, family, &matches).unwrap(), []);
            let left: usize = Family::ALL.map(|f| udp(&mut socket, f).len()).iter().sum();
            assert_eq!(left, 8 - expected, "{family} {matches:?}");
            for family in Family::ALL {
                delete(&mut socket, family, &[open(53), open(54), open(30053)]).unwrap();
            }
            fill(&mut socket);
        }
    });
}

#[test]
fn a_flow_that_ended_meanwhile_is_named_and_not_missed() {
    in_namespace(|| {
        let mut socket = Socket::open(Protocol::Netfilter).unwrap();
        let called = "10.96.0.1:53";
        enter_udp(&mut socket, "10.0.0.1:1001", called, "10.1.0.7:53");
        let matches = [to(called, Reply::Any)];
        let listed = list(&mut socket, Family::V4, &matches).unwrap();
        assert_eq!(delete(&mut socket, Family::V4, &matches).unwrap(), 1);
        let late = deletion(Family::V4, &listed[0]);
        let outcomes = socket.batch(&[late], &[]).unwrap();
        let error = outcomes[0].as_ref().unwrap_err();
        assert_eq!(error.errno(), Some(Errno::ENOENT));
        let named = "cannot delete flow of protocol 17, 10.0.0.1:1001 to 10.96.0.1:53";
        assert!(error.to_string().starts_with(named), "{error}");
    });
}

#[test]
fn what_has_no_ports_is_passed_over() {
    let request = message(CT_NEW, Family::V4, "add", String::new());
    let request = request.nested(TUPLE_ORIGINAL, |r| {
        r.nested(TUPLE_PROTOCOL, |r| r.attribute(PROTOCOL_NUMBER, &[1]))
    });
    let mut wire = Vec::new();
    request.write(&mut wire, 0, 1);
    let message = Messages::new(&wire).next().unwrap().unwrap();
    assert_eq!(parse(message), Ok(None));
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(
        tail in prop::collection::vec(any::<u8>(), 0..64),
        family in prop::sample::select(vec![2u8, 10, 7]),
        kind in 0u16..30,
        cut in 0usize..80,
    ) {
        let nested = message(CT_NEW, Family::V4, "add", String::new())
            .nested(TUPLE_ORIGINAL, |r| {
                r.nested(TUPLE_IP, |r| r.attribute(kind, &tail))
                    .nested(TUPLE_PROTOCOL, |r| r.attribute(kind, &tail))
            })
            .attribute(kind, &tail);
        let mut wire = Vec::new();
        nested.write(&mut wire, 0, 1);
        let whole = Messages::new(&wire).next().unwrap().unwrap();
        let cut = cut.min(whole.body.len());
        for body in [&tail, whole.body, &whole.body[..cut]] {
            let mut body = body.to_vec();
            if let Some(first) = body.first_mut() {
                *first = family;
            }
            let _ = parse(Message { kind: CT_NEW, flags: 0, sequence: 1, body: &body });
        }
    }
}
