//! Any sequence of events results in the same map as a fresh start.

use std::{collections::BTreeSet, num::NonZeroU16};

use proptest::prelude::*;
use testing::cases;

use super::*;
use crate::services::{
    Created, Hints, Identity, Port, Preferences, Serving, SliceEndpoint, SlicePort, TrafficPolicy,
    Trigger,
};

const NAMES: [&str; 3] = ["a", "b", "c"];
const ZONES: [&str; 3] = ["", "za", "zb"];

fn protocol(udp: u8) -> Protocol {
    if udp == 1 {
        Protocol::Udp
    } else {
        Protocol::Tcp
    }
}

fn address(v6: bool, host: u8) -> IpAddr {
    if v6 {
        format!("fd00:1::{host}").parse().expect("ip")
    } else {
        [10, 1, 0, host].into()
    }
}

fn policy(local: bool) -> TrafficPolicy {
    if local {
        TrafficPolicy::Local
    } else {
        TrafficPolicy::Cluster
    }
}

/// Ports of the spec, and perhaps a range.
fn any_ports() -> impl Strategy<Value = Box<[Port]>> {
    let port = (
        0..2_usize,
        0..2_u8,
        prop::sample::select(vec![1, 2, 30000]),
        prop::option::of(30000..30002_u16),
    );
    let range = (0..4_usize, 0..2_u8);
    (prop::collection::vec(port, 0..3), range).prop_map(|(ports, (range, udp))| {
        let mut seen = BTreeSet::new();
        let ports = ports
            .into_iter()
            .map(|(name, udp, port, node_port)| Port {
                name: ["", "p"][name].into(),
                protocol: protocol(udp),
                port,
                last_port: None,
                node_port,
            })
            .filter(|port| seen.insert((port.name.clone(), port.protocol)));
        let range = [(1, 1), (1, 2), (2, 40_000)].get(range);
        let range = range.map(|(first, last)| Port {
            name: format!("{first}-{last}").into(),
            protocol: protocol(udp),
            port: *first,
            last_port: NonZeroU16::new(*last),
            node_port: None,
        });
        ports.chain(range).collect()
    })
}

fn any_service() -> impl Strategy<Value = Event> {
    let ips = prop::sample::select(vec![
        vec![],
        vec!["10.0.0.1"],
        vec!["10.0.0.1", "fd00::1"],
        vec!["fd00::1", "10.0.0.2"],
    ]);
    let outside = prop::sample::subsequence(
        vec!["10.0.0.1", "192.0.2.1", "192.0.2.2", "2001:db8::1"],
        0..=4,
    );
    let name = (0..3_usize, 0..2_i64);
    let drain = prop::option::of(0..2_u64);
    (name, ips, any_ports(), outside, any::<[bool; 4]>(), drain).prop_map(
        |(
            (name, created),
            ips,
            ports,
            outside,
            [internal, external, affinity, headless],
            drain,
        )| {
            let parse = |ips: Vec<&str>| ips.iter().map(|ip| ip.parse().expect("ip")).collect();
            let outside: Vec<&str> = outside
                .into_iter()
                .filter(|ip| ips.iter().any(|own| own.contains(':') == ip.contains(':')))
                .collect();
            let timeout = std::time::Duration::from_secs(60);
            let serving = Serving {
                cluster_ips: parse(ips),
                ports,
                external_ips: parse(outside.clone()),
                load_balancer_ips: parse(outside),
                load_balancer_source_ranges: [].into(),
                session_affinity: affinity.then_some(timeout),
                internal_traffic_policy: policy(internal),
                external_traffic_policy: policy(external),
                health_check_node_port: None,
            };
            Event::Changed(Object::Service(Arc::new(Service {
                name: service_name(NAMES[name]),
                created: Created::at(created),
                serving: if headless {
                    Err(NotServed::Headless)
                } else {
                    Ok(serving)
                },
                selector: false,
                preferences: drain.map(|seconds| {
                    Arc::new(Preferences {
                        drain_timeout: Some(std::time::Duration::from_secs(seconds)),
                        ..Preferences::default()
                    })
                }),
            })))
        },
    )
}

fn any_slice() -> impl Strategy<Value = Event> {
    let endpoint = (
        0..3_u8,
        0..3_usize,
        any::<[bool; 3]>(),
        0..3_usize,
        any::<bool>(),
    );
    let endpoints = prop::collection::vec(endpoint, 0..4);
    let ports = prop::collection::vec((0..2_usize, 0..2_u8, 1..3_u16), 0..3);
    let weight = prop::option::of(0..2_u16);
    (
        0..3_usize,
        0..4_usize,
        any::<bool>(),
        ports,
        endpoints,
        weight,
    )
        .prop_map(|(name, of, v6, ports, endpoints, weight)| {
            let ports = ports.into_iter().map(|(name, udp, port)| SlicePort {
                name: ["", "p"][name].into(),
                protocol: protocol(udp),
                port,
            });
            let endpoints = endpoints.into_iter().map(
                |(host, node, [ready, serving, terminating], zone, node_hint)| SliceEndpoint {
                    address: address(v6, host),
                    identity: Identity::of(None, address(v6, host)),
                    node_name: (node > 0).then(|| ["", "here", "there"][node].into()),
                    ready,
                    serving,
                    terminating,
                    hints: (zone > 0).then(|| {
                        Arc::new(Hints {
                            zones: [ZONES[zone].into()].into(),
                            nodes: node_hint.then(|| "here".into()).into_iter().collect(),
                        })
                    }),
                },
            );
            Event::Changed(Object::EndpointSlice(Arc::new(EndpointSlice {
                name: SliceName {
                    namespace: "default".into(),
                    name: NAMES[name].into(),
                },
                owner: match NAMES.get(of) {
                    Some(service) => Owner::Service(service_name(service)),
                    None => Owner::Unlabelled,
                },
                for_another_proxy: false,
                ports: ports.collect(),
                endpoints: endpoints.collect(),
                forbidden: Box::default(),
                weight,
                trigger: Trigger::default(),
            })))
        })
}

fn any_node() -> impl Strategy<Value = Event> {
    let weight = prop::option::of(0..3_u16);
    (0..2_usize, 0..3_usize, weight).prop_map(|(name, zone, weight)| {
        Event::Changed(Object::Node(Arc::new(Node {
            name: ["here", "there"][name].into(),
            zone: (zone > 0).then(|| ZONES[zone].into()),
            pod_cidrs: [].into(),
            addresses: [].into(),
            deleting: false,
            to_be_deleted: false,
            weight,
        })))
    })
}

fn any_service_cidr() -> impl Strategy<Value = Event> {
    let networks = vec!["10.96.0.0/16", "10.96.0.0/12", "fd00:96::/112"];
    let networks = prop::sample::subsequence(networks, 0..=2);
    (prop::sample::select(vec!["one", "two"]), networks).prop_map(|(name, networks)| {
        Event::Changed(Object::ServiceCidr(Arc::new(ServiceCidr {
            name: name.into(),
            networks: networks
                .iter()
                .map(|net| net.parse().expect("net"))
                .collect(),
        })))
    })
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => any_service(),
        6 => any_slice(),
        2 => any_node(),
        1 => (0..3_usize).prop_map(|name| Event::Gone(ObjectName::Service(service_name(NAMES[name])))),
        2 => (0..3_usize).prop_map(|name| slice_gone(NAMES[name])),
        1 => prop::sample::select(vec!["here", "there"]).prop_map(|name| Event::Gone(ObjectName::Node(name.into()))),
        1 => any_service_cidr(),
        1 => prop::sample::select(vec!["one", "two"]).prop_map(|name| Event::Gone(ObjectName::ServiceCidr(name.into()))),
    ]
}

fn any_node_addresses() -> impl Strategy<Value = BTreeSet<IpAddr>> {
    let own = prop::sample::subsequence(vec!["192.0.2.1", "2001:db8::1", "10.0.0.1"], 0..=3);
    own.prop_map(|ips| ips.iter().map(|ip| ip.parse().expect("ip")).collect())
}

/// Checks that at most one ServicePort is served at each address, and that each conflict names that
/// ServicePort.
fn each_address_has_one_owner(tracker: &Tracker) -> Result<(), TestCaseError> {
    let mut owners = HashMap::new();
    let all = |port: &ServicePort| {
        let services = port.addresses().filter(|_| !port.is_range());
        let services = services.map(|ip| (ip, port.port));
        let node = tracker.ownership.node().iter().copied();
        let node = node.filter(|ip| Family::of(ip) == port.name.family);
        let node = node.filter(|ip| port.node_port_excluded().all(|lost| lost != *ip));
        let everywhere: IpAddr = match port.name.family {
            Family::V4 => [0; 4].into(),
            Family::V6 => [0; 16].into(),
        };
        let node_ports = port.node_port.into_iter();
        let node: Vec<IpAddr> = node.chain([everywhere]).collect();
        let node_ports =
            node_ports.flat_map(move |at| node.clone().into_iter().map(move |ip| (ip, at)));
        let all: BTreeSet<_> = services.chain(node_ports).collect();
        let protocol = port.name.protocol;
        all.into_iter().map(move |at| (at, protocol))
    };
    for port in tracker.map().iter() {
        for address in all(port) {
            let other = owners.insert(address, port.name.clone());
            prop_assert_eq!(other, None, "of {:?}", address);
        }
    }
    for port in tracker.map().iter() {
        for lost in &port.conflicts {
            if lost.last_port.is_some() {
                prop_assert_ne!(&lost.owner.service, &port.name.service, "{}", lost);
                continue;
            }
            let range = tracker.map().get(&lost.owner);
            let of_range = range.is_some_and(|range| {
                let mut addresses = range.addresses();
                range.is_range()
                    && range.ports().contains(&lost.port)
                    && addresses.any(|ip| Some(ip) == lost.ip)
            });
            if of_range {
                continue;
            }
            let everywhere = match port.name.family {
                Family::V4 => [0; 4].into(),
                Family::V6 => [0; 16].into(),
            };
            let at = (
                (lost.ip.unwrap_or(everywhere), lost.port),
                port.name.protocol,
            );
            prop_assert_eq!(owners.get(&at), Some(&lost.owner), "{}", lost);
        }
    }
    Ok(())
}

/// Checks that a range is served only by the Service that takes precedence at the address, and that no
/// Service without precedence by its role serves a port within it.
fn ranges_are_of_the_first_at_an_address(tracker: &Tracker) -> Result<(), TestCaseError> {
    let class = |port: &ServicePort, ip: IpAddr| match port.cluster_ip == Some(ip) {
        true => 0,
        false if port.load_balancer_ips.contains(&ip) => 1,
        false => 2,
    };
    let rank = |port: &ServicePort, ip| {
        let service = &port.name.service;
        let created = tracker.services[service].service.as_ref();
        let created = created.map(|service| service.created);
        (class(port, ip), created, service.clone())
    };
    for range in tracker.map().iter().filter(|port| port.is_range()) {
        for ip in range.addresses() {
            let mut others = tracker.map().iter();
            let first = others.all(|other| {
                let is_there = other.addresses().any(|one| one == ip);
                !is_there || rank(range, ip) <= rank(other, ip)
            });
            prop_assert!(first, "{:?} at {}", range.name, ip);
            let within = |other: &&Arc<ServicePort>| {
                other.name.protocol == range.name.protocol
                    && range.ports().contains(&other.port)
                    && class(other, ip) > class(range, ip)
                    && other.addresses().any(|one| one == ip)
                    && !tracker.ownership.node().contains(&ip)
            };
            let lower = tracker.map().iter().find(within);
            prop_assert_eq!(lower, None, "{:?} at {}", range.name, ip);
        }
    }
    Ok(())
}

/// Returns the objects that remain after a sequence of events, in the worst
/// order.
fn remaining(events: &[Event]) -> Vec<Event> {
    let mut remaining: Vec<Event> = Vec::new();
    for event in events {
        remaining.retain(|other| match (event, other) {
            (Event::Changed(Object::Service(new)), Event::Changed(Object::Service(old))) => {
                new.name != old.name
            }
            (Event::Gone(ObjectName::Service(gone)), Event::Changed(Object::Service(old))) => {
                *gone != old.name
            }
            (
                Event::Changed(Object::EndpointSlice(new)),
                Event::Changed(Object::EndpointSlice(old)),
            ) => new.name != old.name,
            (
                Event::Gone(ObjectName::EndpointSlice(gone)),
                Event::Changed(Object::EndpointSlice(old)),
            ) => *gone != old.name,
            (Event::Changed(Object::Node(new)), Event::Changed(Object::Node(old))) => {
                new.name != old.name
            }
            (
                Event::Changed(Object::ServiceCidr(new)),
                Event::Changed(Object::ServiceCidr(old)),
            ) => new.name != old.name,
            (
                Event::Gone(ObjectName::ServiceCidr(gone)),
                Event::Changed(Object::ServiceCidr(old)),
            ) => *gone != old.name,
            // The last known state of this node's own Node is kept.
            (Event::Gone(ObjectName::Node(gone)), Event::Changed(Object::Node(old))) => {
                *gone != old.name || &**gone == "here"
            }
            _ => true,
        });
        if matches!(
            event,
            Event::Changed(Object::Service(_))
                | Event::Changed(Object::EndpointSlice(_))
                | Event::Changed(Object::Node(_))
                | Event::Changed(Object::ServiceCidr(_))
        ) {
            remaining.push(event.clone());
        }
    }
    remaining.reverse();
    remaining
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(10_000)))]
    #[test]
    fn changes_lead_where_a_fresh_start_leads(
        batches in prop::collection::vec(
            (prop::collection::vec(any_event(), 0..6), any_node_addresses()),
            1..12,
        ),
    ) {
        let mut tracker = Tracker::new("here");
        let mut past = Vec::new();
        let mut last_node = BTreeSet::new();
        for (batch, node) in batches {
            let before = tracker.map().clone();
            past.extend(batch.iter().cloned());
            let mut changes = tracker.apply(batch);
            changes.merge(tracker.set_node_addresses(node.clone()));
            let mut fresh = Tracker::new("here");
            fresh.set_node_addresses(node.clone());
            fresh.apply(remaining(&past));
            prop_assert_eq!(tracker.map(), fresh.map());
            let has_node_ports = tracker.map().iter().any(|port| port.has_node_port());
            prop_assert_eq!(tracker.map().has_node_ports(), has_node_ports);

            let names = before.iter().chain(tracker.map().iter()).map(|port| &port.name);
            let differ = names.filter(|name| before.get(name) != tracker.map().get(name));
            let differ: HashSet<_> = differ.cloned().collect();
            // An address that was marked twice may be the same as before.
            prop_assert!(changes.ports.is_superset(&differ));
            if node == last_node {
                prop_assert_eq!(&changes.ports, &differ);
            }
            last_node = node;
            each_address_has_one_owner(&tracker)?;
            ranges_are_of_the_first_at_an_address(&tracker)?;
            prop_assert!(changes.stale.ports.keys().all(|name| changes.ports.contains(name)));
            // Unchanged values are the same ones, not equal ones.
            for port in tracker.map().iter().filter(|port| !changes.ports.contains(&port.name)) {
                prop_assert!(before.get(&port.name).is_some_and(|old| Arc::ptr_eq(old, port)));
            }
            // Objects that are gone leave nothing behind.
            prop_assert_eq!(tracker.services.len(), fresh.services.len());
            prop_assert_eq!(tracker.slices.len(), fresh.slices.len());
            prop_assert_eq!(&tracker.weights, &fresh.weights);
        }
    }
}
