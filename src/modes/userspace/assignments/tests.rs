//! Records of each version that another process may send.

use net::Protocol;
use prometheus::IntCounter;

use super::*;
use crate::{
    hold::recorded::{assert_same, conversation},
    modes::userspace::{plan::GroupKind, proxy::udp::Exchange},
    services::{NameParts, ServiceName},
};

/// The newest version of the protocol (`hold/message.rs`).
const VERSION: u16 = 1;
const PROTOCOL: &str = "assignments";

fn port(protocol: Protocol, family: Family, service: [&str; 2], port: &str) -> ServicePortName {
    let parts = NameParts {
        service: ServiceName {
            namespace: service[0].into(),
            name: service[1].into(),
        },
        port: port.into(),
        protocol,
        family,
    };
    parts.into()
}

/// The assignments in the record of the newest version.
fn recorded() -> [(Subject, Assignment); 2] {
    let web = port(Protocol::Tcp, Family::V4, ["default", "web"], "http");
    let dns = port(Protocol::Udp, Family::V6, ["kube-system", "dns"], "dns");
    let of = |client: &str, called: &str, endpoint: &str, seconds| Assignment {
        client: client.parse().expect("a client"),
        called: called.parse().expect("an address"),
        endpoint: endpoint.parse().expect("an endpoint"),
        last_used: Duration::from_secs(seconds),
    };
    [
        (
            of_affinity(&web),
            of("192.0.2.20:0", "0.0.0.0", "10.244.0.11:8080", 5),
        ),
        (
            of_flows(&GroupName::of(&dns, GroupKind::Internal)),
            of("[fd00:1::5]:40000", "fd00::10", "[fd00:2::1]:53", 7),
        ),
    ]
}

#[test]
fn what_is_written_is_what_was_recorded_of_this_version() {
    let messages = conversation(PROTOCOL, VERSION);
    assert_eq!(messages.len(), 2);
    for ((subject, assignment), message) in recorded().iter().zip(&messages) {
        let records = record::encode(subject, &[*assignment]);
        assert_same(&records.concat(), message, PROTOCOL);
    }
}

#[test]
fn records_of_each_version_are_read() {
    for version in 1..=VERSION {
        let messages = conversation(PROTOCOL, version);
        let read = messages.iter().map(|message| record::parse(&message.bytes));
        let expected = recorded().map(|(subject, one)| Some((subject, vec![one])));
        assert_eq!(read.collect::<Vec<_>>(), expected, "version {version}");
    }
}

#[test]
fn flows_are_written_and_read_as_they_were_recorded() {
    let [_, (subject, assignment)] = recorded();
    let record = FlowRecord {
        number: 7,
        listener: "[fd00::10]:53".parse().expect("an address"),
        exchange: Exchange {
            sent: 2,
            received: 1,
            converses: true,
        },
        subject,
        assignment,
    };
    let messages = conversation("flows", VERSION);
    let message = messages
        .iter()
        .find(|message| message.what == "flow")
        .expect("a flow");
    assert_same(&record.encode().expect("a short name"), message, "flows");
    assert_eq!(FlowRecord::parse(&message.bytes), Some(record));
    for length in 0..message.bytes.len() {
        assert_eq!(
            FlowRecord::parse(&message.bytes[..length]),
            None,
            "{length}"
        );
    }
    let twice = [
        &message.bytes[..],
        &message.bytes[message.bytes.len() - 63..],
    ]
    .concat();
    assert_eq!(FlowRecord::parse(&twice), None, "it has one client");
}

#[test]
fn what_no_service_has_taken_yet_goes_on_to_the_next_process() {
    let records = || recorded().map(|(subject, one)| record::encode(&subject, &[one]).concat());
    let assignments = Assignments::default();
    assert_eq!(assignments.inherit(records()), 2);
    let given: std::collections::HashSet<_> = assignments.records().into_iter().collect();
    assert_eq!(given, records().into());
}

#[tokio::test(start_paused = true)]
async fn a_timeout_that_changes_leaves_clients_where_they_are() {
    let assignments = Assignments::default();
    let web = port(Protocol::Tcp, Family::V4, ["default", "web"], "http");
    let limit = Arc::new(PinLimit::new(
        None,
        IntCounter::new("n", "n").expect("a counter"),
    ));
    let affinity = |seconds| assignments.affinity(&web, Duration::from_secs(seconds), &limit);
    let endpoint = ([10, 244, 0, 11], 8080).into();
    let client = [192, 0, 2, 20].into();
    let held = affinity(10);
    held.pin(client, |_| (Some(endpoint), ()));
    tokio::time::advance(Duration::from_secs(8)).await;
    let stays = |held: &Affinity| held.pin(client, |current| (None, current));
    for (seconds, expected) in [(20, Some(endpoint)), (5, None), (10, Some(endpoint))] {
        assert_eq!(stays(&affinity(seconds)), expected, "{seconds} s");
    }
    tokio::time::advance(Duration::from_secs(5)).await;
    assert_eq!(stays(&affinity(10)), None, "its last use counts");
}
