//! Endpoints that take no new connections although they are ready: ejected ones, and those of
//! weight 0.

use super::*;

fn ejecting() -> Event {
    let service: wire::Service = yaml(
        "{metadata: {name: web, annotations: {tripod.proxy/eject: 'true'}}, \
          spec: {clusterIP: 10.0.0.1, ports: [{port: 80}]}}",
    );
    let reduced = Service::reduce(&service, &mut Names::default()).expect("good Service");
    Event::Changed(Object::Service(Arc::new(reduced.object)))
}

fn eject(endpoints: &[&str]) -> Event {
    let endpoints = endpoints.iter().map(|at| at.parse().expect("an address"));
    Event::Ejected(Ejected {
        service: service_name("web"),
        endpoints: endpoints.collect(),
    })
}

#[test]
fn an_endpoint_stays_ejected_while_its_service_goes_and_comes_back() {
    let two = "{addresses: [10.1.0.1]}, {addresses: [10.1.0.2]}";
    let mut tracker = Tracker::new("here");
    let slice = || slice("s", "web", "port: 80", two);
    tracker.apply([ejecting(), slice()]);
    let weights = |tracker: &Tracker| {
        let port = tracker.map().get(&port_name("web", Protocol::Tcp));
        port.map(|port| {
            port.endpoints
                .all
                .iter()
                .map(|e| e.weight)
                .collect::<Vec<_>>()
        })
    };
    assert_eq!(weights(&tracker), Some(vec![1, 1]));
    tracker.apply([eject(&["10.1.0.1:80"])]);
    assert_eq!(weights(&tracker), Some(vec![0, 1]));
    tracker.apply([
        Event::Gone(ObjectName::Service(service_name("web"))),
        slice_gone("s"),
    ]);
    assert_eq!(weights(&tracker), None);
    tracker.apply([ejecting(), slice()]);
    assert_eq!(weights(&tracker), Some(vec![0, 1]));
    tracker.apply([eject(&[])]);
    assert_eq!(weights(&tracker), Some(vec![1, 1]));
    assert!(tracker.ejected.is_empty(), "nothing is kept of it");
}

#[test]
fn a_udp_port_is_revived_when_its_endpoints_get_a_weight() {
    let dns = port_name("dns", Protocol::Udp);
    let udp = "port: 53, protocol: UDP";
    let mut tracker = Tracker::new("here");
    tracker.apply([
        node("there", Some("0")),
        service("dns", "ports: [{port: 53, protocol: UDP}]"),
        slice("s", "dns", udp, "{addresses: [10.1.0.1], nodeName: there}"),
    ]);
    let given = tracker.apply([node("there", Some("3"))]);
    assert_eq!(begun(&given), [dns]);
    assert_eq!(begun(&tracker.apply([node("there", Some("2"))])), []);
}
