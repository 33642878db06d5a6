//! Endpoints that leave a Service finish what they began.

use std::{
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use serde_json::Value;

use super::node;
use crate::lab::{
    Capture, EndpointChoice, Lab, Service, Share, ask, eventually, run, say, tcp, tripod_binary,
};

#[test]
#[ignore = "for a guest kernel with IPVS"]
fn an_endpoint_that_leaves_keeps_its_connections() {
    run(Share::Alone, || {
        let service = Service::new("web", 1).with_external_ip();
        let (lab, at) = published(&service);
        // Full syncs end drains, too, and do not take that for another program's change.
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

#[test]
#[ignore = "for a guest kernel with IPVS"]
fn a_drain_timeout_of_zero_moves_clients_at_once() {
    run(Share::Alone, || {
        let service = Service::new("nfs", 1)
            .with_external_ip()
            .annotated("tripod.proxy/drain-timeout", "0s");
        let (lab, at) = published(&service);
        let _tripod = node::start(&lab, &[]);
        let mut open = connection_to(&lab, &service, "a");
        lab.publish(&service, &["b"]);
        await_reals(&lab, at, "a is gone", &["10.244.0.12:8080 1"]);
        assert!(say(&mut open, "name").is_err(), "it goes on");
    });
}

#[test]
#[ignore = "for a guest kernel with IPVS"]
fn a_drain_goes_on_after_a_restart_and_ends_when_a_flag_says_so() {
    run(Share::Alone, || {
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
        assert!(say(&mut open, "name").is_err(), "it goes on");
    });
}

/// Returns a laboratory in which backends `a` and `b` serve `service`, and where that is
/// called from outside.
fn published(service: &Service) -> (Lab, SocketAddr) {
    let mut lab = Lab::new(Capture::Redirect);
    lab.add_backends(&["a", "b"]);
    lab.publish_all(service);
    (lab, service.external()[0])
}

/// Waits until `tripod status` counts so many real servers of IPv4 that drain.
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
            match &status["syncs"][0]["draining"] {
                found if *found == expected => Ok(()),
                found => Err(format!("{found}")),
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

/// A connection that `backend` serves, from outside: what pods on one bridge
/// send each other takes the short way back, unless br_netfilter is there.
fn connection_to(lab: &Lab, service: &Service, backend: &str) -> TcpStream {
    eventually(backend, Duration::from_secs(10), || {
        let mut stream = tcp(&lab.outside, service.external()[0]).map_err(|e| e.to_string())?;
        match say(&mut stream, "name") {
            Ok(name) if name == backend => Ok(stream),
            other => Err(format!("{other:?}")),
        }
    })
}
