//! How soon changes take effect once the server is back.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    cluster::{SERVICES, SLICES},
    lists::shop,
    objects::{service, slice},
    pipe,
    recorder::{NODE, Recorder},
    server::Server,
};

const SOON: Duration = Duration::from_secs(5);
/// A change made when the server is back is known after this time.
const RECOVERED: Duration = Duration::from_secs(3);

/// The answer of an API server whose etcd lacks RequestWatchProgress, and possible answers of
/// others.
const NO_LISTS: [&str; 4] = [
    "{\"type\":\"ERROR\",\"object\":{\"kind\":\"Status\",\"code\":500,\"message\":\"etcd\"}}\n",
    "{\"type\":\"ERROR\",\"object\":{\"kind\":\"Status\"}}\n",
    "nonsense\n",
    "",
];

/// Number of requests for a streaming list.
fn streams(server: &Server) -> usize {
    let script = server.script();
    let streams = script.queries.iter();
    let streams = streams.filter(|query| query.contains("sendInitialEvents=true"));
    streams.count()
}

fn change(server: &Server) {
    server.change(|cluster| {
        cluster.put(service("new", 3));
        cluster.put(slice("new-x", "new", &[9]));
    });
}

#[tokio::test(start_paused = true)]
async fn a_streaming_list_that_fails_inside_costs_no_pause() {
    for text in NO_LISTS {
        let server = shop();
        server.script().fail_streams = Some(text);
        let mut recorder = Recorder::start(pipe::access(&server));
        let events = recorder.next(Duration::from_millis(100)).await;
        assert_eq!(events, Some(5), "{text}");
        recorder.is_quiet(Duration::from_secs(600)).await;
        assert_eq!(recorder.troubles().len(), 0, "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_server_cannot_do_is_not_asked_again() {
    for refuses in [true, false] {
        let server = shop();
        server.script().streaming = !refuses;
        server.script().fail_streams = Some(NO_LISTS[0]);
        let mut recorder = Recorder::start(pipe::access(&server));
        recorder.next(SOON).await;
        let at_first = streams(&server);
        server.change(|cluster| cluster.compact());
        for _ in 0..3 {
            server.down();
            tokio::time::sleep(SOON).await;
            change(&server);
            server.change(|cluster| cluster.compact());
            server.up();
            recorder.catches_up(&server, SOON).await;
        }
        assert_eq!(streams(&server), at_first, "refuses: {refuses}");
        // It may have been replaced since then.
        tokio::time::sleep(Duration::from_secs(3600)).await;
        server.script().streaming = true;
        server.script().fail_streams = None;
        server.down();
        server.change(|cluster| cluster.compact());
        server.up();
        recorder.is_quiet(SOON).await;
        assert!(streams(&server) > at_first, "refuses: {refuses}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_after_an_outage_is_known_within_3_s() {
    for (seconds, expired, fail_streams) in [
        (20, false, None),
        (60, false, None),
        (60, true, None),
        (60, true, Some(NO_LISTS[0])),
        (60, true, Some("")),
        (3600, true, Some(NO_LISTS[0])),
    ] {
        let server = shop();
        server.script().fail_streams = fail_streams;
        let mut recorder = Recorder::start(pipe::access(&server));
        recorder.next(SOON).await;
        recorder.leave_alone(&["front", "front-x", NODE]);
        server.down();
        recorder.is_quiet(Duration::from_secs(seconds)).await;
        if expired {
            server.change(|cluster| cluster.compact());
        }
        server.up();
        change(&server);
        if expired {
            server.change(|cluster| cluster.compact());
        }
        let begun = Instant::now();
        recorder.catches_up(&server, RECOVERED).await;
        let took = begun.elapsed();
        assert!(
            took <= RECOVERED,
            "{seconds} {expired} {fail_streams:?}: {took:?}"
        );
    }
}

/// A load balancer answers in the server's place, and the server refuses requests while it starts.
#[tokio::test(start_paused = true)]
async fn a_server_behind_a_proxy_and_one_that_starts_are_back_soon() {
    for code in [502, 503] {
        let server = shop();
        let mut recorder = Recorder::start(pipe::access(&server));
        recorder.next(SOON).await;
        server.script().refuse = [SERVICES, SLICES, super::cluster::NODES]
            .map(|path| vec![(path, code, None); 10_000])
            .concat();
        server.end_watches();
        recorder.is_quiet(Duration::from_secs(120)).await;
        let starting = [SERVICES, SLICES, super::cluster::NODES];
        server.script().refuse = starting
            .map(|path| vec![(path, 403, None); 10_000])
            .concat();
        recorder.is_quiet(Duration::from_secs(20)).await;
        server.script().refuse.clear();
        change(&server);
        recorder.catches_up(&server, RECOVERED).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_tries_once_at_a_time_while_the_server_is_away() {
    let server = shop();
    let mut recorder = Recorder::start(pipe::access(&server));
    recorder.next(SOON).await;
    server.down();
    recorder.is_quiet(Duration::from_secs(600)).await;
    let refused = server.script().refused;
    // A pause of one to two seconds, regardless of the number of kinds.
    assert!((250..650).contains(&refused), "{refused} tries");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_back_is_not_called_by_all_nodes_at_once() {
    let mut found = Vec::new();
    for _ in 0..20 {
        let server = shop();
        let mut recorder = Recorder::start(pipe::access(&server));
        recorder.next(SOON).await;
        server.down();
        recorder.is_quiet(Duration::from_secs(30)).await;
        server.script().calls.clear();
        server.up();
        let begun = Instant::now();
        recorder.is_quiet(SOON).await;
        found.push(server.script().calls[0].0 - begun);
    }
    found.sort();
    assert!(
        found[15] - found[4] > Duration::from_millis(300),
        "{found:?}"
    );
}
