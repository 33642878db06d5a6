//! Removed endpoints finish their open connections.

use std::{
    io,
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use serde_json::Value;

use super::node;
use crate::lab::{
    Capture, EndpointChoice, Lab, Service, ask, eventually, run, say, tcp, tcp_from, tripod_binary,
};

#[test]
#[ignore = "for a guest kernel with IPVS"]
fn an_endpoint_that_leaves_keeps_its_connections() {
    run(|| {
        let service = Service::new("web", 1).with_external_ip();
        let (lab, at) = published(&service);
        // Full syncs end drains as well, and do not mistake a drain for another program's change.
        let tripod = node::start(&lab, &["--ipvs-sync-period=1s"]);
        let reals = |what: &str, expected: &[&str]| await_reals(&lab, at, what, expected);
        let both = ["10.244.0.11:8080 1", "10.244.0.12:8080 1"];
        reals("both", &both);
        let mut open = connection_to(&lab, &service, "a");

        lab.publish(&service, &["b"]);
        reals("a drains", &["10.244.0.11:8080 0", "10.244.0.12:8080 1"]);
        await_draining(&lab, 1);
        for _ in 0..4 {
            assert_eq!(ask(&lab.outside, at).expect("an answer"), "b");
        }
        assert_eq!(say(&mut open, "name").expect("an answer"), "a");

        lab.publish_all(&service);
        reals("a is back", &both);
        lab.publish(&service, &["b"]);
        reals(
            "a drains again",
            &["10.244.0.11:8080 0", "10.244.0.12:8080 1"],
        );
        assert_eq!(say(&mut open, "name").expect("an answer"), "a");
        // A reset, because IPVS remembers orderly ends for two minutes.
        let socket = socket2::SockRef::from(&open);
        socket.set_linger(Some(Duration::ZERO)).expect("an option");
        drop(open);
        reals("a is gone", &["10.244.0.12:8080 1"]);
        await_draining(&lab, 0);
        let changed = tripod.logged(&["which another program had changed"]);
        assert_eq!(changed, 0, "{}", tripod.log());
    });
}

/// These schedulers have a table in which a real server of weight 0 keeps its place.
#[test]
#[ignore = "for a guest kernel with IPVS"]
fn new_clients_are_served_while_an_endpoint_drains_that_a_hash_leads_to() {
    run(|| {
        let services = ["sh", "mh", "dh"].map(|scheduler| {
            let number = scheduler.bytes().next().expect("a letter") - b'a' + 1;
            Service::new(scheduler, number)
                .with_external_ip()
                .annotated("tripod.proxy/scheduler", scheduler)
        });
        let mut lab = Lab::new(Capture::Redirect);
        lab.add_backends(&["a", "b"]);
        for number in 100..116 {
            let line = format!("addr add 192.0.2.{number}/32 dev eth0");
            lab.outside.ip(&[&line]);
        }
        services.iter().for_each(|service| lab.publish_all(service));
        let _tripod = node::start(&lab, &[]);
        for service in &services {
            let at = service.external()[0];
            let call = |number: u8| {
                let from = SocketAddr::from(([192, 0, 2, number], 0));
                let mut stream = tcp_from(&lab.outside, from, at)?;
                let name = say(&mut stream, "name")?;
                Ok::<_, io::Error>((name, stream))
            };
            let (leaves, _open) = call(100).expect("an answer");
            let stays = if leaves == "a" { "b" } else { "a" };
            lab.publish(service, &[stays]);
            let alone = format!("{stays} alone gets new connections");
            eventually(&alone, Duration::from_secs(10), || {
                let weighted = node::reals(&lab.node, at);
                match weighted.iter().filter(|real| !real.ends_with(" 0")).count() {
                    1 => Ok(()),
                    _ => Err(format!("{weighted:?}")),
                }
            });
            for number in 100..116 {
                let answered = call(number).map(|(name, _)| name);
                let answered = answered.unwrap_or_else(|error| panic!("{number} {at}: {error}"));
                assert_eq!(answered, stays, "{number} {at}");
            }
        }
    });
}

#[test]
#[ignore = "for a guest kernel with IPVS"]
fn a_drain_timeout_of_zero_moves_clients_at_once() {
    run(|| {
        let service = Service::new("nfs", 1)
            .with_external_ip()
            .annotated("tripod.proxy/drain-timeout", "0s");
        let (lab, at) = published(&service);
        let _tripod = node::start(&lab, &[]);
        let mut open = connection_to(&lab, &service, "a");
        lab.publish(&service, &["b"]);
        await_reals(&lab, at, "a is gone", &["10.244.0.12:8080 1"]);
        assert!(say(&mut open, "name").is_err(), "it continues");
    });
}

#[test]
#[ignore = "for a guest kernel with IPVS"]
fn a_drain_goes_on_after_a_restart_and_ends_when_a_flag_says_so() {
    run(|| {
        let service = Service::new("web", 1).with_external_ip();
        let (lab, at) = published(&service);
        let mut tripod = node::start(&lab, &[]);
        let mut open = connection_to(&lab, &service, "a");
        lab.publish_endpoints(
            &service,
            &[EndpointChoice::unready("a"), EndpointChoice::ready("b")],
        );
        let drains = ["10.244.0.11:8080 0", "10.244.0.12:8080 1"];
        let reals = |expected: &[&str]| await_reals(&lab, at, "real servers", expected);
        reals(&drains);
        tripod.terminate();
        let mut tripod = node::start(&lab, &[]);
        reals(&drains);
        assert_eq!(say(&mut open, "name").expect("an answer"), "a");
        tripod.terminate();
        let _tripod = node::start(&lab, &["--ipvs-drain-timeout=2s"]);
        reals(&drains[1..]);
        assert!(say(&mut open, "name").is_err(), "it continues");
    });
}

/// Returns a laboratory in which backends `a` and `b` serve `service`, and the address at
/// which that is called from outside.
fn published(service: &Service) -> (Lab, SocketAddr) {
    let mut lab = Lab::new(Capture::Redirect);
    lab.add_backends(&["a", "b"]);
    lab.publish_all(service);
    (lab, service.external()[0])
}

/// Waits until `tripod status` counts `expected` draining real servers of IPv4, and names that of
/// `a`, if any.
fn await_draining(lab: &Lab, expected: u64) {
    eventually(
        "the count of those that drain",
        Duration::from_secs(10),
        || {
            let mut command = lab.node.command(tripod_binary());
            let status = command.args(["status", "-o", "json"]).output();
            let status = status.expect("running tripod status").stdout;
            let status: Value =
                serde_json::from_slice(&status).map_err(|error| error.to_string())?;
            let draining = &status["draining"];
            let (total, first) = (&draining["total"], &draining["items"][0]["endpoint"]);
            let named = expected > 0;
            if status["syncs"][0]["draining"] == *total
                && *total == expected
                && (*first == "10.244.0.11:8080") == named
            {
                Ok(())
            } else {
                Err(format!("{draining:#}"))
            }
        },
    );
}

/// Waits until the virtual server at `at` has these real servers.
fn await_reals(lab: &Lab, at: SocketAddr, what: &str, expected: &[&str]) {
    eventually(what, Duration::from_secs(25), || {
        match node::reals(&lab.node, at) {
            found if found == expected => Ok(()),
            found => Err(format!("{found:?}")),
        }
    });
}

/// Returns a connection that `backend` serves, from outside: without br_netfilter,
/// packets between pods on one bridge would bypass the node on their way back.
fn connection_to(lab: &Lab, service: &Service, backend: &str) -> TcpStream {
    eventually(backend, Duration::from_secs(10), || {
        let mut stream = tcp(&lab.outside, service.external()[0]).map_err(|e| e.to_string())?;
        match say(&mut stream, "name") {
            Ok(name) if name == backend => Ok(stream),
            other => Err(format!("{other:?}")),
        }
    })
}
