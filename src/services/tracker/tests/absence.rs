//! Reasons why a ServicePort has no endpoint in use.

use super::*;
use crate::services::Reach;

/// Explains why no endpoint of the Service's ServicePort of `family` is in use.
fn why(selector: &str, family: &str, slices: &[(&str, &str)], reach: Reach) -> Option<String> {
    let mut tracker = Tracker::new("here");
    let ip = match family {
        "IPv4" => "10.0.0.1",
        _ => "fd00::1",
    };
    let service: wire::Service = yaml(&format!(
        "{{metadata: {{name: a}}, spec: {{clusterIP: '{ip}', {selector} \
         ports: [{{name: http, port: 80}}]}}}}"
    ));
    let service = Service::reduce(&service, &mut Names::default()).expect("good Service");
    let slices = slices.iter().zip(["s1", "s2"]);
    let slices = slices.map(|((port, endpoints), name)| slice(name, "a", port, endpoints));
    let service = Event::Changed(Object::Service(Arc::new(service.object)));
    tracker.apply(std::iter::once(service).chain(slices));
    let port = tracker.map().iter().next().expect("a ServicePort");
    port.endpoints.none_in_use(reach)
}

#[test]
fn a_service_port_without_endpoints_in_use_says_why() {
    let (http, here) = ("name: http, port: 8080", "nodeName: here");
    let ready = format!("{{addresses: [10.1.0.1], {here}}}");
    let one = |number: u8, conditions: &str| {
        format!("{{addresses: [10.1.0.{number}], conditions: {{{conditions}}}, {here}}}")
    };
    let unready = one(1, "ready: false, serving: false");
    let ended = one(2, "ready: false, serving: false, terminating: true");
    let of_two = format!("{unready}, {ended}, {}", one(3, "ready: false"));
    for (selector, family, slices, expected) in [
        (
            "selector: {app: a},",
            "IPv4",
            &[][..],
            "though it has a selector",
        ),
        (
            "",
            "IPv4",
            &[],
            "no selector for which one would be written",
        ),
        ("selector: {},", "IPv4", &[], "no selector for which one"),
        (
            "selector: {app: a},",
            "IPv4",
            &[(http, "")],
            "its selector matches no pod",
        ),
        ("", "IPv4", &[(http, "")], "no selector by which pods"),
        (
            "",
            "IPv6",
            &[(http, &*ready)],
            "no endpoint is IPv6: its only one is IPv4",
        ),
        (
            "",
            "IPv6",
            &[(http, &*of_two)],
            "no endpoint is IPv6: all 3 are IPv4",
        ),
        (
            "",
            "IPv4",
            &[
                ("name: web, port: 80", &*ready),
                ("port: 81, protocol: UDP", &*ready),
            ],
            "none of its EndpointSlices has TCP port \"http\"; they have TCP port \"web\", an \
             unnamed UDP port",
        ),
        ("", "IPv4", &[(http, &*unready)], "1 not ready"),
        (
            "",
            "IPv4",
            &[(http, &*of_two)],
            "2 not ready; 1 terminating",
        ),
        (
            "",
            "IPv4",
            &[(http, "{addresses: [127.0.0.1]}")],
            "1 ignored: an endpoint cannot have a loopback",
        ),
    ] {
        let found = why(selector, family, slices, Reach::Any).expect("none is in use");
        assert!(
            found.contains(expected),
            "{slices:?}: {found}, not {expected}"
        );
    }
    let elsewhere = "{addresses: [10.1.0.1], nodeName: there}";
    let found = |reach| why("", "IPv4", &[(http, elsewhere)], reach);
    assert_eq!(found(Reach::Any), None);
    let expected = "1 on another node, the traffic policy is Local";
    assert_eq!(found(Reach::Local).as_deref(), Some(expected));
    assert_eq!(why("", "IPv4", &[(http, &ready)], Reach::Local), None);
}

#[test]
fn a_slice_without_ports_is_named_as_such() {
    let mut tracker = Tracker::new("here");
    let no_ports: wire::EndpointSlice = yaml(
        "{metadata: {name: s, labels: {kubernetes.io/service-name: a}}, addressType: IPv4, \
         endpoints: [{addresses: [10.1.0.1]}]}",
    );
    let no_ports = EndpointSlice::reduce(&no_ports, Loopback::Refused, &mut Names::default())
        .expect("good slice");
    tracker.apply([
        service("a", "ports: [{port: 80}]"),
        Event::Changed(Object::EndpointSlice(Arc::new(no_ports.object))),
    ]);
    let port = tracker.map().iter().next().expect("a ServicePort");
    let why = port.endpoints.none_in_use(Reach::Any).unwrap_or_default();
    assert!(
        why.contains("has an unnamed TCP port, nor any other (perhaps targetPort"),
        "{why}"
    );
}
