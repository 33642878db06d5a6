//! Listeners that another program closed in the kernel.

use std::net::{Ipv4Addr, SocketAddr};

use super::SOON;
use crate::lab::{Lab, Service, Tripod, ask, eventually, get, say, tcp, udp_ask};

on_each_capture!(listeners_that_another_program_ended_open_anew);

/// Commands that close all listeners in the node's kernel.
const END: [&str; 2] = ["ss --kill -tln", "ss --kill -uln"];

/// HTTP services: port and path.
const SERVED: [(u16, &str); 3] = [(10_256, "/healthz"), (10_249, "/metrics"), (31_000, "/")];

fn listeners_that_another_program_ended_open_anew(lab: &mut Lab) {
    let web = Service::new("web", 1)
        .with_load_balancer()
        .spec("externalTrafficPolicy", "Local")
        .spec("healthCheckNodePort", 31_000);
    lab.three_backends().publish_all(&web);
    let tripod = Tripod::start_with(lab, &["--iptables-sync-period=1s"]);
    let called = web.cluster();
    let answers = |port, path| {
        let at = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
        eventually(path, SOON, || {
            let answer = get(&lab.node, at, path).map_err(|error| error.to_string())?;
            answer.starts_with("HTTP/1.1 ").then_some(()).ok_or(answer)
        });
    };
    for (port, path) in SERVED {
        answers(port, path);
    }
    let mut open: Vec<_> = called
        .iter()
        .map(|to| tcp(&lab.client, *to).expect("a connection"))
        .collect();
    for command in END {
        let ended = lab.node.command("sh").args(["-c", command]).output();
        let ended = ended.expect("running ss");
        assert!(
            ended.status.success() && ended.stdout.len() > 100,
            "{ended:?}"
        );
    }
    for to in &called {
        let calls = [ask, udp_ask];
        for (call, what) in calls.iter().zip(["TCP is answered", "UDP is answered"]) {
            eventually(what, SOON, || {
                call(&lab.client, *to).map_err(|error| error.to_string())
            });
        }
    }
    for (port, path) in SERVED {
        answers(port, path);
    }
    for stream in &mut open {
        say(stream, "name").expect("open connections go on");
    }
    assert_eq!(tripod.logged(&["ERROR"]), 0, "{}", tripod.log());
}
