//! Reports for packets and changes in a given order.

use net::Protocol;
use netlink::conntrack::flows::{State, Tuple};

use super::*;

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

const CLIENT: &str = "10.244.0.9:40122";
const TO: &str = "10.96.0.1:80";
const ENDPOINT: &str = "10.244.0.11:8080";

fn stories(protocol: Protocol, proxy: Proxy) -> Stories {
    let target = TraceTarget {
        to: at(TO),
        protocol,
        from: None,
    };
    Stories::new(target, proxy)
}

fn headers(source: &str, destination: &str) -> Option<Headers> {
    Some(Headers {
        protocol: 6,
        source: at(source),
        destination: at(destination),
        acknowledges: None,
    })
}

fn step(packet: Option<Headers>, rule: &str, end: Option<Outcome>) -> Step {
    let words = report::Step {
        at: rule.to_owned(),
        verdict: "jump a".to_owned(),
    };
    Step {
        id: 7,
        packet,
        input: Some("cni0".to_owned()),
        words: Some((words, end)),
    }
}

fn event(change: Change, from: &str, to: &str, served: &str) -> Event {
    let flow = Flow {
        protocol: 6,
        original: Tuple {
            source: at(from),
            destination: at(to),
        },
        reply: Tuple {
            source: at(served),
            destination: at(from),
        },
        state: State::default(),
        tuple: Vec::new(),
        id: None,
        zone: None,
    };
    Event { change, flow }
}

fn connection(report: Option<Report>) -> report::Connection {
    match report {
        Some(Report::Connection(connection)) => connection,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_packet_is_followed_to_its_endpoint_and_its_connection_to_the_end() {
    let mut stories = stories(Protocol::Tcp, Proxy::default());
    let now = Instant::now();
    assert_eq!(
        stories.step(step(headers(CLIENT, TO), "one", None), now),
        None
    );
    assert_eq!(stories.step(step(None, "two", None), now), None);
    let of_another = Step {
        id: 8,
        ..step(headers("10.244.0.9:1", "10.96.0.2:80"), "other", None)
    };
    assert_eq!(stories.step(of_another, now), None);
    let mut change = |change| stories.change(&event(change, CLIENT, TO, ENDPOINT), now, |_| None);
    let found = connection(change(Change::New));
    assert_eq!(found.client, CLIENT);
    assert_eq!(found.input.as_deref(), Some("cni0"));
    let rules: Vec<_> = found.steps.iter().map(|step| &*step.at).collect();
    assert_eq!(rules, ["one", "two"]);
    assert_eq!(found.outcome, Outcome::Forwarded);
    assert_eq!(found.endpoint.as_deref(), Some(ENDPOINT));
    for (kind, ended) in [(Change::Update, false), (Change::Destroy, true)] {
        match change(kind) {
            Some(Report::Change(found)) => assert_eq!(found.ended, ended),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(change(Change::Update), None, "it is known no more");
    assert_eq!(stories.overdue(None), []);
}

#[test]
fn what_is_refused_is_reported_once() {
    for outcome in [Outcome::Refused, Outcome::Dropped] {
        let mut stories = stories(Protocol::Tcp, Proxy::default());
        let now = Instant::now();
        let refused = || step(headers(CLIENT, TO), "rule", Some(outcome));
        let found = connection(stories.step(refused(), now));
        assert_eq!(
            (found.outcome, found.by.as_deref()),
            (outcome, Some("rule"))
        );
        assert_eq!(stories.step(refused(), now), None, "sent once more");
        assert_eq!(stories.overdue(None), []);
    }
}

#[test]
fn where_nothing_is_said_of_the_end_conntrack_may_know() {
    let held = event(Change::New, CLIENT, TO, ENDPOINT).flow;
    let direct = event(Change::New, CLIENT, TO, TO).flow;
    for (held, real, outcome, endpoint) in [
        (None, None, Outcome::Unknown, None),
        (
            Some(&held),
            None,
            Outcome::ForwardedAsBefore,
            Some(ENDPOINT),
        ),
        (Some(&direct), None, Outcome::NotTranslated, None),
        (
            Some(&direct),
            Some(ENDPOINT),
            Outcome::ForwardedAsBefore,
            Some(ENDPOINT),
        ),
    ] {
        let mut stories = stories(Protocol::Tcp, Proxy::default());
        let now = Instant::now();
        stories.step(step(headers(CLIENT, TO), "one", None), now);
        assert_eq!(stories.overdue(Some(now)), [], "it may still go on");
        assert_eq!(stories.overdue(Some(now + ENDED)), [at(CLIENT)]);
        let found = connection(Some(stories.end(at(CLIENT), held, |_| real.map(at))));
        assert_eq!(found.outcome, outcome);
        assert_eq!(found.endpoint.as_deref(), endpoint);
    }
}

fn relaying(serves: bool) -> Stories {
    let proxy = Proxy {
        relays: true,
        serves,
        endpoints: vec![at(ENDPOINT)],
        own: vec!["10.244.0.1".parse().unwrap()],
    };
    stories(Protocol::Tcp, proxy)
}

const LISTENER: &str = "192.0.2.10:40000";

fn answered(change: Change, served: &str) -> Event {
    let mut event = event(change, CLIENT, TO, served);
    // `IPS_SEEN_REPLY`
    event.flow.state.status = 1 << 1;
    event
}

#[test]
fn what_the_proxy_relays_is_not_taken_for_an_endpoint() {
    let mut stories = relaying(true);
    let now = Instant::now();
    let new = event(Change::New, CLIENT, TO, LISTENER);
    assert_eq!(stories.change(&new, now, |_| None), None);
    let found = connection(stories.change(&answered(Change::Update, LISTENER), now, |_| None));
    assert_eq!((found.outcome, found.endpoint), (Outcome::Relayed, None));
    let own = "10.244.0.1:50000";
    let dials = event(Change::New, own, ENDPOINT, ENDPOINT);
    match stories.change(&dials, now, |_| None) {
        Some(Report::Dialed(dialed)) => assert_eq!(dialed.endpoint, ENDPOINT),
        other => panic!("{other:?}"),
    }
    let other = event(Change::New, CLIENT, ENDPOINT, ENDPOINT);
    let found = stories.change(&other, now, |_| None);
    assert_eq!(found, None, "a pod calls a pod");
}

/// Source ranges drop packets in the socket, which neither nf_tables nor conntrack sees.
#[test]
fn what_comes_to_the_proxy_is_relayed_where_it_is_answered() {
    let now = Instant::now();
    for (serves, served, change, outcome, by) in [
        (
            true,
            TO,
            Some(answered(Change::Update, TO)),
            Outcome::Relayed,
            None,
        ),
        (
            false,
            LISTENER,
            Some(event(Change::Destroy, CLIENT, TO, LISTENER)),
            Outcome::Refused,
            Some("a reset"),
        ),
        (false, LISTENER, None, Outcome::Unanswered, None),
        (false, TO, None, Outcome::NotTranslated, None),
    ] {
        let mut stories = relaying(serves);
        stories.step(step(headers(CLIENT, TO), "one", None), now);
        let new = event(Change::New, CLIENT, TO, served);
        let at_once = stories.change(&new, now, |_| None);
        let found = match (at_once, change) {
            (None, Some(change)) => stories.change(&change, now, |_| None),
            (None, None) => {
                assert_eq!(stories.overdue(Some(now)), [], "it may still be answered");
                assert_eq!(stories.overdue(Some(now + ENDED)), [at(CLIENT)]);
                Some(stories.end(at(CLIENT), Some(&new.flow), |_| None))
            }
            (at_once, _) => at_once,
        };
        let found = connection(found);
        assert_eq!((found.outcome, found.by.as_deref()), (outcome, by));
        assert_eq!(found.steps.len(), 1, "{outcome:?}");
        assert_eq!(stories.overdue(None), []);
    }
}
