//! Extensions that a Service, a slice or a Node requests only from Tripod: schedulers and weights.

use std::collections::{BTreeMap, BTreeSet};

use super::{SOON, comes_to_reach};
use crate::lab::{EndpointChoice, Lab, Service, ask, eventually, say, tcp, tcp_from, udp_ask};

on_each_capture!(
    weights_of_nodes_decide_the_shares,
    weight_zero_lets_connections_end_by_themselves,
    sh_keeps_a_client_and_lc_prefers_the_idle,
    a_scheduler_that_is_not_here_is_named_and_replaced,
);

const SCHEDULER: &str = "tripod.proxy/scheduler";

/// Gives the Nodes of `a`, `b` and `c` these weights.
fn weigh(lab: &Lab, weights: [u16; 3]) {
    let nodes = ["a", "b", "c"].iter().zip(weights).map(|(name, weight)| {
        format!(
            "apiVersion: v1\nkind: Node\nmetadata:\n  name: of-{name}\n  annotations:\n    \
             tripod.proxy/weight: '{weight}'\n"
        )
    });
    lab.write("nodes.yaml", &nodes.collect::<Vec<_>>().join("---\n"));
}

fn publish(lab: &mut Lab, service: &Service) {
    let of = |name: &str| EndpointChoice::ready(name).on(&format!("of-{name}"));
    lab.three_backends()
        .publish_endpoints(service, &["a", "b", "c"].map(of));
}

/// Counts the answers of each endpoint in `calls` calls.
fn shares(calls: usize, mut call: impl FnMut() -> std::io::Result<String>) -> Vec<usize> {
    let mut answers: BTreeMap<String, usize> =
        ["a", "b", "c"].map(|name| (name.to_owned(), 0)).into();
    for _ in 0..calls {
        *answers.entry(call().expect("an answer")).or_default() += 1;
    }
    answers.into_values().collect()
}

fn weights_of_nodes_decide_the_shares(lab: &mut Lab) {
    let web = Service::new("web", 10).annotated(SCHEDULER, "wrr");
    weigh(lab, [3, 1, 0]);
    publish(lab, &web);
    let _tripod = lab.tripod();
    for to in web.cluster() {
        let tcp = shares(40, || ask(&lab.client, to));
        assert_eq!(tcp, [30, 10, 0], "TCP {to}");
        let udp = shares(40, || udp_ask(&lab.client, to));
        assert_eq!(udp, [30, 10, 0], "UDP {to}");
    }
    weigh(lab, [1, 1, 2]);
    let to = web.cluster()[0];
    comes_to_reach("the raised one", &["c"], || ask(&lab.client, to));
    eventually("the new shares", SOON, || {
        match shares(40, || ask(&lab.client, to)) {
            shares if shares == [10, 10, 20] => Ok(()),
            shares => Err(format!("{shares:?}")),
        }
    });
}

fn weight_zero_lets_connections_end_by_themselves(lab: &mut Lab) {
    let web = Service::new("web", 10);
    weigh(lab, [1, 1, 1]);
    publish(lab, &web);
    let _tripod = lab.tripod();
    let to = web.cluster()[0];
    let mut kept: Vec<_> = (0..3)
        .map(|_| {
            let mut stream = tcp(&lab.client, to).expect("a connection");
            let name = say(&mut stream, "name").expect("an answer");
            (name, stream)
        })
        .collect();
    weigh(lab, [0, 0, 1]);
    eventually("only c answers", SOON, || {
        match shares(12, || ask(&lab.client, to)) {
            shares if shares == [0, 0, 12] => Ok(()),
            shares => Err(format!("{shares:?}")),
        }
    });
    for (name, stream) in &mut kept {
        assert_eq!(say(stream, "name").expect("it lives on"), *name);
    }
    weigh(lab, [0, 0, 0]);
    eventually("no backend takes a connection", SOON, || {
        match ask(&lab.client, to) {
            Err(_) => Ok(()),
            Ok(name) => Err(name),
        }
    });
    for (name, stream) in &mut kept {
        assert_eq!(say(stream, "name").expect("it lives on"), *name);
    }
}

fn sh_keeps_a_client_and_lc_prefers_the_idle(lab: &mut Lab) {
    let hashed = Service::new("hashed", 11).annotated(SCHEDULER, "sh");
    // The annotation of kube-router.
    let least = Service::new("least", 12).annotated("kube-router.io/service.scheduler", "lc");
    publish(lab, &hashed);
    lab.publish_all(&least);
    let _tripod = lab.tripod();

    let to = hashed.cluster()[0];
    let mut met = BTreeSet::new();
    for client in 1..=12 {
        let from = lab.another_source(to.ip(), client);
        let call = || say(&mut tcp_from(&lab.client, from, to)?, "name");
        let first = call().expect("an answer");
        for _ in 0..4 {
            assert_eq!(call().expect("an answer"), first, "from {from}");
        }
        met.insert(first);
    }
    assert!(met.len() > 1, "all twelve at {met:?}");

    let to = least.cluster()[0];
    let call = || {
        let mut stream = tcp(&lab.client, to).expect("a connection");
        let name = say(&mut stream, "name").expect("an answer");
        (name, stream)
    };
    let mut busy: Vec<_> = (0..6).map(|_| call()).collect();
    let count = |name: &str, busy: &[(String, _)]| busy.iter().filter(|(n, _)| n == name).count();
    assert!(["a", "b", "c"].iter().all(|name| count(name, &busy) == 2));
    busy.retain(|(name, _)| name != "b");
    // Once the proxy has seen the connections end, b is the idle one.
    eventually("b is idle", SOON, || match call() {
        (name, _) if name == "b" => Ok(()),
        (name, _) => Err(name),
    });
}

fn a_scheduler_that_is_not_here_is_named_and_replaced(lab: &mut Lab) {
    let web = Service::new("web", 10)
        .annotated(SCHEDULER, "lblc")
        .annotated("tripod.proxy/forwarding", "dr");
    publish(lab, &web);
    let tripod = lab.tripod();
    ask(&lab.client, web.cluster()[0]).expect("an answer");
    let message = ["Service default/web", SCHEDULER, "lblc", "wlc is used"];
    tripod.logs_once(&message);
    let message = ["Service default/web", "tripod.proxy/forwarding", "dr"];
    tripod.logs_once(&message);
}
