//! The first state, and later changes.

use std::{collections::BTreeSet, time::Duration};

use serde_json::json;

use super::{
    cluster::{NODES, SERVICE_CIDRS, SERVICES, SLICES},
    objects::{node, service, service_cidr, slice},
    pipe,
    recorder::{NODE, Recorder},
    server::Server,
};

const SOON: Duration = Duration::from_secs(5);

/// A shop with a front and a back.
pub fn shop() -> Server {
    let server = Server::new();
    server.change(|cluster| {
        cluster.put(node(NODE, "zone-1"));
        cluster.put(node("node-b", "zone-2"));
        cluster.put(service("front", 1));
        cluster.put(slice("front-x", "front", &[1, 2]));
        cluster.put(service("back", 2));
        cluster.put(slice("back-x", "back", &[3]));
    });
    server
}

#[tokio::test(start_paused = true)]
async fn the_first_batch_is_everything_however_it_is_listed() {
    for streaming in [true, false] {
        let server = shop();
        server.script().streaming = streaming;
        server.change(|cluster| {
            for i in 0..1100 {
                let name = format!("many-{i:04}");
                let mut object = service(&name, 0);
                let ip = format!("10.97.{}.{}", i / 250, i % 250 + 1);
                object["spec"]["clusterIP"] = json!(ip);
                object["spec"]["clusterIPs"] = json!([ip]);
                cluster.put(object);
                cluster.put(slice(&format!("{name}-x"), &name, &[7]));
            }
        });
        let mut recorder = Recorder::start(pipe::access(&server));
        let events = recorder.next(SOON).await;
        assert_eq!(events, Some(2 * 1102 + 1), "streaming: {streaming}");
        recorder.catches_up(&server, Duration::ZERO).await;
        let zone = recorder.tracker().node().and_then(|node| node.zone.clone());
        assert_eq!(zone.as_deref(), Some("zone-1"));
        assert!(recorder.seen().iter().all(|name| name != "node-b"));
        recorder.is_quiet(Duration::from_secs(3600)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_batch_waits_for_both_lists() {
    for late in [SERVICES, SLICES] {
        let server = shop();
        server.script().refuse = vec![(late, 500, None); 3];
        let mut recorder = Recorder::start(pipe::access(&server));
        assert_eq!(recorder.next(Duration::from_secs(60)).await, Some(5));
        recorder.catches_up(&server, Duration::ZERO).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_empty_cluster_is_a_first_batch_too() {
    let server = Server::new();
    let mut recorder = Recorder::start(pipe::access(&server));
    assert_eq!(recorder.next(SOON).await, Some(0));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_withheld_or_not_there_yet_is_not_waited_for() {
    for code in [None, Some(403), Some(404)] {
        let server = shop();
        match code {
            Some(code) => server.script().refuse = vec![(NODES, code, None); 3],
            None => server.change(|cluster| cluster.delete(&node(NODE, "zone-1"))),
        }
        let mut recorder = Recorder::start(pipe::access(&server));
        assert_eq!(recorder.next(SOON).await, Some(4), "{code:?}");
        recorder.seen();
        if code.is_none() {
            server.change(|cluster| cluster.put(node(NODE, "zone-1")));
        }
        assert_eq!(recorder.next(Duration::from_secs(60)).await, Some(1));
        assert_eq!(recorder.seen(), [NODE]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_cannot_be_listed_is_not_waited_for_without_end() {
    let server = shop();
    server.script().refuse = vec![(NODES, 500, None); 1000];
    let mut recorder = Recorder::start(pipe::access(&server));
    recorder.is_quiet(Duration::from_secs(29)).await;
    assert_eq!(recorder.next(SOON).await, Some(4));
    recorder.seen();
    server.script().refuse.clear();
    assert_eq!(recorder.next(Duration::from_secs(60)).await, Some(1));
    assert_eq!(recorder.seen(), [NODE]);

    // Without Services there is nothing to apply.
    server.script().refuse = vec![(SERVICES, 500, None); 1000];
    let mut recorder = Recorder::start(pipe::access(&server));
    recorder.is_quiet(Duration::from_secs(120)).await;
}

#[tokio::test(start_paused = true)]
async fn changes_that_mean_nothing_here_make_no_event() {
    let server = shop();
    let mut recorder = Recorder::start(pipe::access(&server));
    recorder.next(SOON).await;
    let mut front = service("front", 1);
    front["metadata"]["annotations"] = json!({"changed": "again"});
    front["status"]["conditions"] = json!([]);
    let mut moved = slice("front-x", "front", &[1, 2]);
    moved["endpoints"][0]["targetRef"]["name"] = json!("another");
    let mut other_node = node("node-b", "zone-3");
    other_node["status"]["images"] = json!([]);
    server.change(|cluster| {
        cluster.put(front);
        cluster.put(moved);
        cluster.put(other_node);
        cluster.tick();
        cluster.bookmark(SERVICES);
    });
    recorder.is_quiet(Duration::from_secs(60)).await;
}

#[tokio::test(start_paused = true)]
async fn an_object_that_is_labelled_for_another_proxy_goes() {
    let server = shop();
    let mut recorder = Recorder::start(pipe::access(&server));
    recorder.next(SOON).await;
    recorder.seen();
    let label = "service.kubernetes.io/service-proxy-name";
    let mut front = service("front", 1);
    front["metadata"]["labels"] = json!({label: "another"});
    server.change(|cluster| cluster.put(front));
    recorder.catches_up(&server, SOON).await;
    assert_eq!(recorder.seen(), ["-front"]);
    server.change(|cluster| cluster.put(service("front", 1)));
    recorder.catches_up(&server, SOON).await;
    assert_eq!(recorder.seen(), ["front"]);
}

#[tokio::test(start_paused = true)]
async fn a_storm_is_few_batches_with_the_last_state() {
    let server = shop();
    let mut recorder = Recorder::start(pipe::access(&server));
    recorder.next(SOON).await;
    recorder.leave_alone(&["front", "front-x", NODE]);
    server.change(|cluster| {
        for round in 0..1000 {
            let last = [3, u8::try_from(4 + round % 200).unwrap()];
            cluster.put(slice("back-x", "back", &last));
        }
    });
    // The receiver is busy in the meantime.
    tokio::time::sleep(Duration::from_secs(10)).await;
    recorder.catches_up(&server, SOON).await;
    assert!(recorder.batches() <= 4, "{} batches", recorder.batches());
}

#[tokio::test(start_paused = true)]
async fn no_other_calls_than_documented() {
    let server = shop();
    for streaming in [true, false] {
        server.script().streaming = streaming;
        let mut recorder = Recorder::start(pipe::access(&server));
        recorder.next(SOON).await;
        server.change(|cluster| cluster.put(service("front", 9)));
        recorder.next(SOON).await;
    }
    let calls: BTreeSet<(&str, String)> = {
        let script = server.script();
        let calls = script.calls.iter();
        calls.map(|(_, verb, path)| (*verb, path.clone())).collect()
    };
    let expected = [SERVICES, SLICES, NODES].into_iter();
    let expected = expected.flat_map(|path| ["list", "watch"].map(|verb| (verb, path.to_owned())));
    assert_eq!(calls, expected.collect());
    for query in &server.script().queries {
        let selected = if query.starts_with(NODES) {
            query.contains("fieldSelector=metadata.name%3Dnode-a")
        } else {
            let services = query.starts_with(SERVICES);
            query.contains("service-proxy-name") == services
                && query.contains("headless") != services
        };
        assert!(selected, "{query}");
    }
}

/// Weights of the endpoints of Service `back`, in any order.
fn weights(recorder: &Recorder) -> Vec<u16> {
    let mut ports = recorder.tracker().map().iter();
    let back = ports.find(|port| &*port.name.service.name == "back");
    let endpoints = back.expect("Service back").endpoints.all.iter();
    endpoints.map(|endpoint| endpoint.weight).collect()
}

/// A slice of `back` with an endpoint on each of `nodes`.
fn spread(nodes: &[&str]) -> serde_json::Value {
    let last: Vec<u8> = (1..).take(nodes.len()).collect();
    let mut slice = slice("spread", "back", &last);
    for (i, node) in nodes.iter().enumerate() {
        slice["endpoints"][i]["nodeName"] = json!(node);
    }
    slice
}

fn weighed(name: &str, weight: &str) -> serde_json::Value {
    let mut node = node(name, "z");
    node["metadata"]["annotations"] = json!({"tripod.proxy/weight": weight});
    node
}

#[tokio::test(start_paused = true)]
async fn nodes_that_have_a_weight_are_heard_of_and_others_are_not() {
    for streaming in [true, false] {
        let server = Server::new();
        server.script().streaming = streaming;
        server.change(|cluster| {
            cluster.put(service("back", 1));
            cluster.put(spread(&["node-a", "node-b", "node-c"]));
            cluster.put(weighed("node-a", "2"));
            cluster.put(weighed("node-b", "3"));
            for i in 0..600 {
                cluster.put(node(&format!("idle-{i}"), "z"));
            }
        });
        let mut recorder = Recorder::with_weights(pipe::access(&server));
        assert_eq!(recorder.next(SOON).await, Some(4), "two Nodes");
        assert_eq!(weights(&recorder), [2, 3, 1]);

        recorder.seen();
        server.change(|cluster| {
            cluster.put(node("idle-7", "y"));
            cluster.put(weighed("node-b", "none"));
            cluster.put(weighed("node-c", "0"));
        });
        recorder.next(SOON).await;
        assert_eq!(weights(&recorder), [2, 1, 0]);
        server.change(|cluster| cluster.delete(&node("node-c", "z")));
        recorder.next(SOON).await;
        assert_eq!(weights(&recorder), [2, 1, 1]);
        assert_eq!(recorder.seen(), ["-node-b", "-node-c", "node-c"]);
        recorder.is_quiet(SOON).await;
    }
}

#[tokio::test(start_paused = true)]
async fn nodes_may_be_withheld_but_services_are_waited_for() {
    let server = Server::new();
    server.change(|cluster| {
        cluster.put(service("back", 1));
        cluster.put(spread(&["node-a", "node-b"]));
        cluster.put(weighed("node-b", "3"));
    });
    let withheld = |path, times| vec![(path, 403, None); times];
    server.script().refuse = withheld(NODES, 1000);
    let mut recorder = Recorder::with_weights(pipe::access(&server));
    assert_eq!(recorder.next(SOON).await, Some(2));
    assert_eq!(weights(&recorder), [1, 1]);
    // They are requested again now and then.
    server.script().refuse.clear();
    recorder.next(Duration::from_secs(60)).await;
    recorder.catches_up(&server, SOON).await;
    assert_eq!(weights(&recorder), [1, 3]);

    // An empty map would tear down the rules that an earlier process left.
    server.script().refuse = withheld(SERVICES, 1000);
    let mut recorder = Recorder::with_weights(pipe::access(&server));
    recorder.is_quiet(Duration::from_secs(120)).await;
    server.script().refuse.clear();
    assert_eq!(recorder.next(Duration::from_secs(60)).await, Some(3));
}

#[tokio::test(start_paused = true)]
async fn other_nodes_are_none_of_our_business_unless_weights_are_asked_for() {
    let server = Server::new();
    server.change(|cluster| {
        cluster.put(service("back", 1));
        cluster.put(spread(&["node-a", "node-b"]));
        cluster.put(weighed("node-a", "2"));
        cluster.put(weighed("node-b", "3"));
    });
    let mut recorder = Recorder::start(pipe::access(&server));
    assert_eq!(recorder.next(SOON).await, Some(3), "our Node alone");
    // Only ours would have a weight, with no other to compare it with.
    assert_eq!(weights(&recorder), [1, 1]);
    server.change(|cluster| {
        for i in 0..1000 {
            cluster.put(node(&format!("idle-{i}"), "z"));
        }
    });
    recorder.is_quiet(Duration::from_secs(600)).await;
    let script = server.script();
    let of_nodes = script
        .queries
        .iter()
        .filter(|query| query.starts_with(NODES));
    let named = |query: &&String| query.contains("fieldSelector=metadata.name%3Dnode-a");
    assert_eq!(of_nodes.clone().filter(named).count(), of_nodes.count());
}

#[tokio::test(start_paused = true)]
async fn service_cidrs_are_followed_where_they_are_asked_for() {
    let server = Server::new();
    let first = service_cidr("kubernetes", &["10.96.0.0/16", "fd00:96::/112"]);
    server.change(|cluster| {
        cluster.put(service("back", 1));
        cluster.put(first);
    });
    let mut recorder = Recorder::start(pipe::access(&server));
    assert_eq!(recorder.next(SOON).await, Some(1), "the Service alone");

    let networks = |recorder: &Recorder| {
        let networks = recorder.tracker().map().service_networks().iter();
        networks.map(ToString::to_string).collect::<Vec<_>>()
    };
    let mut recorder = Recorder::with_service_cidrs(pipe::access(&server));
    assert_eq!(recorder.next(SOON).await, Some(2));
    assert_eq!(networks(&recorder), ["10.96.0.0/16", "fd00:96::/112"]);
    let more = service_cidr("more", &["10.97.0.0/16"]);
    server.change(|cluster| cluster.put(more.clone()));
    assert_eq!(recorder.next(SOON).await, Some(1));
    assert_eq!(networks(&recorder), ["10.96.0.0/15", "fd00:96::/112"]);
    server.change(|cluster| cluster.delete(&more));
    assert_eq!(recorder.next(SOON).await, Some(1));
    assert_eq!(networks(&recorder), ["10.96.0.0/16", "fd00:96::/112"]);

    // A server before 1.33 has none; without the right it does not return them.
    for code in [404, 403] {
        server.script().refuse = vec![(SERVICE_CIDRS, code, None); 1000];
        let mut recorder = Recorder::with_service_cidrs(pipe::access(&server));
        assert_eq!(recorder.next(SOON).await, Some(1), "{code}");
        assert!(networks(&recorder).is_empty());
        // An old server is no fault.
        let is_trouble = recorder.troubles().contains_key("ServiceCIDRs");
        assert_eq!(is_trouble, code == 403, "{code}");
    }
}
