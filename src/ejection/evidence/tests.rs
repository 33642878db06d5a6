//! Scripted connections, at scripted times.

use netlink::conntrack::flows::{State, TCP, Tuple};

use super::*;
use crate::services::service_ports::port_name;

const ENDPOINT: &str = "10.1.0.1:80";

/// The outcome of a connection, as the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Answered,
    Refused,
    /// Its entry is deleted, whatever the endpoint does.
    Deleted,
    /// No packet came back, and the client sent one.
    Silent,
    /// No packet came back, and the client sent its SYN again after a second.
    SilentTwice,
    /// The same, for a client of its own, which cannot reach the endpoint.
    KeptFrom,
}

use Outcome::{Answered, Deleted, KeptFrom, Refused, Silent, SilentTwice};

/// A run of connections, each with the millisecond at which it begins.
struct Play {
    evidence: Evidence,
    start: Instant,
    flows: Vec<(Outcome, u64)>,
    /// Whether the endpoint answers the node.
    answers_node: bool,
}

fn web() -> ServiceName {
    port_name("web:http").service.clone()
}

/// The state of an entry for which packets came back (`IPS_SEEN_REPLY`).
const ANSWERED: State = State {
    status: 1 << 1,
    of_protocol: None,
};
/// The state of one that ended with a reset as its only answer (`TCP_CONNTRACK_CLOSE`).
const REFUSED: State = State {
    status: 0,
    of_protocol: Some(8),
};

/// Returns a connection from `source` that is translated to the endpoint.
fn flow_of(source: SocketAddr) -> Flow {
    let original = Tuple {
        source,
        destination: ([10, 96, 0, 1], 80).into(),
    };
    let reply = Tuple {
        source: ENDPOINT.parse().unwrap(),
        destination: source,
    };
    Flow {
        protocol: TCP,
        original,
        reply,
        state: State::default(),
        tuple: Vec::new(),
        id: None,
        zone: None,
    }
}

impl Play {
    fn new() -> Play {
        Play {
            evidence: Evidence::default(),
            start: Instant::now(),
            flows: Vec::new(),
            answers_node: false,
        }
    }

    fn at(&self, milliseconds: u64) -> Instant {
        self.start + Duration::from_millis(milliseconds)
    }

    /// Lets connections begin, and looks them up, until `until`. Returns when the endpoint
    /// was ejected, and for how many seconds.
    fn run(&mut self, connections: &[(u64, Outcome)], until: u64) -> Vec<(u64, u64)> {
        let mut verdicts = Vec::new();
        let mut connections = connections.iter().peekable();
        let from = self.flows.last().map_or(0, |(_, at)| *at);
        for now in from..=until {
            while let Some((at, outcome)) = connections.next_if(|(at, _)| *at <= now) {
                let host = match outcome {
                    KeptFrom => 2,
                    _ => 1,
                };
                let source = SocketAddr::from(([10, 0, 0, host], 10_000 + self.flows.len() as u16));
                self.flows.push((*outcome, *at));
                let flow = flow_of(source);
                let mut ended = flow.clone();
                ended.state = REFUSED;
                self.evidence.began(web(), flow, self.at(*at));
                if *outcome == Refused {
                    self.evidence.refused(&ended);
                }
            }
            let now_at = self.at(now);
            if self.evidence.due().is_none_or(|due| due > now_at) {
                continue;
            }
            while let Some(asked) = self.evidence.next(now_at) {
                let port = usize::from(asked.flow().original.source.port());
                let (outcome, began) = self.flows[port - 10_000];
                let found = snapshot(outcome, now - began);
                if let Some(verdict) = self.evidence.found(asked, found, now_at) {
                    verdicts.push((now, verdict.length.as_secs()));
                }
            }
            for endpoint in self.evidence.take_probes(now_at) {
                let answers = Some(self.answers_node);
                let more = self.evidence.probed(endpoint, answers, now_at).into_iter();
                verdicts.extend(more.map(|verdict| (now, verdict.length.as_secs())));
            }
        }
        verdicts
    }

    fn is_ejected(&self) -> bool {
        self.evidence.ejected().next().is_some()
    }
}

/// Returns the kernel's report `after` milliseconds from the beginning of the connection.
fn snapshot(outcome: Outcome, after: u64) -> Option<Snapshot> {
    let silent_for = if matches!(outcome, SilentTwice | KeptFrom) && after >= 1000 {
        after - 1000
    } else {
        after
    };
    let state = match outcome {
        Refused | Deleted => return None,
        Answered => ANSWERED,
        Silent | SilentTwice | KeptFrom => State::default(),
    };
    // nf_conntrack_tcp_timeout_syn_sent is 120 s.
    let expires_in = u32::try_from((120_000 - silent_for) / 1000).ok();
    Some(Snapshot { state, expires_in })
}

#[test]
fn it_takes_more_than_one_lost_packet_to_eject_an_endpoint() {
    for (connections, ejected_by) in [
        (&[(0, Silent)][..], None),
        (&[(0, SilentTwice)], Some(1400)),
        (&[(0, Silent), (500, Silent)], Some(1900)),
        (&[(0, Refused)], None),
        (&[(0, Refused), (100, Refused)], Some(400)),
        (&[(0, Refused), (100, Silent)], Some(1500)),
        (&[(0, Deleted), (100, Deleted), (200, Deleted)], None),
        (&[(0, Deleted), (100, Silent)], None),
        (&[(0, Answered), (10, SilentTwice)], Some(1400)),
        // The client cannot reach it.
        (&[(0, SilentTwice), (100, Answered)], None),
        (&[(0, Silent), (10, Answered), (500, Silent)], None),
        (&[(0, Answered), (10, Answered)], None),
    ] {
        let mut play = Play::new();
        let verdicts = play.run(connections, 4000);
        match (ejected_by, &verdicts[..]) {
            (None, []) => {}
            (Some(by), [(at, 10)]) if *at <= by => {}
            _ => panic!("{connections:?}: {verdicts:?}"),
        }
        assert_eq!(play.is_ejected(), ejected_by.is_some());
    }
}

#[test]
fn an_endpoint_is_tried_again_after_a_while_and_ejected_for_longer_if_it_fails_still() {
    let mut play = Play::new();
    assert_eq!(play.run(&[(0, SilentTwice)], 5000).len(), 1);
    assert!(play.is_ejected());
    assert_eq!(play.run(&[], 12_000), []);
    assert!(!play.is_ejected(), "it is tried");
    let again = play.run(&[(12_000, Silent)], 14_000);
    assert!(matches!(again[..], [(_, 20)]), "{again:?}");
    assert_eq!(play.run(&[], 34_000), []);
    assert!(!play.is_ejected());
    // An answer ends the ejection.
    assert_eq!(
        play.run(&[(34_000, Answered), (34_500, Silent)], 37_000),
        []
    );
    assert_eq!(play.run(&[(37_000, Silent)], 37_100), []);
    let again = play.run(&[(37_200, Silent)], 40_000);
    assert!(matches!(again[..], [(_, 10)]), "{again:?}");
}

#[test]
fn few_connections_are_looked_up_however_many_begin() {
    let mut play = Play::new();
    // In turn of two clients.
    let of = |at| if at % 2 == 0 { Silent } else { KeptFrom };
    let many: Vec<_> = (0..1000).map(|at| (at / 10, of(at))).collect();
    play.run(&many, 100);
    assert_eq!(play.evidence.first.len(), OF_ENDPOINT);
    let verdicts = play.run(&[], 5000);
    assert_eq!(verdicts.len(), 1);
    assert_eq!(play.evidence.due(), Some(play.at(verdicts[0].0 + 10_000)));

    let one_client: Vec<_> = (0..1000).map(|at| (at / 10, Silent)).collect();
    let mut play = Play::new();
    play.run(&one_client, 100);
    assert_eq!(play.evidence.first.len(), OF_CLIENT);
}

#[test]
fn nothing_is_kept_of_endpoints_that_are_not_watched() {
    let mut play = Play::new();
    play.run(&[(0, Silent), (10, SilentTwice)], 3000);
    assert!(play.is_ejected());
    play.evidence.retain(|_| false);
    assert!(!play.is_ejected() && play.evidence.due().is_none());
    let last = play.evidence.endpoints.len() + play.evidence.second.len();
    assert_eq!(last, 0);
}

#[test]
fn a_client_that_is_kept_from_an_endpoint_does_not_hide_answers_to_others() {
    let burst = (0..40).map(|_| (0, KeptFrom));
    for answered in [1, 300] {
        let connections: Vec<_> = burst.clone().chain([(answered, Answered)]).collect();
        let mut play = Play::new();
        assert_eq!(
            play.run(&connections, 4000),
            [],
            "answered at {answered} ms"
        );
    }
    // Connections that are not answered keep coming.
    let many = (0..300).map(|at| (at * 10, KeptFrom));
    let mut connections: Vec<_> = many.chain([(500, Answered), (1200, Answered)]).collect();
    connections.extend((0..4).map(|n| (1800 + 600 * n, Answered)));
    connections.sort_by_key(|(at, _)| *at);
    let mut play = Play::new();
    assert_eq!(play.run(&connections, 3000), []);
}

#[test]
fn an_answer_ends_an_ejection_unless_the_connection_is_older_than_what_failed() {
    // It gets connections while it is ejected, because no other endpoint is left.
    let mut play = Play::new();
    assert_eq!(play.run(&[(0, SilentTwice)], 1500).len(), 1);
    assert!(play.is_ejected());
    assert_eq!(play.run(&[(2000, Answered)], 2300), []);
    assert!(!play.is_ejected());
    // After that, the shortest ejection comes first again.
    assert_eq!(play.run(&[(3000, SilentTwice)], 4500), [(4300, 10)]);
    assert!(play.is_ejected());
}

/// A client can begin connections that no endpoint answers, however many.
#[test]
fn clients_eject_no_endpoint_that_answers_the_node() {
    let mut play = Play::new();
    play.answers_node = true;
    let of = |at| if at % 2 == 0 { SilentTwice } else { KeptFrom };
    let many: Vec<_> = (0..100).map(|at| (100 * at, of(at))).collect();
    assert_eq!(play.run(&many, 15_000), []);
    // If it stops answering, it is ejected nevertheless.
    play.answers_node = false;
    let verdicts = play.run(&[(15_000, SilentTwice)], 17_000);
    assert!(matches!(verdicts[..], [(_, 10)]), "{verdicts:?}");
}

#[test]
fn connections_through_one_service_say_nothing_of_another() {
    let mut evidence = Evidence::default();
    let now = Instant::now();
    let endpoint: SocketAddr = ENDPOINT.parse().unwrap();
    for (service, port) in [("web:http", 1), ("web:http", 2), ("other:http", 3)] {
        let source = SocketAddr::from(([10, 0, 0, 1], port));
        let flow = flow_of(source);
        evidence.began(port_name(service).service.clone(), flow.clone(), now);
        evidence.refused(&flow);
    }
    let later = now + FIRST_LOOKUP;
    while let Some(asked) = evidence.next(later) {
        assert_eq!(evidence.found(asked, None, later), None);
    }
    assert_eq!(evidence.take_probes(later), [endpoint]);
    let verdicts = evidence.probed(endpoint, Some(false), later);
    let names: Vec<_> = verdicts
        .iter()
        .map(|verdict| &verdict.target.service)
        .collect();
    assert_eq!(names, [&web()]);
}

#[test]
fn no_namespace_keeps_others_from_ejection() {
    let mut evidence = Evidence::default();
    let now = Instant::now();
    let of = |namespace: &str| ServiceName {
        namespace: namespace.into(),
        name: "web".into(),
    };
    let begin = |evidence: &mut Evidence, namespace: &str, number: u16| {
        let [high, low] = number.to_be_bytes();
        let mut flow = flow_of(SocketAddr::from(([10, 0, high, low], 1)));
        flow.reply.source = SocketAddr::from(([10, 1, high, low], 80));
        evidence.began(of(namespace), flow.clone(), now);
        evidence.refused(&flow);
    };
    // Each connection goes to an endpoint of its own.
    (0..2000).for_each(|number| begin(&mut evidence, "greedy", number));
    assert_eq!(evidence.first.len(), OF_ALL / 2);
    (2000..2100).for_each(|number| begin(&mut evidence, "other", number));
    assert_eq!(evidence.first.len(), OF_ALL / 2 + OF_ALL / SHARE);

    let later = now + FIRST_LOOKUP;
    while let Some(asked) = evidence.next(later) {
        assert_eq!(evidence.found(asked, None, later), None);
    }
    let probed = evidence.take_probes(later);
    let of_other = SocketAddr::from(([10, 1, 7, 208], 80));
    assert_eq!(probed.len(), PROBES / 2 + PROBES / SHARE);
    assert!(probed.contains(&of_other), "the first one of the other");
}
