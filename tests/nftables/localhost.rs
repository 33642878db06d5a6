//! Node ports at 127.0.0.1 and ::1, if `--nodeport-addresses` names loopback.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::time::Duration;

use super::{start, start_with};
use crate::lab::{
    self, Capture, EndpointChoice, Lab, Service, ask, eventually, get, say, tcp, udp_ask,
};

const SOON: Duration = Duration::from_secs(20);

const LOCALHOST: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::LOCALHOST),
    IpAddr::V6(Ipv6Addr::LOCALHOST),
];

fn with_lab(body: fn(&mut Lab)) {
    lab::run(|| {
        body(Lab::new(Capture::Redirect).three_backends());
    });
}

/// The node port of `service` at both loopback addresses.
fn at(service: &Service) -> [SocketAddr; 2] {
    LOCALHOST.map(|ip| SocketAddr::new(ip, service.node_port()))
}

/// Collects who answers many calls from the node.
fn answer(lab: &Lab, to: SocketAddr) -> io::Result<BTreeSet<String>> {
    (0..30).map(|_| ask(&lab.node, to)).collect()
}

/// Waits until all of these answer, and nobody else.
fn comes_to_reach(lab: &Lab, what: &str, to: SocketAddr, expected: &[&str]) {
    let expected: BTreeSet<String> = expected.iter().map(|name| (*name).to_owned()).collect();
    eventually(&format!("{what}, {to}"), SOON, || match answer(lab, to) {
        Ok(names) if names == expected => Ok(()),
        other => Err(format!("{other:?}")),
    });
}

fn comes_to_be_refused(lab: &Lab, what: &str, to: SocketAddr) {
    eventually(&format!("{what}, {to}"), SOON, || {
        match tcp(&lab.node, to).map_err(|error| error.kind()) {
            Err(io::ErrorKind::ConnectionRefused) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
}

#[test]
fn endpoints_are_followed_and_connections_stay() {
    with_lab(|lab| {
        let web = Service::new("web", 1).with_node_port();
        lab.publish_all(&web);
        let tripod = start_with(lab, &["--nodeport-addresses=primary,localhost"]);
        let mut open = Vec::new();
        for to in at(&web) {
            comes_to_reach(lab, "all endpoints", to, &["a", "b", "c"]);
            let mut stream = tcp(&lab.node, to).expect("a connection");
            let name = say(&mut stream, "name").expect("an answer");
            open.push((stream, name));
        }
        let listeners =
            || tripod.metric(&lab.node, "kubeproxy_nftables_localhost_nodeport_listeners");
        let come_to = |count: f64| {
            eventually(&format!("{count} listeners"), SOON, || match listeners() {
                Some(now) if now == count => Ok(()),
                other => Err(format!("{other:?}")),
            });
        };
        come_to(2.0);
        for to in at(&web) {
            assert!(udp_ask(&lab.node, to).is_err(), "UDP at {to}");
        }
        tripod.logs_once(&["Service default/web:", "UDP port 30001 is refused"]);
        lab.publish(&web, &["b"]);
        for to in at(&web) {
            comes_to_reach(lab, "one endpoint", to, &["b"]);
        }
        lab.publish(&web, &[]);
        for to in at(&web) {
            comes_to_be_refused(lab, "no endpoint", to);
        }
        lab.publish(&web, &["c"]);
        for to in at(&web) {
            comes_to_reach(lab, "another endpoint", to, &["c"]);
        }
        lab.withdraw(&web);
        for to in at(&web) {
            comes_to_be_refused(lab, "no Service", to);
        }
        for (stream, name) in &mut open {
            let answer = say(stream, "name").expect("the connection lives on");
            assert_eq!(answer, *name);
        }
        come_to(0.0);
        assert_eq!(tripod.logged(&["ERROR"]), 0, "{}", tripod.log());
    });
}

/// Packets of `protocol` that were refused on loopback, of both families; `None` if the metric is
/// absent.
fn refused(lab: &Lab, protocol: &str) -> Option<f64> {
    let at = ([127, 0, 0, 1], 10249).into();
    let body = get(&lab.node, at, "/metrics").expect("an answer");
    let name = "kubeproxy_nftables_localhost_nodeport_rejected_packets_total{";
    let label = format!("protocol=\"{protocol}\"");
    let values = body.lines().filter(|line| line.starts_with(name));
    let values = values.filter(|line| line.contains(&label));
    let values: Vec<f64> = values
        .filter_map(|line| line.rsplit(' ').next()?.parse().ok())
        .collect();
    (values.len() == 2).then(|| values.iter().sum())
}

/// Programs of the node that listen on a node port get nothing that is sent to the Service.
#[test]
fn what_is_not_relayed_is_refused_and_counted() {
    const ENABLED: &str = "--feature-gates=KubeProxyNFTablesLocalhostNodePorts=true";
    const DISABLED: &str = "--feature-gates=KubeProxyNFTablesLocalhostNodePorts=false";
    with_lab(|lab| {
        let web = Service::new("web", 1).with_node_port();
        lab.publish_all(&web);
        // The flags, and whether rules refuse TCP and UDP.
        let cases: [(&[&str], bool, bool); 4] = [
            (&["--nodeport-addresses=all,localhost"], false, true),
            (&["--nodeport-addresses=all"], false, false),
            (&["--nodeport-addresses=all", ENABLED], true, true),
            (
                &["--nodeport-addresses=all,localhost", DISABLED],
                false,
                false,
            ),
        ];
        for (flags, tcp_is_refused, udp_is_refused) in cases {
            let tripod = start_with(lab, flags);
            let to = SocketAddr::new(lab.node.addresses[0], web.node_port());
            eventually("the node port", SOON, || {
                ask(&lab.outside, to).map_err(|error| error.to_string())
            });
            let counts = || ["TCP", "UDP", "SCTP"].map(|protocol| refused(lab, protocol));
            let zero = |is_refused: bool| is_refused.then_some(0.0);
            let expected = [tcp_is_refused, udp_is_refused, udp_is_refused].map(zero);
            assert_eq!(counts(), expected, "{flags:?}");
            for to in at(&web) {
                let (kind, socket) = lab.node.enter(|| {
                    let socket = UdpSocket::bind(to).expect("the port is free");
                    let client = UdpSocket::bind((to.ip(), 0)).expect("a socket");
                    client.connect(to).expect("an address");
                    client.send(b"hello").expect("sent");
                    (
                        client.send(b"again").map_err(|error| error.kind()).err(),
                        socket,
                    )
                });
                let refusal = udp_is_refused.then_some(io::ErrorKind::ConnectionRefused);
                assert_eq!(kind, refusal, "{flags:?}: UDP at {to}");
                socket.set_nonblocking(true).expect("an option");
                assert_eq!(
                    socket.recv(&mut [0; 8]).is_err(),
                    udp_is_refused,
                    "{flags:?}, {to}"
                );
                if tcp_is_refused {
                    let listener = lab.node.enter(|| TcpListener::bind(to));
                    let _listener = listener.expect("the port is free");
                    comes_to_be_refused(lab, "TCP", to);
                }
            }
            let expected = [
                tcp_is_refused.then_some(2.0),
                udp_is_refused.then_some(2.0),
                udp_is_refused.then_some(0.0),
            ];
            assert_eq!(counts(), expected, "{flags:?}");
            // The same port at other addresses is still served.
            assert!(ask(&lab.outside, to).is_ok(), "{flags:?}");
            drop(tripod);
        }
    });
}

#[test]
fn affinity_and_policy_choose_the_endpoint() {
    with_lab(|lab| {
        let sticky = Service::new("sticky", 1).with_node_port().sticky(600);
        lab.publish_all(&sticky);
        let local = Service::new("local", 2)
            .with_node_port()
            .spec("externalTrafficPolicy", "Local");
        let here = |name: &str| EndpointChoice::ready(name).on("node");
        let elsewhere = |name: &str| EndpointChoice::ready(name).on("other");
        lab.publish_endpoints(&local, &[here("a"), elsewhere("b"), elsewhere("c")]);
        let _tripod = start_with(lab, &["--nodeport-addresses=localhost"]);
        for to in at(&local) {
            comes_to_reach(lab, "the endpoint on this node", to, &["a"]);
        }
        for to in at(&sticky) {
            let names = answer(lab, to).expect("answers");
            assert_eq!(names.len(), 1, "{to}: {names:?}");
        }
        lab.publish_endpoints(&local, &[elsewhere("b"), elsewhere("c")]);
        for to in at(&local) {
            comes_to_be_refused(lab, "no endpoint on this node", to);
        }
    });
}

#[test]
fn a_port_that_another_program_has_is_the_trouble_of_its_service() {
    with_lab(|lab| {
        let [web, taken] = [1, 2].map(|number| {
            let service = Service::new(["web", "taken"][number - 1], number as u8);
            service.with_node_port()
        });
        lab.publish_all(&web);
        lab.publish_all(&taken);
        let [v4, v6] = at(&taken);
        let other = lab
            .node
            .enter(|| TcpListener::bind(v4).expect("the port is free"));
        let tripod = start_with(lab, &["--nodeport-addresses=primary,localhost"]);
        for to in [at(&web)[0], at(&web)[1], v6] {
            comes_to_reach(lab, "what can be served", to, &["a", "b", "c"]);
        }
        tripod.logs_once(&["default/taken:tcp", "cannot listen on 127.0.0.1:30002"]);
        let failures = "kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total";
        assert!(tripod.metric(&lab.node, failures) >= Some(1.0));
        drop(other);
        comes_to_reach(lab, "the port that got free", v4, &["a", "b", "c"]);
        tripod.logs_once(&["default/taken:tcp", "applied again"]);
    });
}

#[test]
fn where_loopback_is_not_named_nothing_is_started() {
    with_lab(|lab| {
        let web = Service::new("web", 1).with_node_port();
        lab.publish_all(&web);
        let workers = |tripod: &lab::Tripod| {
            let tasks = std::fs::read_dir(format!("/proc/{}/task", tripod.pid()));
            let names = tasks
                .expect("a running process")
                .map(|task| std::fs::read_to_string(task.expect("a thread").path().join("comm")));
            names.flatten().filter(|n| n.starts_with("worker")).count()
        };
        let everywhere = start_with(lab, &["--nodeport-addresses=0.0.0.0/0,::/0"]);
        let to = SocketAddr::new(lab.node.addresses[0], web.node_port());
        eventually("the node port", SOON, || {
            ask(&lab.outside, to).map_err(|error| error.to_string())
        });
        for to in at(&web) {
            comes_to_be_refused(lab, "nothing listens", to);
        }
        assert_eq!(workers(&everywhere), 0);
        drop(everywhere);
        assert_eq!(workers(&start(lab)), 0);
        let named = start_with(lab, &["--nodeport-addresses=::1/128"]);
        comes_to_reach(lab, "IPv6 alone", at(&web)[1], &["a", "b", "c"]);
        comes_to_be_refused(lab, "IPv4 is not named", at(&web)[0]);
        assert!(workers(&named) > 0);
    });
}
