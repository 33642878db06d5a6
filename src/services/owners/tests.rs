use std::{collections::BTreeSet, sync::Arc};

use serde_json::json;

use crate::services::{
    Event, Names, Object, ObjectName, Service, Tracker, service_ports::service_name,
};

/// A Service of this name in namespace default, created in that year of the 21st century, or
/// without a time of creation.
fn service(name: &str, year: Option<u32>, spec: &str) -> Event {
    let created = year.map(|year| format!("20{year:02}-01-01T00:00:00Z"));
    let mut spec: serde_json::Value = serde_saphyr::from_str(spec).expect("yaml");
    let balanced = spec.as_object_mut().and_then(|spec| spec.remove("ingress"));
    let ingress: Vec<_> = balanced.iter().map(|ip| json!({"ip": ip})).collect();
    let object = json!({
        "metadata": {"name": name, "creationTimestamp": created},
        "spec": spec,
        "status": {"loadBalancer": {"ingress": ingress}},
    });
    let object = serde_json::from_value(object).expect("a Service");
    let reduced = Service::reduce(&object, &mut Names::default()).expect("good Service");
    assert_eq!(reduced.warnings, []);
    Event::Changed(Object::Service(Arc::new(reduced.object)))
}

/// Returns all conflicts, each after the name of the Service that does not get the address.
fn conflicts(tracker: &Tracker) -> BTreeSet<String> {
    let ports = tracker.map().iter();
    ports
        .flat_map(|port| {
            let name = port.name.service.name.clone();
            port.conflicts.iter().map(move |lost| {
                let ip = lost.ip.map_or("*".to_owned(), |ip| ip.to_string());
                format!(
                    "{name}: {} {ip} {} is the {} of {}",
                    lost.kind, lost.port, lost.owner_kind, lost.owner.service.name
                )
            })
        })
        .collect()
}

/// A description of the case; the Services `a` and `b`, each with its year and spec; the conflicts.
type Case = (
    &'static str,
    [(Option<u32>, String); 2],
    &'static [&'static str],
);

const A: &str = "{clusterIP: 10.0.0.1, ports: [{port: 80}]}";

/// Builds the spec of `b` with further fields.
fn b(more: &str) -> String {
    format!("{{clusterIP: 10.0.0.2, ports: [{{port: 80}}]{more}}}")
}

fn external(ip: &str, spec: &str) -> String {
    let spec = spec.strip_suffix('}').expect("a map");
    format!("{spec}, externalIPs: [{ip}]}}")
}

fn node_port(ip: &str, port: u16) -> String {
    format!("{{type: NodePort, clusterIP: {ip}, ports: [{{port: 80, nodePort: {port}}}]}}")
}

/// Builds the spec of a Service with an external IP that the node also has.
fn at_node(port: u16) -> String {
    format!(
        "{{clusterIP: 10.0.0.2, ports: [{{port: {port}}}], externalIPs: [192.0.2.1, 192.0.2.2]}}"
    )
}

/// Checks the conflicts of each case on a node with the address 192.0.2.1, in both orders of the
/// Services.
fn check<const N: usize>(cases: [Case; N]) {
    for (what, services, expected) in cases {
        let events: Vec<Event> = services
            .iter()
            .zip(["a", "b"])
            .map(|((year, spec), name)| service(name, *year, spec))
            .collect();
        let expected: BTreeSet<String> = expected.iter().map(ToString::to_string).collect();
        for order in [[0, 1], [1, 0]] {
            let mut tracker = Tracker::new("here");
            tracker.set_node_addresses([[192, 0, 2, 1].into()].into());
            for at in order {
                tracker.apply([events[at].clone()]);
            }
            assert_eq!(conflicts(&tracker), expected, "{what}, {order:?}");
        }
    }
}

/// A cluster IP belongs to its Service, even if others name it.
#[test]
fn cluster_ips_go_first() {
    let (old, new) = (Some(20), Some(24));
    check([
        ("nothing in common", [(new, A.into()), (old, b(""))], &[]),
        (
            "a cluster IP goes before an older external IP",
            [(new, A.into()), (old, b(", externalIPs: [10.0.0.1]"))],
            &["b: external IP 10.0.0.1 80 is the cluster IP of a"],
        ),
        (
            "and before a load-balancer IP",
            [
                (new, A.into()),
                (old, b(", type: LoadBalancer, ingress: 10.0.0.1")),
            ],
            &["b: load-balancer IP 10.0.0.1 80 is the cluster IP of a"],
        ),
        (
            "another port of the address is free",
            [
                (new, A.into()),
                (
                    old,
                    "{clusterIP: 10.0.0.2, ports: [{port: 443}], externalIPs: [10.0.0.1]}".into(),
                ),
            ],
            &[],
        ),
        (
            "and so is another protocol",
            [
                (new, A.into()),
                (
                    old,
                    "{clusterIP: 10.0.0.2, ports: [{port: 80, protocol: UDP}], externalIPs: [10.0.0.1]}"
                        .into(),
                ),
            ],
            &[],
        ),
        (
            "a cluster IP twice",
            [
                (new, A.into()),
                (old, "{clusterIP: 10.0.0.1, ports: [{port: 80}, {port: 81, name: b}]}".into()),
            ],
            &["a: cluster IP 10.0.0.1 80 is the cluster IP of b"],
        ),
    ]);
}

/// External and load-balancer IPs belong to the oldest Service that names them.
#[test]
fn external_and_load_balancer_ips_are_the_oldest_services() {
    let (old, new) = (Some(20), Some(24));
    check([
        (
            "the older of two external IPs",
            [
                (new, external("192.0.2.9", A)),
                (old, b(", externalIPs: [192.0.2.9]")),
            ],
            &["a: external IP 192.0.2.9 80 is the external IP of b"],
        ),
        (
            "a load-balancer IP goes before an older external IP",
            [
                (old, external("192.0.2.9", A)),
                (new, b(", type: LoadBalancer, ingress: 192.0.2.9")),
            ],
            &["a: external IP 192.0.2.9 80 is the load-balancer IP of b"],
        ),
        (
            "also where its own Service has it as an external IP, too",
            [
                (old, external("192.0.2.9", A)),
                (
                    new,
                    b(", type: LoadBalancer, externalIPs: [192.0.2.9], ingress: 192.0.2.9"),
                ),
            ],
            &["a: external IP 192.0.2.9 80 is the load-balancer IP of b"],
        ),
        (
            "the older of two load-balancer IPs",
            [
                (
                    new,
                    "{clusterIP: 10.0.0.1, ports: [{port: 80}], type: LoadBalancer, \
                     ingress: 192.0.2.9}"
                        .into(),
                ),
                (old, b(", type: LoadBalancer, ingress: 192.0.2.9")),
            ],
            &["a: load-balancer IP 192.0.2.9 80 is the load-balancer IP of b"],
        ),
        (
            "of the same age, the first by name",
            [
                (old, external("192.0.2.9", A)),
                (old, b(", externalIPs: [192.0.2.9]")),
            ],
            &["b: external IP 192.0.2.9 80 is the external IP of a"],
        ),
        (
            "without a time of creation, the newest",
            [
                (None, external("192.0.2.9", A)),
                (new, b(", externalIPs: [192.0.2.9]")),
            ],
            &["a: external IP 192.0.2.9 80 is the external IP of b"],
        ),
        (
            "an external IP that is a load-balancer IP of the same Service",
            [
                (new, A.into()),
                (
                    old,
                    b(", type: LoadBalancer, externalIPs: [192.0.2.9], ingress: 192.0.2.9"),
                ),
            ],
            &[],
        ),
    ]);
}

/// Node ports, and other addresses that the node has.
#[test]
fn node_ports_and_addresses_of_the_node() {
    let (old, new) = (Some(20), Some(24));
    check([
        (
            "a node port twice",
            [
                (new, node_port("10.0.0.1", 30080)),
                (old, node_port("10.0.0.2", 30080)),
            ],
            &["a: node port * 30080 is the node port of b"],
        ),
        (
            "an external IP of the node loses its port to an older node port",
            [(old, node_port("10.0.0.1", 30080)), (new, at_node(30080))],
            &["b: external IP 192.0.2.1 30080 is the node port of a"],
        ),
        (
            "and wins it from a newer one, there",
            [(new, node_port("10.0.0.1", 30080)), (old, at_node(30080))],
            &["a: node port 192.0.2.1 30080 is the external IP of b"],
        ),
        (
            "a load-balancer IP of the node wins it from an older node port, there",
            [
                (old, node_port("10.0.0.1", 30080)),
                (
                    new,
                    "{type: LoadBalancer, clusterIP: 10.0.0.2, ports: [{port: 30080}], \
                     ingress: 192.0.2.1}"
                        .into(),
                ),
            ],
            &["a: node port 192.0.2.1 30080 is the load-balancer IP of b"],
        ),
        (
            "a health check loses its port to a newer node port",
            [
                (
                    old,
                    "{type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: 30080, \
                     clusterIP: 10.0.0.2, ports: [{port: 80}]}"
                        .into(),
                ),
                (new, node_port("10.0.0.1", 30080)),
            ],
            &["a: health-check node port * 30080 is the node port of b"],
        ),
        (
            "an external IP of the node wins it from a health check, there",
            [
                (
                    old,
                    "{type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: 30080, \
                     clusterIP: 10.0.0.3, ports: [{port: 80}]}"
                        .into(),
                ),
                (new, at_node(30080)),
            ],
            &["a: health-check node port 192.0.2.1 30080 is the external IP of b"],
        ),
        (
            "a cluster IP of the node wins it from an older one",
            [
                (old, node_port("10.0.0.1", 30080)),
                (new, "{clusterIP: 192.0.2.1, ports: [{port: 30080}]}".into()),
            ],
            &["a: node port 192.0.2.1 30080 is the cluster IP of b"],
        ),
    ]);
}

/// The waiting Service is served at the moment when the owner is deleted, and not before: no client
/// is left without an answer in between.
#[test]
fn a_cluster_ip_goes_over_to_the_next_service() {
    let spec = "{clusterIP: 10.0.0.1, ports: [{port: 80}]}";
    let mut tracker = Tracker::new("here");
    let owners = |tracker: &Tracker| -> BTreeSet<String> {
        let owning = tracker
            .map()
            .iter()
            .filter(|port| port.cluster_ip.is_some());
        owning
            .map(|port| port.name.service.name.to_string())
            .collect()
    };
    tracker.apply([service("old", Some(20), spec)]);
    tracker.apply([service("new", Some(24), spec)]);
    assert_eq!(owners(&tracker), BTreeSet::from(["old".to_owned()]));
    let changes = tracker.apply([Event::Gone(ObjectName::Service(service_name("old")))]);
    assert_eq!(changes.ports.len(), 2, "{changes:?}");
    assert_eq!(owners(&tracker), BTreeSet::from(["new".to_owned()]));
    assert_eq!(conflicts(&tracker), BTreeSet::new());
}

#[test]
fn a_conflict_is_explained_in_full() {
    let mut tracker = Tracker::new("here");
    tracker.apply([
        service(
            "db",
            Some(24),
            "{clusterIP: 10.0.0.1, ports: [{port: 80, name: http}]}",
        ),
        service(
            "web",
            Some(20),
            "{clusterIP: 10.0.0.2, ports: [{port: 80}], externalIPs: [10.0.0.1]}",
        ),
    ]);
    let ports = tracker.map().iter();
    let conflicts: Vec<_> = ports.flat_map(|port| port.conflicts.iter()).collect();
    let explained: Vec<String> = conflicts.iter().map(ToString::to_string).collect();
    assert_eq!(
        explained,
        [
            "external IP 10.0.0.1:80 (TCP) is not served for this Service: Service default/db:http \
             has it as its cluster IP, and cluster IPs take precedence"
        ]
    );
}

/// Otherwise the lines about both would be the same.
#[test]
fn a_conflict_about_a_node_port_names_its_family() {
    let mut tracker = Tracker::new("here");
    let spec = |ip: &str| {
        format!(
            "{{clusterIPs: [10.0.0.{ip}, 'fd00::{ip}'], ports: [{{port: 80, nodePort: 30080}}], \
             type: NodePort}}"
        )
    };
    tracker.apply([
        service("a", Some(20), &spec("1")),
        service("b", Some(24), &spec("2")),
    ]);
    let conflicts = tracker.map().iter().flat_map(|port| &port.conflicts);
    let lines: BTreeSet<String> = conflicts.map(ToString::to_string).collect();
    assert_eq!(lines.len(), 2, "{lines:#?}");
}

/// Without times of creation, as in a folder of manifests.
#[test]
fn a_new_service_takes_no_address_from_a_served_one() {
    let common = [
        (node_port("10.0.0.1", 30080), node_port("10.0.0.2", 30080)),
        (external("192.0.2.9", A), b(", externalIPs: [192.0.2.9]")),
        (A.to_owned(), A.to_owned()),
        (
            "{clusterIP: 10.0.0.1, ports: [{port: 80}], type: LoadBalancer, ingress: 192.0.2.9}"
                .to_owned(),
            b(", type: LoadBalancer, ingress: 192.0.2.9"),
        ),
        (at_node(30080), node_port("10.0.0.1", 30080)),
    ];
    for (a, b) in common {
        let losers = |tracker: &Tracker| -> BTreeSet<String> {
            let lost = conflicts(tracker).into_iter();
            lost.map(|lost| lost[..1].to_owned()).collect()
        };
        let mut tracker = Tracker::new("here");
        tracker.set_node_addresses([[192, 0, 2, 1].into()].into());
        let expect = |tracker: &Tracker, loser: &str, when: &str| {
            assert_eq!(
                losers(tracker),
                BTreeSet::from([loser.to_owned()]),
                "{a} {when}"
            );
        };
        tracker.apply([service("b", None, &b)]);
        tracker.apply([service("a", None, &a)]);
        expect(&tracker, "a", "comes later");
        let annotated = b.replace("ports:", "sessionAffinity: ClientIP, ports:");
        tracker.apply([service("b", None, &annotated)]);
        expect(&tracker, "a", "when b changes");
        tracker.apply([service(
            "b",
            None,
            "{clusterIP: 10.0.0.7, ports: [{port: 80}]}",
        )]);
        assert_eq!(losers(&tracker), BTreeSet::new(), "{a}");
        tracker.apply([service("b", None, &b)]);
        expect(&tracker, "b", "when b names it again");
        let mut tracker = Tracker::new("here");
        tracker.set_node_addresses([[192, 0, 2, 1].into()].into());
        tracker.apply([service("b", None, &b), service("a", None, &a)]);
        expect(&tracker, "b", "at the same time");
        tracker.apply([service("b", Some(24), &b)]);
        expect(&tracker, "a", "without a time of creation");
    }
}

/// Returns a Service with ranges of ports, in the same words as [`service`].
fn with_ranges(name: &str, year: Option<u32>, ranges: &str, spec: &str) -> Event {
    let Event::Changed(Object::Service(of)) = service(name, year, spec) else {
        panic!("a Service");
    };
    let annotations = json!({"tripod.proxy/ports": ranges});
    let object = json!({
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"clusterIP": "10.0.0.9", "ports": []},
    });
    let object = serde_json::from_value(object).expect("a Service");
    let other = Service::reduce(&object, &mut Names::default()).expect("good Service");
    let mut of = Service::clone(&of);
    let mut serving = of.serving.expect("it is served");
    let ranges = other.object.serving.expect("it is served").ports;
    serving.ports = [&*serving.ports, &*ranges].concat().into();
    of.serving = Ok(serving);
    Event::Changed(Object::Service(Arc::new(of)))
}

/// Checks the conflicts of Services with ranges, in both orders.
fn check_ranges(what: &str, services: [Event; 3], expected: &[&str]) {
    let expected: BTreeSet<String> = expected.iter().map(ToString::to_string).collect();
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let mut tracker = Tracker::new("here");
        for at in order {
            tracker.apply([services[at].clone()]);
        }
        assert_eq!(conflicts(&tracker), expected, "{what}, {order:?}");
        // The addresses go to the next in turn.
        let mut fresh = Tracker::new("here");
        fresh.apply(services[1..].iter().cloned());
        tracker.apply([Event::Gone(ObjectName::Service(service_name("a")))]);
        assert_eq!(tracker.map(), fresh.map(), "{what}, {order:?}");
    }
}

#[test]
fn a_range_is_owned_as_a_whole() {
    let spec = |ip: &str, more: &str| format!("{{clusterIP: {ip}, ports: [{{port: 80}}]{more}}}");
    let shared = ", externalIPs: [192.0.2.1]";
    let at = |ip: &str| spec(ip, shared);
    let of = |year| Some(year);
    check_ranges(
        "ranges that do not overlap",
        [
            with_ranges("a", of(20), "100-200/TCP", &spec("10.0.0.1", "")),
            with_ranges("b", of(21), "100-200/UDP", &at("10.0.0.2")),
            with_ranges(
                "c",
                of(22),
                "100-200/SCTP,201-300/UDP",
                &spec("10.0.0.3", ""),
            ),
        ],
        &[],
    );
    // Whatever ports the others name.
    let [a, b, c] = [
        ("a", 20, "100-200/UDP"),
        ("b", 21, "300-400/TCP"),
        ("c", 22, "500-500/UDP"),
    ]
    .map(|(name, year, ranges)| {
        let last = match name {
            "a" => "10.0.0.1",
            "b" => "10.0.0.2",
            _ => "10.0.0.3",
        };
        let spec = format!("{{clusterIP: {last}, ports: []{shared}}}");
        with_ranges(name, Some(year), ranges, &spec)
    });
    check_ranges(
        "an older Service takes precedence",
        [a, b.clone(), c.clone()],
        &[
            "b: external IP 192.0.2.1 300 is the external IP of a",
            "c: external IP 192.0.2.1 500 is the external IP of a",
        ],
    );
    check_ranges(
        "also one without ranges, and one with another address of it",
        [service("a", of(20), &at("10.0.0.1")), b, c],
        &[
            "b: external IP 192.0.2.1 300 is the external IP of a",
            "c: external IP 192.0.2.1 500 is the external IP of a",
        ],
    );
    let younger = |name, spec: &str| with_ranges(name, of(21), "100-200/UDP", spec);
    check_ranges(
        "roles take precedence over age",
        [
            service("a", of(23), &spec("10.0.0.1", "")),
            younger(
                "b",
                "{clusterIP: 10.0.0.2, ports: [], externalIPs: [10.0.0.1, 192.0.2.7]}",
            ),
            service(
                "c",
                of(22),
                &spec("10.0.0.3", ", type: LoadBalancer, ingress: 192.0.2.7"),
            ),
        ],
        &[
            "b: external IP 10.0.0.1 100 is the cluster IP of a",
            "b: external IP 192.0.2.7 100 is the load-balancer IP of c",
        ],
    );
}

/// Services without a time of creation keep what they have.
#[test]
fn a_range_keeps_its_address() {
    let shared = ", externalIPs: [192.0.2.1]";
    let spec = |ip: &str| format!("{{clusterIP: {ip}, ports: [{{port: 80}}]{shared}}}");
    let range = |ports| with_ranges("b", None, ports, &spec("10.0.0.2"));
    let mut tracker = Tracker::new("here");
    tracker.apply([range("100-200/UDP")]);
    tracker.apply([with_ranges("a", None, "300-400/UDP", &spec("10.0.0.1"))]);
    let lost: BTreeSet<_> = [
        "a: external IP 192.0.2.1 300 is the external IP of b".to_owned(),
        "a: external IP 192.0.2.1 80 is the external IP of b".to_owned(),
    ]
    .into();
    assert_eq!(conflicts(&tracker), lost);
    tracker.apply([range("100-201/UDP")]);
    assert_eq!(conflicts(&tracker), lost, "when b changes");
}

#[test]
fn exact_ports_are_exceptions_within_ranges() {
    let spec = |ip: &str, more: &str| format!("{{clusterIP: {ip}, ports: [{{port: 80}}]{more}}}");
    let shared = ", externalIPs: [192.0.2.1]";
    let none = || service("z", Some(23), "{clusterIP: 10.0.0.9, ports: []}");
    check_ranges(
        "at an external IP, even if they are younger",
        [
            with_ranges(
                "a",
                Some(20),
                "50-100/TCP",
                "{clusterIP: 10.0.0.1, ports: [], externalIPs: [192.0.2.1]}",
            ),
            service("b", Some(21), &spec("10.0.0.2", shared)),
            none(),
        ],
        &[],
    );
    check_ranges(
        "but the range of a cluster IP is nobody else's",
        [
            with_ranges(
                "a",
                Some(22),
                "50-100/TCP",
                "{clusterIP: 10.0.0.1, ports: []}",
            ),
            service(
                "b",
                Some(21),
                &spec("10.0.0.2", ", externalIPs: [10.0.0.1]"),
            ),
            none(),
        ],
        &["b: external IP 10.0.0.1 80 is the cluster IP of a"],
    );
    check_ranges(
        "nor that of a load-balancer IP",
        [
            with_ranges(
                "a",
                Some(22),
                "50-100/TCP",
                "{type: LoadBalancer, clusterIP: 10.0.0.1, ports: [], ingress: 192.0.2.1}",
            ),
            service("b", Some(21), &spec("10.0.0.2", shared)),
            none(),
        ],
        &["b: external IP 192.0.2.1 80 is the load-balancer IP of a"],
    );
}
