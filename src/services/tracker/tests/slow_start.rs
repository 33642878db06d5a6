//! Shares of endpoints that became ready (`tripod.proxy/slow-start`).

use std::time::Duration;

use tokio::time::advance;

use super::*;

const WHOLE: u32 = 40;

/// A Service with a slow start of 60 seconds.
fn slow(name: &str) -> Event {
    let service: wire::Service = yaml(&format!(
        "{{metadata: {{name: {name}, annotations: {{tripod.proxy/slow-start: 60s}}}}, \
         spec: {{clusterIP: 10.0.0.1, ports: [{{port: 80}}]}}}}"
    ));
    let reduced = Service::reduce(&service, &mut Names::default()).expect("good Service");
    Event::Changed(Object::Service(Arc::new(reduced.object)))
}

/// A slice whose endpoints belong to these pods, which end the addresses, and are ready or not.
fn pods(slice_name: &str, of: &str, pods: &[(u8, &str, bool)]) -> Event {
    let pod = |(last, uid, ready): &(u8, &str, bool)| {
        format!(
            "{{addresses: [10.1.0.{last}], conditions: {{ready: {ready}}}, \
             targetRef: {{kind: Pod, uid: {uid}}}}}"
        )
    };
    let pods: Vec<String> = pods.iter().map(pod).collect();
    slice(slice_name, of, "port: 8080", &pods.join(", "))
}

fn shares(tracker: &Tracker, service: &str) -> Vec<u32> {
    let name = port_name(service, Protocol::Tcp);
    let port = tracker.map().get(&name).expect("ServicePort");
    port.endpoints.all.iter().map(|one| one.share()).collect()
}

/// Lets a tenth of the time pass and shares grow.
async fn after_six_seconds(tracker: &mut Tracker) -> Changes {
    advance(Duration::from_secs(6)).await;
    tracker.time_passes().await;
    tracker.time_passed()
}

/// Returns whether no share grows any more.
async fn is_at_rest(tracker: &Tracker) -> bool {
    let long = Duration::from_secs(600);
    tokio::time::timeout(long, tracker.time_passes())
        .await
        .is_err()
}

#[tokio::test(start_paused = true)]
async fn a_new_endpoint_grows_from_a_tenth_to_its_weight() {
    let mut tracker = Tracker::new("here");
    tracker.apply([slow("web"), pods("s", "web", &[(1, "a", true)])]);
    assert_eq!(shares(&tracker, "web"), [WHOLE], "nobody else could serve");
    let both = [(1, "a", true), (2, "b", true)];
    tracker.apply([pods("s", "web", &both)]);
    let mut seen = vec![shares(&tracker, "web")[1]];
    for _ in 0..10 {
        let changes = after_six_seconds(&mut tracker).await;
        assert_eq!(changes.ports.len(), 1);
        seen.push(shares(&tracker, "web")[1]);
    }
    // Within half a part of 4 + 36 × the time.
    assert_eq!(seen, [4, 8, 11, 15, 18, 22, 26, 29, 33, 36, 40]);
    assert_eq!(shares(&tracker, "web")[0], WHOLE);
    assert!(is_at_rest(&tracker).await);
}

#[tokio::test(start_paused = true)]
async fn steps_come_at_a_bounded_rate() {
    let mut tracker = Tracker::new("here");
    let mut all = vec![(1, "a", true)];
    tracker.apply([slow("web"), pods("s", "web", &all)]);
    // Each starts at another time.
    let uids: Vec<String> = (2..20).map(|last| format!("pod-{last}")).collect();
    for (last, uid) in (2..).zip(&uids) {
        all.push((last, uid, true));
        tracker.apply([pods("s", "web", &all)]);
        advance(Duration::from_millis(70)).await;
    }
    let (begun, mut steps) = (tokio::time::Instant::now(), 0);
    while begun.elapsed() < Duration::from_secs(59) {
        tracker.time_passes().await;
        tracker.time_passed();
        steps += 1;
    }
    assert!((30..=37).contains(&steps), "{steps} steps in a minute");
}

#[tokio::test(start_paused = true)]
async fn those_that_were_ready_before_keep_their_share() {
    let mut tracker = Tracker::new("here");
    tracker.apply([
        slow("web"),
        pods("s", "web", &[(1, "a", true), (2, "b", true)]),
    ]);
    let ejected = |endpoints: &[([u8; 4], u16)]| {
        Event::Ejected(Ejected {
            service: service_name("web"),
            endpoints: endpoints.iter().map(|one| SocketAddr::from(*one)).collect(),
        })
    };
    for (what, events) in [
        (
            "another slice",
            vec![
                pods("t", "web", &[(2, "b", true)]),
                pods("s", "web", &[(1, "a", true)]),
            ],
        ),
        ("another address", vec![pods("t", "web", &[(3, "b", true)])]),
        (
            "ejected and back",
            vec![ejected(&[([10, 1, 0, 3], 8080)]), ejected(&[])],
        ),
        ("the Service is written again", vec![slow("web")]),
    ] {
        tracker.apply(events);
        assert_eq!(shares(&tracker, "web"), [WHOLE, WHOLE], "{what}");
    }
    // All pods are replaced at once.
    tracker.apply([
        pods("s", "web", &[(4, "c", true)]),
        pods("t", "web", &[(5, "d", true)]),
    ]);
    assert_eq!(shares(&tracker, "web"), [WHOLE, WHOLE]);
    assert!(is_at_rest(&tracker).await);
    // One that was not ready starts slowly; one without a pod is known by its address.
    tracker.apply([pods("s", "web", &[(4, "c", false)])]);
    tracker.apply([pods("s", "web", &[(4, "c", true)])]);
    assert_eq!(shares(&tracker, "web"), [4, WHOLE]);
    tracker.apply([slice("u", "web", "port: 8080", "{addresses: [10.1.0.6]}")]);
    assert_eq!(shares(&tracker, "web"), [4, WHOLE, 4]);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_kept_of_services_without_slow_start() {
    let mut tracker = Tracker::new("here");
    let service = || service("web", "ports: [{port: 80}]");
    tracker.apply([service(), pods("s", "web", &[(1, "a", true)])]);
    tracker.apply([pods("s", "web", &[(1, "a", true), (2, "b", true)])]);
    assert_eq!(shares(&tracker, "web"), [1, 1]);
    // Those that are there when the annotation comes are not new.
    tracker.apply([slow("web")]);
    assert_eq!(shares(&tracker, "web"), [WHOLE, WHOLE]);
    tracker.apply([pods("s", "web", &[(1, "a", true), (3, "c", true)])]);
    assert_eq!(shares(&tracker, "web"), [WHOLE, 4]);
    tracker.apply([service()]);
    assert_eq!(shares(&tracker, "web"), [1, 1]);
    assert!(is_at_rest(&tracker).await);
    tracker.apply([slow("web")]);
    tracker.apply([
        Event::Gone(ObjectName::Service(service_name("web"))),
        slice_gone("s"),
    ]);
    assert!(tracker.slow_starts.is_empty());
}
