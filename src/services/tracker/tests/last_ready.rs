//! Endpoints that stay in use when none is ready (`tripod.proxy/when-none-ready`).

use std::time::Duration;

use tokio::time::advance;

use super::*;

const MINUTES: Duration = Duration::from_secs(300);

fn service_with(annotations: &str) -> Event {
    let service: wire::Service = yaml(&format!(
        "{{metadata: {{name: web, annotations: {{{annotations}}}}}, \
         spec: {{clusterIP: 10.0.0.1, ports: [{{port: 80}}]}}}}"
    ));
    let reduced = Service::reduce(&service, &mut Names::default()).expect("good Service");
    Event::Changed(Object::Service(Arc::new(reduced.object)))
}

fn wanting() -> Event {
    service_with("tripod.proxy/when-none-ready: last")
}

/// The slice of the Service with endpoints in these states, by the last part of their address: `r`
/// is ready, `n` is not, `t` terminates and serves, `g` terminates and does not serve.
fn endpoints(states: &[(u8, char)]) -> Event {
    let endpoint = |(last, state): &(u8, char)| {
        let conditions = match state {
            'r' => "ready: true",
            'n' => "ready: false, serving: false",
            't' => "ready: false, serving: true, terminating: true",
            _ => "ready: false, serving: false, terminating: true",
        };
        format!("{{addresses: [10.1.0.{last}], conditions: {{{conditions}}}}}")
    };
    let endpoints: Vec<String> = states.iter().map(endpoint).collect();
    slice("s", "web", "port: 8080", &endpoints.join(", "))
}

/// The last parts of the addresses of endpoints in use.
fn in_use(tracker: &Tracker) -> Vec<u8> {
    let name = port_name("web", Protocol::Tcp);
    let port = tracker.map().get(&name).expect("ServicePort");
    let used = port.endpoints.usage().filter(|(_, why)| why.is_none());
    let last = used.map(|(endpoint, _)| match endpoint.address.ip() {
        IpAddr::V4(ip) => ip.octets()[3],
        IpAddr::V6(_) => 0,
    });
    last.collect()
}

#[tokio::test(start_paused = true)]
async fn they_stay_in_use_until_one_is_ready_or_the_time_is_over() {
    let mut tracker = Tracker::new("here");
    tracker.apply([wanting(), endpoints(&[(1, 'r'), (2, 'r'), (3, 'n')])]);
    assert_eq!(in_use(&tracker), [1, 2]);
    let none_is_ready = || endpoints(&[(1, 'n'), (2, 'n'), (3, 'n')]);
    tracker.apply([none_is_ready()]);
    assert_eq!(in_use(&tracker), [1, 2], "3 was not ready before");
    advance(MINUTES / 2).await;
    tracker.apply([endpoints(&[(1, 'n'), (2, 'n'), (3, 'r')])]);
    assert_eq!(in_use(&tracker), [3], "one that is ready ends it");
    tracker.apply([none_is_ready()]);
    assert_eq!(in_use(&tracker), [3], "the others ceased long ago");
    advance(MINUTES).await;
    tracker.time_passes().await;
    let changes = tracker.time_passed();
    assert_eq!(changes.ports.len(), 1);
    assert_eq!(in_use(&tracker), [0; 0]);
    let again = tokio::time::timeout(2 * MINUTES, tracker.time_passes());
    assert!(again.await.is_err(), "nothing else is due");
    tracker.apply([none_is_ready()]);
    assert_eq!(in_use(&tracker), [0; 0], "it does not begin again");
}

#[tokio::test(start_paused = true)]
async fn all_that_became_unready_within_a_minute_stay() {
    let mut tracker = Tracker::new("here");
    tracker.apply([wanting(), endpoints(&[(1, 'r'), (2, 'r'), (3, 'r')])]);
    tracker.apply([endpoints(&[(1, 'n'), (2, 'r'), (3, 'r')])]);
    advance(Duration::from_secs(70)).await;
    tracker.apply([endpoints(&[(1, 'n'), (2, 'n'), (3, 'r')])]);
    assert_eq!(in_use(&tracker), [3]);
    advance(Duration::from_secs(20)).await;
    tracker.apply([endpoints(&[(1, 'n'), (2, 'n'), (3, 'n')])]);
    assert_eq!(in_use(&tracker), [2, 3], "1 ceased 90 seconds ago");
}

#[tokio::test(start_paused = true)]
async fn those_that_end_do_not_stay() {
    let mut tracker = Tracker::new("here");
    tracker.apply([wanting(), endpoints(&[(1, 'r'), (2, 'r'), (3, 'r')])]);
    // 1 is removed; 2 is being shut down.
    tracker.apply([endpoints(&[(2, 'g'), (3, 'n')])]);
    assert_eq!(in_use(&tracker), [3]);
    // One that still serves while it is shut down is used as without the annotation.
    tracker.apply([endpoints(&[(2, 't'), (3, 'n')])]);
    assert_eq!(in_use(&tracker), [2]);
    tracker.apply([endpoints(&[(3, 'n')])]);
    assert_eq!(in_use(&tracker), [3]);
    let ejected = Event::Ejected(Ejected {
        service: service_name("web"),
        endpoints: [SocketAddr::from(([10, 1, 0, 3], 8080))].into(),
    });
    tracker.apply([endpoints(&[(3, 'n'), (4, 'r')])]);
    tracker.apply([endpoints(&[(3, 'n'), (4, 'n')])]);
    assert_eq!(in_use(&tracker), [3, 4]);
    tracker.apply([ejected]);
    assert_eq!(in_use(&tracker), [4], "3 does not answer");
    tracker.apply([
        Event::Gone(ObjectName::Service(service_name("web"))),
        slice_gone("s"),
    ]);
    assert!(tracker.last_ready.is_empty());
}

#[tokio::test(start_paused = true)]
async fn nothing_stays_without_the_annotation() {
    let mut tracker = Tracker::new("here");
    tracker.apply([service_with(""), endpoints(&[(1, 'r')])]);
    tracker.apply([endpoints(&[(1, 'n')])]);
    assert_eq!(in_use(&tracker), [0; 0]);
    // It was not seen to be ready while the Service wanted it.
    tracker.apply([wanting()]);
    assert_eq!(in_use(&tracker), [0; 0]);
    tracker.apply([endpoints(&[(1, 'r')])]);
    tracker.apply([endpoints(&[(1, 'n')])]);
    assert_eq!(in_use(&tracker), [1]);
    tracker.apply([service_with("")]);
    assert_eq!(in_use(&tracker), [0; 0]);
}

/// Over UDP it is not visible whether an endpoint answers, even if a TCP port has the same one.
#[tokio::test(start_paused = true)]
async fn over_udp_none_is_left_out() {
    let service: wire::Service = yaml(
        "{metadata: {name: web, annotations: {tripod.proxy/when-none-ready: last}}, \
         spec: {clusterIP: 10.0.0.1, ports: [{port: 80, protocol: UDP}]}}",
    );
    let reduced = Service::reduce(&service, &mut Names::default()).expect("good Service");
    let udp = |ready: bool| {
        let endpoint =
            |last| format!("{{addresses: [10.1.0.{last}], conditions: {{ready: {ready}}}}}");
        let endpoints = [1, 2].map(endpoint).join(", ");
        slice("s", "web", "port: 8080, protocol: UDP", &endpoints)
    };
    let mut tracker = Tracker::new("here");
    tracker.apply([
        Event::Changed(Object::Service(Arc::new(reduced.object))),
        udp(true),
    ]);
    tracker.apply([udp(false)]);
    tracker.apply([Event::Ejected(Ejected {
        service: service_name("web"),
        endpoints: [SocketAddr::from(([10, 1, 0, 1], 8080))].into(),
    })]);
    let port = tracker.map().iter().next().expect("one port");
    assert_eq!(port.last_ready(), 2);
    assert!(!port.is_ejecting());
    assert!(port.endpoints.usage().all(|(_, why)| why.is_none()));
}
