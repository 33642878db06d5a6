//! The log of objects that are odd for a moment, and for longer.

use std::time::Duration;

use tokio::time::advance;

use super::*;
use crate::log::lines;

const MOMENT: Duration = Duration::from_secs(2);

/// Waits until the next check, and returns the lines that it logs.
async fn logged(tracker: &mut Tracker) -> Vec<String> {
    tracker.oddities_last().await;
    lines(0, || tracker.log_lasting())
}

#[tokio::test(start_paused = true)]
async fn a_service_that_comes_and_goes_is_not_logged() {
    let mut tracker = Tracker::new("here");
    let steps = [
        service("web", "ports: [{port: 80}]"),
        slice("w", "web", "port: 80", "{addresses: [10.1.0.1]}"),
        Event::Gone(ObjectName::Service(service_name("web"))),
        slice_gone("w"),
    ];
    for event in steps {
        let log = lines(0, || _ = tracker.apply([event]));
        assert_eq!(log, [""; 0]);
        advance(MOMENT).await;
    }
    assert_eq!(logged(&mut tracker).await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn what_lasts_is_logged_once_with_a_count() {
    let mut tracker = Tracker::new("here");
    let names: Vec<String> = (0..8).map(|i| format!("web-{i}")).collect();
    let ports = "ports: [{port: 80}]";
    let events = names.iter().map(|name| service(name, ports));
    let log = lines(0, || _ = tracker.apply(events.collect::<Vec<_>>()));
    assert_eq!(log, [""; 0]);
    let log = logged(&mut tracker).await;
    assert_eq!(log.len(), 1, "{log:#?}");
    assert!(
        log[0].contains("8 Services have no endpoints: "),
        "{log:#?}"
    );
    assert!(log[0].contains("default/web-4, and 3 more"), "{log:#?}");
    // There is no further check.
    let again = tokio::time::timeout(Duration::from_secs(600), tracker.oddities_last());
    assert!(again.await.is_err());
}

#[tokio::test(start_paused = true)]
async fn one_that_lasts_is_named_as_before() {
    let mut tracker = Tracker::new("here");
    tracker.apply([slice("w", "web", "port: 80", "{addresses: [10.1.0.1]}")]);
    let log = logged(&mut tracker).await;
    assert_eq!(log.len(), 1, "{log:#?}");
    assert!(log[0].contains("EndpointSlice default/w is not used: its Service default/web"));
}
