//! Limits of a Service and of each of its clients: one client cannot have so many
//! connections that others of the same Service get none.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use super::{SOON, succession::Stop};
use crate::lab::{
    Lab, Service, Tripod, ask, bind_new, eventually, limited, own_address, remark_on_limits, say,
    tcp, tcp_from, udp_ask, udp_from, udp_say,
};

on_each_capture!(
    a_flood_of_connections_leaves_room_to_other_clients,
    a_flood_of_udp_flows_leaves_room_to_other_clients,
    a_service_has_as_many_as_it_may,
    a_client_has_as_many_as_it_may,
);

const OF_SERVICE: &str = "tripod.proxy/max-connections";
const OF_CLIENT: &str = "tripod.proxy/max-connections-per-client";

/// Metrics: how often a client was refused, and how often a Service accepted no more.
const CLIENT_LIMITED: &str = "tripod_userspace_client_limited_total";
const SERVICE_LIMITED: &str = "tripod_userspace_service_limited_total";

/// So few open files that a flood soon uses all of them.
const FEW: usize = 512;

/// Waits until a metric is larger than `before`. Returns its value.
fn grows(lab: &Lab, tripod: &Tripod, name: &str, before: f64) -> f64 {
    let mut last = before;
    eventually(&format!("{name} grows"), Duration::from_secs(30), || {
        last = tripod.metric(&lab.node, name).unwrap_or_default();
        if last > before {
            Ok(())
        } else {
            Err(last.to_string())
        }
    });
    last
}

fn ask_from(lab: &Lab, from: SocketAddr, to: SocketAddr) -> std::io::Result<String> {
    say(&mut tcp_from(&lab.client, from, to)?, "name")
}

/// Opens a connection, gets an answer on it, and keeps it open.
fn answered(lab: &Lab, to: SocketAddr) -> TcpStream {
    let mut stream = tcp_from(&lab.client, own_address(lab, to), to).expect("a connection");
    say(&mut stream, "name").expect("an answer");
    stream
}

fn a_flood_of_connections_leaves_room_to_other_clients(lab: &mut Lab) {
    let web = Service::new("web", 10);
    lab.three_backends().publish_all(&web);
    let tripod = Tripod::start_with_descriptors(lab, FEW, &["--userspace-workers=2"]);
    let mut limited = 0.0;
    for to in web.cluster() {
        let other = lab.another_source(to.ip(), 1);
        let flood: Vec<_> = (0..FEW)
            .map(|_| tcp_from(&lab.client, own_address(lab, to), to))
            .collect();
        limited = grows(lab, &tripod, CLIENT_LIMITED, limited);
        for call in 0..20 {
            ask_from(lab, other, to).unwrap_or_else(|e| panic!("{to}, call {call}: {e}"));
        }
        // The flood has all that it may have, which is more than half of the total.
        let open = tripod.metric(&lab.node, "tripod_userspace_connections");
        assert!(open > Some(FEW as f64 / 8.0), "{open:?} are open");
        drop(flood);
        eventually("the client is served again", SOON, || {
            ask_from(lab, own_address(lab, to), to)
                .map(drop)
                .map_err(|e| e.to_string())
        });
    }
    let paused = tripod.metric(&lab.node, "tripod_userspace_accept_paused_total");
    assert_eq!(paused, Some(0.0), "times that the Service waited");
    tripod.logs_once(&["this client reached its connection limit", "default/web"]);
}

/// The flows are never idle, so that none of them ends to make room.
fn a_flood_of_udp_flows_leaves_room_to_other_clients(lab: &mut Lab) {
    let web = Service::new("web", 10);
    lab.three_backends().publish_all(&web);
    let tripod = Tripod::start_with_descriptors(lab, FEW, &["--userspace-workers=2"]);
    let to = web.cluster()[0];
    let other = lab.another_source(to.ip(), 1);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            lab.client.enter(|| {
                let any = SocketAddr::from(([0; 4], 0));
                let flood = (0..FEW / 2).map(|_| bind_new(any).expect("a socket"));
                let flood: Vec<_> = flood.collect();
                while !over.load(Relaxed) {
                    for socket in &flood {
                        let _ = socket.send_to(b"name", to);
                    }
                    // This is the pace, not a wait: shorter than the time for which any flow is
                    // kept.
                    std::thread::sleep(Duration::from_millis(100));
                }
            });
        });
        let _ends = Stop(&over);
        grows(lab, &tripod, CLIENT_LIMITED, 0.0);
        for call in 0..5 {
            let socket = udp_from(&lab.client, other, to).expect("a socket");
            let patience = Some(Duration::from_millis(500));
            socket.set_read_timeout(patience).expect("a time limit");
            // A busy process drops datagrams of new clients, who repeat them.
            let answered = (0..5).any(|_| udp_say(&socket, "name").is_ok());
            assert!(answered, "call {call} is not answered");
        }
    });
    eventually(
        "the client is served again",
        Duration::from_secs(20),
        || {
            udp_ask(&lab.client, to)
                .map(drop)
                .map_err(|e| e.to_string())
        },
    );
}

fn a_service_has_as_many_as_it_may(lab: &mut Lab) {
    let web = Service::new("web", 10).annotated(OF_SERVICE, "5");
    let beside = Service::new("beside", 11);
    lab.three_backends().publish_all(&web);
    lab.publish_all(&beside);
    let tripod = Tripod::start_with(lab, &["--service-metrics=default"]);
    let [v4, v6] = web.cluster()[..] else {
        panic!("a cluster IP of each family")
    };
    let mut open: Vec<_> = [v4, v6, v4, v6, v4].map(|to| answered(lab, to)).into();
    let mut waiting = tcp(&lab.client, v6).expect("a connection");
    writeln!(waiting, "name").expect("a question");
    grows(lab, &tripod, SERVICE_LIMITED, 0.0);
    assert!(udp_ask(&lab.client, v4).is_err());
    // Once for the connection that waits, however long it does, and once for each datagram.
    assert!((1.0..10.0).contains(&limited(lab, "web", "service")));
    assert_eq!(limited(lab, "web", "client"), 0.0);
    assert_eq!(limited(lab, "beside", "service"), 0.0);
    assert!(
        remark_on_limits(lab, "default/web").contains("the Service was at its connection limit ")
    );
    assert_eq!(remark_on_limits(lab, "default/beside"), "");
    ask(&lab.client, beside.cluster()[0]).expect("an answer of another Service");
    tripod.logs_once(&["the Service reached its connection limit", "default/web"]);

    open.pop();
    let patience = Some(Duration::from_secs(10));
    waiting.set_read_timeout(patience).expect("a time limit");
    assert!(waiting.read(&mut [0; 16]).expect("an answer") > 0);
    drop((open, waiting));
    eventually("UDP is served", SOON, || {
        udp_ask(&lab.client, v4)
            .map(drop)
            .map_err(|e| e.to_string())
    });
}

fn a_client_has_as_many_as_it_may(lab: &mut Lab) {
    let web = Service::new("web", 10).annotated(OF_CLIENT, "3");
    lab.three_backends().publish_all(&web);
    let tripod = Tripod::start_with(lab, &["--service-metrics=default"]);
    for to in web.cluster() {
        let other = lab.another_source(to.ip(), 1);
        let mut open: Vec<_> = (0..3).map(|_| answered(lab, to)).collect();
        for _ in 0..3 {
            assert!(ask_from(lab, own_address(lab, to), to).is_err(), "{to}");
        }
        assert!(
            udp_from(&lab.client, own_address(lab, to), to)
                .and_then(|socket| udp_say(&socket, "name"))
                .is_err(),
            "{to}"
        );
        ask_from(lab, other, to).expect("an answer to another client");
        let socket = udp_from(&lab.client, other, to).expect("a socket");
        udp_say(&socket, "name").expect("an answer to another client");
        open.pop();
        eventually("there is room for one", SOON, || {
            ask_from(lab, own_address(lab, to), to)
                .map(drop)
                .map_err(|e| e.to_string())
        });
    }
    tripod.logs_once(&["this client reached its connection limit", "default/web"]);
    // Of both families, TCP and UDP.
    let all = tripod.metric(&lab.node, CLIENT_LIMITED);
    assert_eq!(Some(limited(lab, "web", "client")), all);
    assert!(remark_on_limits(lab, "default/web").contains("a client was at its connection limit "));
    eventually(
        "no client is counted",
        Duration::from_secs(20),
        || match tripod.metric(&lab.node, "tripod_userspace_clients") {
            Some(0.0) => Ok(()),
            n => Err(format!("{n:?}")),
        },
    );

    let to = web.cluster()[0];
    let _open: Vec<_> = (0..3).map(|_| answered(lab, to)).collect();
    lab.publish_all(&web.annotated(OF_CLIENT, "4"));
    eventually("the limit is another one", SOON, || {
        ask_from(lab, own_address(lab, to), to)
            .map(drop)
            .map_err(|e| e.to_string())
    });
}
