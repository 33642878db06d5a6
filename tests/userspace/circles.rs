//! Endpoints that are themselves addresses of Services: calls to them end, instead of returning to
//! Tripod until descriptors run out.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde_json::json;

use super::{SOON, comes_to_reach, reaches};
use crate::lab::{BACKEND_PORT, Capture, Lab, Service, ask, eventually, udp, udp_ask, udp_say};

on_each_capture!(
    a_service_whose_endpoint_is_itself_costs_nothing,
    two_services_in_a_circle_cost_nothing,
    an_endpoint_beside_the_circle_is_reached,
    an_endpoint_that_is_a_node_port_costs_nothing,
    a_service_whose_endpoint_is_its_external_ip_costs_nothing,
    who_has_the_address_of_an_endpoint_is_named,
    an_endpoint_that_is_an_external_ip_is_reached,
    a_udp_client_keeps_an_endpoint_that_becomes_an_external_ip,
);

/// Gives `service` the endpoints `to`, over TCP and UDP.
fn lead(lab: &Lab, service: &Service, to: &[SocketAddr]) {
    let slice = |number: usize, to: &SocketAddr| {
        let family = if to.is_ipv4() { "IPv4" } else { "IPv6" };
        let ports = ["TCP", "UDP"].map(|protocol| {
            json!({"name": protocol.to_lowercase(), "protocol": protocol, "port": to.port()})
        });
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": format!("{}-{number}", service.name), "namespace": "default",
                "labels": {"kubernetes.io/service-name": service.name},
            },
            "addressType": family,
            "ports": ports,
            "endpoints": [{"addresses": [to.ip()], "conditions": {"ready": true}}],
        })
    };
    let items: Vec<_> = to.iter().enumerate().map(|(n, to)| slice(n, to)).collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    lab.write(&format!("{}-slices.json", service.name), &list.to_string());
}

/// Checks that calls that cannot be answered leave neither connections nor UDP clients behind.
fn calls_end(lab: &Lab, to: &[SocketAddr]) {
    let tripod = lab.tripod();
    let (before, start) = (tripod.descriptors(), tripod.processor_time());
    for to in to {
        for (protocol, answer) in [
            ("TCP", ask(&lab.client, *to)),
            ("UDP", udp_ask(&lab.client, *to)),
        ] {
            assert!(answer.is_err(), "{protocol} {to}: {answer:?}");
            let service = format!("service=default/web:{}", protocol.to_lowercase());
            let endpoint = format!("endpoint={to}");
            tripod.logs_once(&["WARN", "this endpoint is not used", &service, &endpoint]);
        }
    }
    eventually("nothing is left of the calls", SOON, || {
        let left = tripod.descriptors().saturating_sub(before);
        if left <= 2 {
            Ok(())
        } else {
            Err(format!("{left} more descriptors"))
        }
    });
    let spent = tripod.processor_time() - start;
    assert!(spent < Duration::from_secs(2), "{spent:?}");
}

fn a_service_whose_endpoint_is_itself_costs_nothing(lab: &mut Lab) {
    let web = Service::new("web", 10);
    lab.publish(&web, &[]);
    lead(lab, &web, &web.cluster());
    calls_end(lab, &web.cluster());
}

fn two_services_in_a_circle_cost_nothing(lab: &mut Lab) {
    let (one, other) = (Service::new("one", 10), Service::new("other", 11));
    for (service, next) in [(&one, &other), (&other, &one)] {
        lab.publish(service, &[]);
        lead(lab, service, &next.cluster());
    }
    // Each call goes no further than the first of them.
    let tripod = lab.tripod();
    for to in one.cluster() {
        assert!(ask(&lab.client, to).is_err());
        assert!(udp_ask(&lab.client, to).is_err());
    }
    assert_eq!(tripod.logged(&["WARN", "service=default/other"]), 0);
}

fn an_endpoint_beside_the_circle_is_reached(lab: &mut Lab) {
    let web = Service::new("web", 10);
    lab.add_backends(&["a"]).publish_all(&web);
    lead(lab, &web, &web.cluster());
    let _tripod = lab.tripod();
    for to in web.cluster() {
        for _ in 0..10 {
            assert_eq!(ask(&lab.client, to).expect("an answer"), "a");
            assert_eq!(udp_ask(&lab.client, to).expect("an answer"), "a");
        }
    }
}

fn an_endpoint_that_is_a_node_port_costs_nothing(lab: &mut Lab) {
    let web = Service::new("web", 10).with_node_port();
    lab.publish(&web, &[]);
    let node: Vec<SocketAddr> = lab
        .node
        .addresses
        .iter()
        .map(|ip: &IpAddr| SocketAddr::new(*ip, web.node_port()))
        .collect();
    lead(lab, &web, &node);
    let tripod = lab.tripod();
    let before = tripod.descriptors();
    for (to, endpoint) in web.cluster().iter().zip(node) {
        assert!(ask(&lab.client, *to).is_err());
        let endpoint = format!("endpoint={endpoint}");
        tripod.logs_once(&[
            "WARN",
            "this endpoint is not used",
            "default/web:tcp",
            &endpoint,
        ]);
    }
    assert!(tripod.descriptors() < before + 10);
}

fn a_service_whose_endpoint_is_its_external_ip_costs_nothing(lab: &mut Lab) {
    let web = Service::new("web", 10).with_external_ip();
    lab.publish(&web, &[]);
    lead(lab, &web, &web.external());
    calls_end(lab, &web.external());
}

fn who_has_the_address_of_an_endpoint_is_named(lab: &mut Lab) {
    lab.add_backends(&["a"]);
    let (web, other) = (Service::new("web", 10), Service::new("other", 11));
    lab.publish(&web, &["a"]);
    lab.publish(&other, &["a"]);
    lead(lab, &web, &other.cluster());
    lab.publish(&web, &[]);
    let tripod = lab.tripod();
    for (to, endpoint) in web.cluster().into_iter().zip(other.cluster()) {
        assert!(ask(&lab.client, to).is_err());
        tripod.logs_once(&[
            "WARN",
            "service=default/web:tcp",
            &format!("endpoint={endpoint}"),
            "its address is one of Service default/other:tcp",
        ]);
    }
}

/// A Service that names the addresses of a pod as its external IPs.
fn claiming(pod: [IpAddr; 2]) -> Service {
    let port = |protocol: &str| json!({"name": protocol.to_lowercase(), "protocol": protocol, "port": BACKEND_PORT});
    Service::new("other", 11)
        .spec("externalIPs", json!(pod))
        .spec("ports", json!([port("TCP"), port("UDP")]))
}

fn a_udp_client_keeps_an_endpoint_that_becomes_an_external_ip(lab: &mut Lab) {
    lab.add_backends(&["a", "b"]);
    let web = Service::new("web", 10);
    lab.publish(&web, &["a"]);
    let pod = lab.backend("a").host().addresses;
    let _tripod = lab.tripod();
    let [_, to] = web.cluster();
    let socket = udp(&lab.client, to).expect("a socket");
    assert_eq!(udp_say(&socket, "hello").expect("an answer"), "a");
    lab.publish(&claiming(pod), &["b"]);
    let external = SocketAddr::new(pod[1], BACKEND_PORT);
    comes_to_reach("the external IP", &["b"], || ask(&lab.node, external));
    for _ in 0..3 {
        assert_eq!(udp_say(&socket, "hello again").expect("an answer"), "a");
    }
}

/// A Service may name the address of another Service's pod as its external IP.
fn an_endpoint_that_is_an_external_ip_is_reached(lab: &mut Lab) {
    lab.add_backends(&["a", "b"]);
    let web = Service::new("web", 10);
    lab.publish(&web, &["a"]);
    let pod = lab.backend("a").host().addresses;
    lab.publish(&claiming(pod), &["b"]);
    let tripod = lab.tripod();
    for (to, ip) in web.cluster().into_iter().zip(pod) {
        if lab.capture == Capture::Local && to.is_ipv4() {
            assert!(ask(&lab.client, to).is_err());
            tripod.logs_once(&["WARN", "this endpoint is not used", "default/other:tcp"]);
            continue;
        }
        let external = SocketAddr::new(ip, BACKEND_PORT);
        reaches("the external IP", &["b"], || ask(&lab.node, external));
        for _ in 0..10 {
            assert_eq!(ask(&lab.client, to).expect("an answer"), "a");
            assert_eq!(udp_ask(&lab.client, to).expect("an answer"), "a");
        }
    }
    if lab.capture == Capture::Redirect {
        assert_eq!(tripod.logged(&["WARN", "this endpoint is not used"]), 0);
    }
}
