//! Listeners that another program ended in the kernel.

use super::SOON;
use crate::lab::{Lab, Service, Tripod, ask, eventually, say, tcp, udp_ask};

on_each_capture!(listeners_that_another_program_ended_open_anew);

/// Ends what listens in the node's kernel, but for the ports of `/healthz` and `/metrics`.
const END: [&str; 2] = [
    "ss --kill -tln '( sport != :10249 and sport != :10256 )'",
    "ss --kill -uln",
];

fn listeners_that_another_program_ended_open_anew(lab: &mut Lab) {
    let web = Service::new("web", 1);
    lab.three_backends().publish_all(&web);
    let tripod = Tripod::start_with(lab, &["--iptables-sync-period=1s"]);
    let called = web.cluster();
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
    for stream in &mut open {
        say(stream, "name").expect("open connections go on");
    }
    assert_eq!(tripod.logged(&["ERROR"]), 0, "{}", tripod.log());
}
