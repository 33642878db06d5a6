//! Many Services: each packet finds its own, whatever other Services there are.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use super::{comes_to_fail, comes_to_reach};
use crate::lab::{BACKEND_PORT, Host, Lab, ask, udp_ask};

on_each_capture!(each_of_many_services_is_reached_while_others_come_and_go);

/// Number of Services, each of both families, TCP and UDP.
const SERVICES: u16 = 400;
const BACKENDS: [&str; 3] = ["a", "b", "c"];

/// Neighbouring addresses in the service network, every eighth far from the others.
fn cluster_ips(number: u16) -> [IpAddr; 2] {
    let offset = match number % 8 {
        0 => number.wrapping_mul(7919),
        _ => number,
    };
    let [high, low] = offset.to_be_bytes();
    [
        Ipv4Addr::new(10, 96, high, low).into(),
        Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, u16::from(high), u16::from(low)).into(),
    ]
}

fn addresses(number: u16) -> [SocketAddr; 2] {
    cluster_ips(number).map(|ip| SocketAddr::new(ip, 80))
}

fn backend(number: u16) -> &'static str {
    BACKENDS[usize::from(number) % BACKENDS.len()]
}

/// A Service whose only endpoint follows from its number.
fn manifests(lab: &Lab, number: u16) -> Vec<Value> {
    let (name, ips) = (format!("many-{number}"), cluster_ips(number));
    let ports = |target: &str| -> Vec<Value> {
        let port = |protocol: &str| {
            let mut port = json!({"name": protocol.to_lowercase(), "protocol": protocol});
            port[target] = BACKEND_PORT.into();
            if target == "targetPort" {
                port["port"] = 80.into();
                port["nodePort"] = (30_000 + number).into();
            }
            port
        };
        ["TCP", "UDP"].map(port).to_vec()
    };
    let backends = lab.backends.iter();
    let mut endpoint = backends.filter(|one| one.name() == backend(number));
    let host = endpoint.next().expect("a backend").host();
    let slice = |(family, address): (&str, IpAddr)| {
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": format!("{name}-{}", family.to_lowercase()), "namespace": "default",
                "labels": {"kubernetes.io/service-name": name},
            },
            "addressType": family, "ports": ports("port"),
            "endpoints": [{"addresses": [address]}],
        })
    };
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "type": "NodePort", "clusterIP": ips[0], "clusterIPs": ips,
            "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "RequireDualStack",
            "ports": ports("targetPort"),
        },
    });
    let slices = ["IPv4", "IPv6"].into_iter().zip(host.addresses).map(slice);
    std::iter::once(service).chain(slices).collect()
}

fn publish(lab: &Lab, file: &str, numbers: impl Iterator<Item = u16>) {
    let items: Vec<Value> = numbers.flat_map(|number| manifests(lab, number)).collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    lab.write(file, &list.to_string());
}

/// Calls the cluster IPs of a Service and its node port.
fn call(lab: &Lab, number: u16) -> io::Result<()> {
    let node = lab
        .node
        .addresses
        .map(|ip| SocketAddr::new(ip, 30_000 + number));
    let calls: [(&Host, [SocketAddr; 2]); 3] = [
        (&lab.client, addresses(number)),
        (&lab.node, addresses(number)),
        (&lab.outside, node),
    ];
    for (from, to) in calls
        .into_iter()
        .flat_map(|(from, to)| to.map(|to| (from, to)))
    {
        for answer in [ask(from, to)?, udp_ask(from, to)?] {
            assert_eq!(answer, backend(number), "{number} at {to}");
        }
    }
    Ok(())
}

fn each_of_many_services_is_reached_while_others_come_and_go(lab: &mut Lab) {
    lab.three_backends();
    publish(lab, "many.json", 0..SERVICES);
    let tripod = lab.tripod();
    for number in [0, 1, 8, SERVICES / 2, SERVICES / 2 + 1, SERVICES - 1] {
        call(lab, number).unwrap_or_else(|error| panic!("{number}: {error}"));
    }
    for unused in [SERVICES + 1, u16::MAX] {
        for to in addresses(unused) {
            comes_to_fail("no Service", || ask(&lab.client, to));
        }
    }

    // Services that stay never fail while their neighbours come and go.
    let (ended, stays) = (AtomicBool::new(false), SERVICES / 2);
    std::thread::scope(|scope| {
        let caller = scope.spawn(|| {
            let mut calls = 0;
            while !ended.load(Ordering::Relaxed) {
                for to in addresses(stays) {
                    let answer = ask(&lab.client, to);
                    let answer = answer.unwrap_or_else(|error| panic!("call {calls}: {error}"));
                    assert_eq!(answer, backend(stays));
                }
                calls += 1;
            }
            calls
        });
        let came = SERVICES + 1..SERVICES + 40;
        for _ in 0..3 {
            publish(lab, "more.json", came.clone());
            for to in addresses(came.start) {
                let reached = || ask(&lab.client, to);
                comes_to_reach("a Service more", &[backend(came.start)], reached);
            }
            publish(lab, "more.json", 0..0);
            for to in addresses(came.start) {
                comes_to_fail("a Service that went", || ask(&lab.client, to));
            }
        }
        ended.store(true, Ordering::Relaxed);
        assert!(caller.join().expect("the caller") > 0);
    });
    call(lab, stays).expect("it is there");

    // First few of many are left, and then all are back.
    publish(lab, "many.json", 3..5);
    for to in addresses(stays) {
        comes_to_fail("a Service that went", || ask(&lab.client, to));
    }
    call(lab, 4).expect("it stayed");
    publish(lab, "many.json", 0..SERVICES);
    for to in addresses(stays) {
        comes_to_reach("it is back", &[backend(stays)], || ask(&lab.client, to));
    }
    drop(tripod);
    let _tripod = lab.tripod();
    for number in [0, 1, SERVICES - 1] {
        call(lab, number).unwrap_or_else(|error| panic!("{number}, taken over: {error}"));
    }
}
