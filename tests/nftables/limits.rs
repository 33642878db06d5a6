//! Limits of the connections of a Service and of each of its clients, which the kernel counts.

use std::{
    io::{Error, ErrorKind},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use serde_json::json;

use super::start_with;
use crate::lab::{
    EndpointChoice, Lab, Service, Tripod, ask, eventually, limited, own_address, remark_on_limits,
    say, tcp_from, udp_from, udp_say,
};

const OF_SERVICE: &str = "tripod.proxy/max-connections";
const OF_CLIENT: &str = "tripod.proxy/max-connections-per-client";

/// Time within which the kernel notices that a connection has ended, and Tripod a change.
const SOON: Duration = Duration::from_secs(20);

/// Opens a connection and gets an answer on it.
fn answered(lab: &Lab, from: SocketAddr, to: SocketAddr) -> std::io::Result<TcpStream> {
    let mut stream = tcp_from(&lab.client, from, to)?;
    say(&mut stream, "name")?;
    Ok(stream)
}

fn asked_over_udp(lab: &Lab, from: SocketAddr, to: SocketAddr) -> std::io::Result<String> {
    udp_say(&udp_from(&lab.client, from, to)?, "name")
}

fn refused<T>(result: std::io::Result<T>, kind: ErrorKind) {
    let error = result.map(drop).expect_err("it is too many");
    assert_eq!(error.kind(), kind, "{error}");
}

fn again(what: &str, mut works: impl FnMut() -> Result<(), Error>) {
    eventually(what, SOON, || works().map_err(|error| error.to_string()));
}

#[test]
fn a_service_has_as_many_connections_as_it_may() {
    Lab::run(|lab| {
        let web = Service::new("web", 10)
            .annotated(OF_SERVICE, "5")
            .with_external_ip()
            .with_node_port();
        let beside = Service::new("beside", 11);
        lab.publish_all(&web);
        lab.publish_all(&beside);
        let flags = ["--service-metrics=default", "--nodeport-addresses=all"];
        let tripod = start_with(lab, &flags);
        for family in [0, 1] {
            let node_port = SocketAddr::new(lab.node.addresses[family], web.node_port());
            let to = [web.cluster()[family], web.external()[family], node_port];
            let open = |to: SocketAddr| answered(lab, own_address(lab, to), to);
            let mut kept: Vec<_> = (0..5).map(|at| open(to[at % 3]).expect("room")).collect();
            for to in to {
                refused(open(to), ErrorKind::ConnectionRefused);
            }
            refused(
                asked_over_udp(lab, own_address(lab, to[0]), to[0]),
                ErrorKind::WouldBlock,
            );
            // Other calls of the same client, and connections that are open.
            ask(&lab.client, beside.cluster()[family]).expect("an answer of another Service");
            say(&mut kept[0], "name").expect("an answer on a connection that is open");
            // A change of endpoints counts no connection again.
            lab.publish_endpoints(&web, &[EndpointChoice::ready("a")]);
            eventually("the change is applied", SOON, || {
                let map = lab.node.show("nft list map ip tripod endpoints");
                let of_web = format!("{} . tcp . 80 . ", web.cluster()[0].ip());
                let slots = map.matches(&of_web).count();
                (slots == 1).then_some(()).ok_or(map)
            });
            refused(open(to[1]), ErrorKind::ConnectionRefused);
            kept.pop();
            again("there is room for one", || {
                open(to[0]).map(|one| kept.push(one))
            });
            refused(open(to[2]), ErrorKind::ConnectionRefused);
            drop(kept);
            again("UDP is served", || {
                asked_over_udp(lab, own_address(lab, to[0]), to[0]).map(drop)
            });
            lab.publish_all(&web);
        }
        assert!(limited(lab, "web", "service") >= 12.0);
        assert_eq!(limited(lab, "web", "client"), 0.0);
        let remark = remark_on_limits(lab, "default/web");
        assert!(
            remark.contains("the Service was at its connection limit "),
            "{remark}"
        );
        assert_eq!(tripod.logged(&["WARN", "max-connections"]), 0);
    });
}

#[test]
fn a_client_has_as_many_connections_as_it_may() {
    Lab::run(|lab| {
        let web = Service::new("web", 10).annotated(OF_CLIENT, "3");
        lab.publish_all(&web);
        let tripod = start_with(lab, &["--service-metrics=default"]);
        for to in web.cluster() {
            let other = lab.another_source(to.ip(), 1);
            let open = || answered(lab, own_address(lab, to), to);
            let mut kept: Vec<_> = (0..3).map(|_| open().expect("room")).collect();
            refused(open(), ErrorKind::ConnectionRefused);
            refused(
                asked_over_udp(lab, own_address(lab, to), to),
                ErrorKind::WouldBlock,
            );
            answered(lab, other, to).expect("an answer to another client");
            asked_over_udp(lab, other, to).expect("an answer to another client");
            kept.pop();
            again("there is room for one", || open().map(|one| kept.push(one)));
            refused(open(), ErrorKind::ConnectionRefused);
        }
        assert!(limited(lab, "web", "client") >= 6.0);
        assert_eq!(limited(lab, "web", "service"), 0.0);
        another_limit_applies_to_clients_that_are_there(lab, &web, &tripod);
    });
}

/// A connection to the same port number of another Service belongs to that Service.
#[test]
fn a_node_port_is_no_other_services_port() {
    Lab::run(|lab| {
        let web = Service::new("web", 10)
            .annotated(OF_SERVICE, "1")
            .sticky(600)
            .with_node_port();
        let port = web.node_port();
        let beside = Service::new("beside", 11).spec(
            "ports",
            json!([{"name": "tcp", "protocol": "TCP", "port": port, "targetPort": 8080}]),
        );
        let on = |names: &[&str]| {
            names
                .iter()
                .map(|name| EndpointChoice::ready(name))
                .collect::<Vec<_>>()
        };
        lab.publish_endpoints(&web, &on(&["a", "b"]));
        lab.publish_endpoints(&beside, &on(&["c"]));
        let _tripod = start_with(lab, &["--nodeport-addresses=all"]);
        for family in [0, 1] {
            let [web, beside] = [&web, &beside].map(|service| service.cluster()[family]);
            let beside = SocketAddr::new(beside.ip(), port);
            let own = own_address(lab, web);
            let kept: Vec<_> = (0..3)
                .map(|_| answered(lab, own, beside).expect("an answer"))
                .collect();
            // Neither was one of them counted, nor was its endpoint remembered.
            let name = ask(&lab.client, web).expect("an answer");
            assert!(["a", "b"].contains(&&*name), "{name}");
            drop(kept);
        }
    });
}

fn another_limit_applies_to_clients_that_are_there(lab: &Lab, web: &Service, tripod: &Tripod) {
    let to = web.cluster()[0];
    let open = || answered(lab, own_address(lab, to), to);
    let kept: Vec<_> = std::iter::from_fn(|| open().ok()).collect();
    lab.publish_all(&web.clone().annotated(OF_CLIENT, "100"));
    again("the limit is another one", || open().map(drop));
    lab.publish_all(&web.clone().annotated(OF_CLIENT, "many"));
    again("without a limit", || {
        let more: Result<Vec<_>, _> = (0..200).map(|_| open()).collect();
        more.map(drop)
    });
    tripod.logs_once(&["WARN", OF_CLIENT, "many"]);
    let listed = lab.node.show("nft list sets");
    assert!(!listed.contains("clients-"), "{listed}");
    drop(kept);
}
