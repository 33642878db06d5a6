//! `--userspace-transparent`: endpoints see the client where that can work, and all other
//! clients are still served.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::time::{Duration, Instant};

use serde_json::json;

use super::capture::traces;
use crate::lab::{Host, Lab, Service, Tripod, ask, say, tcp, tripod_binary, udp, udp_ask};

on_each_capture!(
    callers_from_elsewhere_are_seen,
    a_pod_is_seen_by_pods_of_other_links_and_nodes,
    neighbours_the_node_and_the_endpoint_itself_are_served,
    one_client_port_may_have_many_conversations,
    who_cannot_be_answered_is_served_in_the_name_of_the_node,
    streams_are_intact,
    nothing_is_left_after_cleanup,
    a_run_without_it_removes_what_one_with_it_left,
);

fn transparent(lab: &Lab) -> Tripod {
    let mut command = lab.node.command(tripod_binary());
    command.arg("--userspace-transparent");
    let tripod = Tripod::start_as(lab, command);
    for family in ["IPv4", "IPv6"] {
        let message = [family, "endpoints see the client's address"];
        tripod.logs_once(&message);
    }
    tripod
}

fn web() -> Service {
    let web = Service::new("web", 10);
    web.with_node_port().with_external_ip().with_load_balancer()
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// The address that the endpoint sees, and the caller's: over TCP, then over UDP.
fn seen(from: &Host, to: SocketAddr) -> [(SocketAddr, SocketAddr); 2] {
    let parsed = |text: &str| canonical(text.parse().expect("an address"));
    let what = |e: io::Error| -> String { panic!("{to} from {}: {e}", from.name()) };
    let mut stream = tcp(from, to).unwrap_or_else(|e| panic!("{}", what(e)));
    let peer = say(&mut stream, "peer").unwrap_or_else(what);
    let over_tcp = (parsed(&peer), stream.local_addr().expect("an open socket"));
    let socket = udp(from, to).expect("a socket");
    let peer = udp_peer(&socket).unwrap_or_else(what);
    [
        over_tcp,
        (parsed(&peer), socket.local_addr().expect("an open socket")),
    ]
}

fn udp_peer(socket: &UdpSocket) -> io::Result<String> {
    socket.send(b"peer")?;
    let mut buffer = [0; 256];
    let n = socket.recv(&mut buffer)?;
    let answer = String::from_utf8_lossy(&buffer[..n]).into_owned();
    let (_name, peer) = answer.split_once(' ').unwrap_or_default();
    Ok(peer.to_owned())
}

fn is_seen(from: &Host, to: SocketAddr) {
    for (peer, caller) in seen(from, to) {
        assert_eq!(peer, caller, "{to} from {}", from.name());
    }
}

fn is_served_unseen(from: &Host, to: SocketAddr) {
    for (peer, caller) in seen(from, to) {
        assert_ne!(peer, caller, "{to} from {}", from.name());
    }
}

fn node_ports(lab: &Lab, web: &Service) -> [SocketAddr; 2] {
    lab.node
        .addresses
        .map(|ip| SocketAddr::new(ip, web.node_port()))
}

/// A pod with a link of its own to the node, as in most networks.
fn routed_pod(lab: &Lab) -> Host {
    let v6: Ipv6Addr = "fd00:245::9".parse().expect("an address");
    let pod = Host::new("routed", Ipv4Addr::new(10, 245, 0, 9), v6);
    lab.node.ip(&[
        "link add pod-routed type veth peer name eth0 netns routed",
        "link set pod-routed up",
        "addr add 169.254.1.1/32 dev pod-routed",
        "route add 10.245.0.9/32 dev pod-routed",
        "addr add fd00:245::1/64 dev pod-routed nodad",
    ]);
    pod.ip(&[
        "link set eth0 up",
        "addr add 10.245.0.9/32 dev eth0",
        "route add 169.254.1.1 dev eth0",
        "route add default via 169.254.1.1",
        "addr add fd00:245::9/64 dev eth0 nodad",
        "route add ::/0 via fd00:245::1",
    ]);
    pod
}

fn callers_from_elsewhere_are_seen(lab: &mut Lab) {
    let web = web();
    lab.three_backends().publish_all(&web);
    let _tripod = transparent(lab);
    for to in [node_ports(lab, &web), web.external(), web.ingress()].concat() {
        for _ in 0..3 {
            is_seen(&lab.outside, to);
        }
    }
}

/// A pod on another node: an address of the cluster, behind `outside`.
const FAR: [&str; 2] = ["10.244.0.200", "fd00:244::200"];

fn a_pod_is_seen_by_pods_of_other_links_and_nodes(lab: &mut Lab) {
    let web = web();
    lab.three_backends().publish_all(&web);
    lab.outside.ip(&[
        "addr add 10.244.0.200/32 dev lo",
        "addr add fd00:244::200/128 dev lo nodad",
    ]);
    lab.node.ip(&[
        "route add 10.244.0.200/32 via 192.0.2.20",
        "route add fd00:244::200/128 via 2001:db8::20",
    ]);
    let far = Service::new("far", 11);
    let slices = [("IPv4", FAR[0]), ("IPv6", FAR[1])].map(|(family, address)| {
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": format!("far-by-{}", family.to_lowercase()), "namespace": "default",
                "labels": {"kubernetes.io/service-name": "far"},
            },
            "addressType": family,
            "ports": [{"name": "tcp", "protocol": "TCP", "port": 8080}],
            "endpoints": [{"addresses": [address]}],
        })
    });
    lab.publish(&far, &[]);
    let list = json!({"apiVersion": "v1", "kind": "List", "items": slices});
    lab.write("far-slices.json", &list.to_string());
    let listener = lab
        .outside
        .enter(|| TcpListener::bind((Ipv6Addr::UNSPECIFIED, 8080)));
    let listener = listener.expect("a port");
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let peer = stream.peer_addr().expect("a peer");
            // Everything that was sent is read, or the end would be a reset.
            let _ = stream.read(&mut [0; 16]);
            let _ = writeln!(stream, "{peer}");
        }
    });
    let pod = routed_pod(lab);
    let _tripod = transparent(lab);
    for to in web.cluster() {
        is_seen(&pod, to);
    }
    for to in far.cluster() {
        let mut stream = tcp(&lab.client, to).expect("a connection");
        let peer = say(&mut stream, "").expect("an answer");
        let peer = canonical(peer.parse().expect("an address"));
        assert_eq!(peer, stream.local_addr().expect("an open socket"), "{to}");
        // From another host to another host: the answer would bypass this node.
        let mut stream = tcp(&lab.node, to).expect("a connection");
        say(&mut stream, "").expect("an answer");
    }
}

fn neighbours_the_node_and_the_endpoint_itself_are_served(lab: &mut Lab) {
    let (web, own) = (web(), Service::new("own", 11).with_node_port());
    lab.three_backends().publish_all(&web);
    lab.publish(&own, &["a"]);
    let _tripod = transparent(lab);
    for to in [web.cluster(), node_ports(lab, &web), web.external()].concat() {
        for from in lab.cluster_clients() {
            is_served_unseen(from, to);
        }
    }
    let a = lab.backend("a").host();
    for to in own.cluster() {
        assert_eq!(ask(a, to).expect("TCP to itself"), "a");
        assert_eq!(udp_ask(a, to).expect("UDP to itself"), "a");
        is_served_unseen(a, to);
    }
}

/// A client that talks to many Services from one port: its connections to one endpoint
/// cannot all have that port.
fn one_client_port_may_have_many_conversations(lab: &mut Lab) {
    let services = [10, 11].map(|n| Service::new(&format!("web-{n}"), n).with_external_ip());
    lab.add_backends(&["a"]);
    for service in &services {
        lab.publish_all(service);
    }
    let _tripod = transparent(lab);
    for family in [0, 1] {
        let any: SocketAddr = match family {
            0 => (Ipv4Addr::UNSPECIFIED, 4444).into(),
            _ => (Ipv6Addr::UNSPECIFIED, 4444).into(),
        };
        let socket = lab.outside.enter(|| UdpSocket::bind(any)).expect("a port");
        socket
            .set_read_timeout(Some(Duration::from_secs(2)))
            .expect("a time limit");
        for round in 0..4 {
            for service in &services {
                let to = service.external()[family];
                let text = format!("{round} {to}");
                socket.send_to(text.as_bytes(), to).expect("sending");
                let mut buffer = [0; 256];
                let (n, from) = socket.recv_from(&mut buffer).expect("an answer");
                assert_eq!(String::from_utf8_lossy(&buffer[..n]), format!("a {text}"));
                assert_eq!(from, to, "the answer comes from whom was asked");
            }
        }
        let mut streams = services.each_ref().map(|service| {
            let to = service.external()[family];
            crate::lab::tcp_from(&lab.outside, any_port(&lab.outside, family), to)
                .expect("a connection")
        });
        for stream in &mut streams {
            assert_eq!(say(stream, "name").expect("an answer"), "a");
        }
    }
}

fn any_port(host: &Host, family: usize) -> SocketAddr {
    SocketAddr::new(host.addresses[family], 0)
}

fn who_cannot_be_answered_is_served_in_the_name_of_the_node(lab: &mut Lab) {
    let web = web();
    lab.add_backends(&["a"]).publish_all(&web);
    // The pod's packets to outside get lost, as if it had another route.
    lab.backend("a").host().ip(&[
        "route add blackhole 192.0.2.20/32",
        "route add blackhole 2001:db8::20/128",
    ]);
    let _tripod = transparent(lab);
    for to in node_ports(lab, &web) {
        let mut delays = Vec::new();
        for _ in 0..7 {
            let start = Instant::now();
            let mut stream = tcp(&lab.outside, to).expect("a connection");
            let peer = say(&mut stream, "peer").expect("an answer");
            delays.push(start.elapsed());
            let peer = canonical(peer.parse().expect("an address"));
            assert_ne!(peer, stream.local_addr().expect("an open socket"));
        }
        assert!(delays[0] >= Duration::from_millis(250), "{delays:?}");
        // Tripod remembers this, so most of the other calls take less; the machine may be busy.
        let quick = |delay: &&Duration| **delay < Duration::from_millis(250);
        assert!(delays[1..].iter().filter(quick).count() >= 4, "{delays:?}");
    }
}

fn streams_are_intact(lab: &mut Lab) {
    const LONG: u64 = 8 << 20;
    let web = web();
    lab.three_backends().publish_all(&web);
    let _tripod = transparent(lab);
    for to in web.external() {
        let mut stream = tcp(&lab.outside, to).expect("a connection");
        let peer = say(&mut stream, "peer").expect("an answer");
        let local = stream.local_addr().expect("an open socket");
        assert_eq!(canonical(peer.parse().expect("an address")), local);
        writeln!(stream, "pump {LONG}").expect("asking");
        let mut writer = stream.try_clone().expect("a second handle");
        let sender = std::thread::spawn(move || crate::lab::send_pattern(&mut writer, LONG));
        let mut reader = &stream;
        let seen = crate::lab::verify_pattern(&mut reader, Some(LONG)).expect("unchanged");
        assert_eq!(seen, LONG);
        sender.join().expect("the sender").expect("sending");
    }
}

fn nothing_is_left_after_cleanup(lab: &mut Lab) {
    let web = web();
    lab.three_backends().publish_all(&web);
    let before = traces(&lab.node);
    let mut tripod = transparent(lab);
    is_seen(&lab.outside, web.external()[0]);
    let during = traces(&lab.node);
    let ours = |line: &&String| line.contains("TRANSPARENT") || line.contains("0x54505448");
    assert!(during.iter().filter(ours).count() >= 4, "{during:#?}");
    assert!(tripod.terminate().success());
    let mut cleanup = lab.node.command(tripod_binary());
    let output = cleanup.arg("cleanup").output().expect("tripod cleanup");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(traces(&lab.node), before);
}

fn a_run_without_it_removes_what_one_with_it_left(lab: &mut Lab) {
    let web = web();
    lab.three_backends().publish_all(&web);
    let mut tripod = lab.tripod();
    let without = traces(&lab.node).len();
    is_served_unseen(&lab.outside, web.external()[0]);
    assert!(tripod.terminate().success());
    let mut tripod = transparent(lab);
    is_seen(&lab.outside, web.external()[0]);
    tripod.kill();
    let _tripod = lab.tripod();
    assert_eq!(traces(&lab.node).len(), without);
    is_served_unseen(&lab.outside, web.external()[0]);
}
