//! Failures of servers and connections. In each case the map ends in the state of the server, and
//! there are no events about unchanged objects: nothing flaps.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::{Instant, sleep};

use super::{
    cluster::{SERVICES, SLICES},
    lists::shop,
    objects::{service, slice},
    pipe,
    recorder::{NODE, Recorder},
    server::Server,
};

const SOON: Duration = Duration::from_secs(5);
/// Longest pause between two tries, with some room.
const PATIENT: Duration = Duration::from_secs(35);

/// A recorder that has the shop, whose front must not change.
async fn followed(server: &Server) -> Recorder {
    let mut recorder = Recorder::start(pipe::access(server));
    assert_eq!(recorder.next(SOON).await, Some(5));
    recorder.seen();
    recorder.leave_alone(&["front", "front-x", NODE]);
    recorder
}

/// A shop is opened, the back loses an endpoint to another slice.
fn meanwhile(server: &Server) {
    server.change(|cluster| {
        cluster.put(service("new", 3));
        cluster.put(slice("new-x", "new", &[9]));
        cluster.put(slice("back-y", "back", &[3, 4]));
        cluster.delete(&slice("back-x", "back", &[3]));
    });
}

const MEANWHILE: [&str; 4] = ["-back-x", "back-y", "new", "new-x"];

#[tokio::test(start_paused = true)]
async fn an_outage_of_a_minute() {
    let server = shop();
    let mut recorder = followed(&server).await;
    server.down();
    recorder.is_quiet(Duration::from_secs(30)).await;
    meanwhile(&server);
    recorder.is_quiet(Duration::from_secs(30)).await;
    assert_eq!(
        recorder.tracker().map().len(),
        2,
        "the last state is applied"
    );
    server.up();
    recorder.catches_up(&server, PATIENT).await;
    assert_eq!(recorder.seen(), MEANWHILE);
    // It continued from where it was: nothing had to be listed again.
    assert!(
        server
            .script()
            .calls
            .iter()
            .all(|(_, verb, _)| *verb == "watch")
    );
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_known_while_it_lasts() {
    let server = shop();
    let mut recorder = followed(&server).await;
    assert_eq!(recorder.troubles(), BTreeMap::new());
    server.down();
    recorder.is_quiet(Duration::from_secs(30)).await;
    let troubles = recorder.troubles();
    let kinds: Vec<_> = troubles.keys().copied().collect();
    assert_eq!(kinds, ["EndpointSlices", "Nodes", "Services"]);
    assert!(troubles.values().all(|why| !why.is_empty()), "{troubles:?}");
    meanwhile(&server);
    server.up();
    recorder.catches_up(&server, PATIENT).await;
    recorder.is_quiet(PATIENT).await;
    assert_eq!(recorder.troubles(), BTreeMap::new());
}

#[tokio::test(start_paused = true)]
async fn tries_during_an_outage_are_few_and_scattered() {
    let server = shop();
    let recorder = followed(&server).await;
    server.script().calls.clear();
    server.end_watches();
    server.script().refuse = vec![(SERVICES, 500, None); 1000];
    sleep(Duration::from_secs(600)).await;
    let calls = server.script().calls.clone();
    let mut tries = calls
        .iter()
        .filter(|(_, _, path)| path == SERVICES)
        .map(|(at, ..)| *at);
    let mut last = tries.next().expect("it was tried");
    let mut pauses: Vec<Duration> = Vec::new();
    for at in tries {
        pauses.push(at - last);
        last = at;
    }
    assert!((20..60).contains(&pauses.len()), "{pauses:?}");
    assert!(
        pauses.iter().max() <= Some(&Duration::from_secs(31)),
        "{pauses:?}"
    );
    let late = &pauses[8..];
    assert!(
        late.iter().min() >= Some(&Duration::from_secs(14)),
        "{late:?}"
    );
    assert!(
        late.iter().any(|pause| pause.abs_diff(late[0]) > SOON / 10),
        "{late:?}"
    );
    drop(recorder);
}

#[tokio::test(start_paused = true)]
async fn slow_failures_are_failures_too() {
    let server = shop();
    let mut recorder = followed(&server).await;
    server.script().refuse_after = Duration::from_secs(10);
    server.down();
    meanwhile(&server);
    recorder.is_quiet(Duration::from_secs(900)).await;
    // Three kinds, each 10 s and then a pause of 15 to 30 s.
    let tries = server.script().refused / 3;
    assert!((20..40).contains(&tries), "{tries} tries");
    server.up();
    // One try may still be in progress, and the longest pause follows it.
    recorder
        .catches_up(&server, PATIENT + Duration::from_secs(10))
        .await;
    assert_eq!(recorder.seen(), MEANWHILE);
}

#[tokio::test(start_paused = true)]
async fn the_version_expired_during_an_outage() {
    for (gone_as_status, streaming) in [(true, true), (false, true), (true, false), (false, false)]
    {
        let server = shop();
        server.script().streaming = streaming;
        server.script().gone_as_status = gone_as_status;
        let mut recorder = followed(&server).await;
        server.down();
        meanwhile(&server);
        server.change(|cluster| cluster.compact());
        recorder.is_quiet(Duration::from_secs(60)).await;
        server.up();
        recorder.catches_up(&server, PATIENT).await;
        let mode = format!("410 as status: {gone_as_status}, streaming: {streaming}");
        assert_eq!(recorder.seen(), MEANWHILE, "{mode}");
        // One list was enough.
        recorder.is_quiet(Duration::from_secs(60)).await;
        server.change(|cluster| cluster.delete(&service("new", 3)));
        recorder.catches_up(&server, SOON).await;
        assert_eq!(recorder.seen(), ["-new"], "{mode}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_always_says_410_is_not_asked_without_end() {
    for lists in [true, false] {
        let server = shop();
        let recorder = followed(&server).await;
        server.script().streaming = false;
        if lists {
            server.change(|cluster| cluster.compacted = u64::MAX);
        } else {
            server.script().refuse = vec![(SLICES, 410, None); 100_000];
        }
        server.end_watches();
        server.script().calls.clear();
        sleep(Duration::from_secs(600)).await;
        let calls = server.script().calls.len();
        assert!(calls < 400, "{calls} calls in ten minutes, lists: {lists}");
        drop(recorder);
    }
}

#[tokio::test(start_paused = true)]
async fn a_bookmark_saves_the_list() {
    let server = shop();
    let mut recorder = followed(&server).await;
    server.change(|cluster| {
        cluster.compact();
        for collection in [SERVICES, SLICES, super::cluster::NODES] {
            cluster.bookmark(collection);
        }
    });
    sleep(SOON).await;
    server.script().streaming = false;
    server.script().calls.clear();
    server.end_watches();
    meanwhile(&server);
    recorder.catches_up(&server, SOON).await;
    assert_eq!(recorder.seen(), MEANWHILE);
    assert!(
        server
            .script()
            .calls
            .iter()
            .all(|(_, verb, _)| *verb == "watch")
    );
}

#[tokio::test(start_paused = true)]
async fn a_server_that_asks_to_wait_is_waited_for() {
    for code in [429, 503] {
        let server = shop();
        let mut recorder = followed(&server).await;
        server.end_watches();
        server.script().calls.clear();
        server.script().refuse = vec![(SLICES, code, Some(40))];
        meanwhile(&server);
        let begun = Instant::now();
        recorder.catches_up(&server, Duration::from_secs(60)).await;
        assert_eq!(recorder.seen(), MEANWHILE);
        let calls = server.script().calls.clone();
        let times = calls.iter().filter(|(_, _, path)| path == SLICES);
        let times: Vec<Duration> = times.map(|(at, ..)| *at - begun).collect();
        assert_eq!(times.len(), 2, "{code}: {times:?}");
        assert!(
            times[1] - times[0] >= Duration::from_secs(40),
            "{code}: {times:?}"
        );
        assert!(
            times[1] - times[0] <= Duration::from_secs(45),
            "{code}: {times:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_is_cut_within_an_event() {
    for collection in [SERVICES, SLICES] {
        let server = shop();
        let mut recorder = followed(&server).await;
        server.script().cut = Some(collection);
        meanwhile(&server);
        recorder.catches_up(&server, SOON).await;
        assert_eq!(recorder.seen(), MEANWHILE);
        assert_eq!(server.script().cut, None, "it was cut");
    }
}

#[tokio::test(start_paused = true)]
async fn watches_that_end_in_good_order_lose_nothing() {
    let server = shop();
    let mut recorder = followed(&server).await;
    for last in 5..15 {
        server.end_watches();
        server.change(|cluster| cluster.put(slice("back-x", "back", &[3, last])));
        sleep(Duration::from_secs(310)).await;
        recorder.catches_up(&server, SOON).await;
    }
}

/// Useless answers to a watch.
const FUTILE: [&str; 3] = [
    "{\"type\":\"ERROR\",\"object\":{\"kind\":\"Status\",\"code\":500,\"message\":\"etcd\"}}\n",
    "nonsense\n",
    "",
];

#[tokio::test(start_paused = true)]
async fn everything_is_listed_anew_if_watches_fail_from_the_last_version() {
    for text in FUTILE {
        let server = shop();
        let mut recorder = followed(&server).await;
        let version = server.inspect(|cluster| cluster.version);
        server.script().fail_watches = Some((SERVICES, version, text));
        server.end_watches();
        meanwhile(&server);
        recorder.catches_up(&server, SOON * 2).await;
        assert_eq!(recorder.seen(), MEANWHILE, "{text}");
        recorder.is_quiet(PATIENT).await;
        assert_eq!(recorder.troubles(), BTreeMap::new(), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn watches_that_fail_each_time_are_known_and_cost_little() {
    for text in FUTILE {
        let server = shop();
        server.script().streaming = false;
        let mut recorder = followed(&server).await;
        server.script().fail_watches = Some((SERVICES, u64::MAX, text));
        server.script().calls.clear();
        server.end_watches();
        recorder.is_quiet(SOON).await;
        for _ in 0..60 {
            recorder.is_quiet(SOON * 2).await;
            let kinds: Vec<_> = recorder.troubles().into_keys().collect();
            assert_eq!(kinds, ["Services"], "{text}");
        }
        let calls = server.script().calls.clone();
        let of_services = calls.iter().filter(|(_, _, path)| path == SERVICES);
        let (lists, watches): (Vec<_>, Vec<_>) =
            of_services.partition(|(_, verb, _)| *verb == "list");
        let numbers = (lists.len(), watches.len());
        assert!((6..20).contains(&numbers.0), "{text}: {numbers:?}");
        assert!((20..60).contains(&numbers.1), "{text}: {numbers:?}");
        meanwhile(&server);
        recorder.catches_up(&server, PATIENT * 3).await;
        assert_eq!(recorder.seen(), MEANWHILE, "{text}");
        server.script().fail_watches = None;
        recorder.is_quiet(PATIENT + SOON * 2).await;
        assert_eq!(recorder.troubles(), BTreeMap::new(), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn idle_watches_that_end_are_no_trouble() {
    let server = shop();
    let mut recorder = followed(&server).await;
    server.script().calls.clear();
    for seconds in [2, 6, 2, 2, 2, 60, 2, 2] {
        recorder.is_quiet(Duration::from_secs(seconds)).await;
        server.end_watches();
        assert_eq!(recorder.troubles(), BTreeMap::new());
    }
    let calls = server.script().calls.clone();
    assert!(
        calls.iter().all(|(_, verb, _)| *verb == "watch"),
        "{calls:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_streaming_list_breaks_off() {
    let server = shop();
    let mut recorder = followed(&server).await;
    server.script().break_list = Some(SLICES);
    server.down();
    meanwhile(&server);
    server.change(|cluster| cluster.compact());
    sleep(Duration::from_secs(60)).await;
    server.up();
    recorder.catches_up(&server, PATIENT * 2).await;
    assert_eq!(recorder.seen(), MEANWHILE);
    // In pages then, in case streams do not get through.
    let calls = server.script().calls.clone();
    assert!(
        calls
            .iter()
            .any(|(_, verb, path)| *verb == "list" && path == SLICES)
    );
}

#[tokio::test(start_paused = true)]
async fn a_page_expires() {
    let server = shop();
    server.script().streaming = false;
    server.change(|cluster| {
        for i in 0..600 {
            cluster.put(slice(&format!("many-{i}"), "back", &[3]));
        }
    });
    server.script().expire_page = Some(SLICES);
    let mut recorder = Recorder::start(pipe::access(&server));
    assert_eq!(recorder.next(Duration::from_secs(60)).await, Some(605));
    recorder.catches_up(&server, Duration::ZERO).await;
    assert_eq!(server.script().expire_page, None, "it expired");
}

#[tokio::test(start_paused = true)]
async fn objects_come_and_go_in_any_order() {
    let server = shop();
    let mut recorder = followed(&server).await;
    // Between two changes the other watch may be ahead or behind.
    let changes: [&dyn Fn(&Server); 6] = [
        // A slice before its Service ...
        &|server| server.change(|cluster| cluster.put(slice("new-x", "new", &[9]))),
        &|server| server.change(|cluster| cluster.put(service("new", 3))),
        // ... which outlives it, and goes after it.
        &|server| server.change(|cluster| cluster.delete(&service("new", 3))),
        &|server| server.change(|cluster| cluster.delete(&slice("new-x", "new", &[9]))),
        // Deleted and created again at once.
        &|server| {
            server.change(|cluster| {
                cluster.delete(&service("back", 2));
                cluster.put(service("back", 4));
            });
        },
        // Slices first, then the Service.
        &|server| {
            server.change(|cluster| {
                cluster.delete(&slice("back-x", "back", &[3]));
                cluster.delete(&service("back", 4));
            });
        },
    ];
    for change in changes {
        change(&server);
        recorder.catches_up(&server, SOON).await;
        recorder.is_quiet(SOON).await;
    }
    let expected = ["-back", "-back-x", "-new", "-new-x", "back", "new", "new-x"];
    assert_eq!(recorder.seen(), expected);
}

#[tokio::test(start_paused = true)]
async fn an_old_delete_does_not_take_what_was_made_since() {
    let server = shop();
    let mut recorder = followed(&server).await;
    server.change(|cluster| {
        cluster.delete(&slice("back-x", "back", &[3]));
        cluster.put(slice("back-x", "back", &[3]));
    });
    recorder.catches_up(&server, SOON).await;
    recorder.seen();
    server.change(|cluster| cluster.replay(SLICES, 1));
    recorder.is_quiet(SOON).await;
    server.change(|cluster| cluster.put(slice("back-x", "back", &[3, 4])));
    recorder.catches_up(&server, SOON).await;
}

#[tokio::test(start_paused = true)]
async fn versions_that_go_back_are_followed() {
    for streaming in [true, false] {
        let server = shop();
        server.script().streaming = streaming;
        let mut recorder = followed(&server).await;
        let before = server.inspect(|cluster| cluster.version);
        server.change(|cluster| {
            cluster.version += 5_000;
            cluster.put(service("new", 3));
        });
        recorder.catches_up(&server, SOON).await;
        server.change(|cluster| cluster.go_back(before));
        server.change(|cluster| cluster.put(slice("new-x", "new", &[9])));
        recorder.catches_up(&server, SOON).await;
        server.change(|cluster| cluster.delete(&service("new", 3)));
        recorder.catches_up(&server, SOON).await;
        recorder.is_quiet(PATIENT).await;
    }
}
