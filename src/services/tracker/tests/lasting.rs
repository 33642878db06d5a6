//! Objects that miss others, which may come a moment later.

use std::time::Duration;

use super::*;

#[test]
fn objects_that_miss_others_are_odd_when_that_lasts() {
    let mut tracker = Tracker::new("here");
    let start = Instant::now();
    let mut at = |second: u64, events: Vec<Event>| -> Vec<String> {
        let now = start + Duration::from_secs(second);
        let (_, odd) = tracker.fold(events);
        tracker.log(odd, now);
        let lasting = tracker.arisen.take_lasting(now);
        lasting.iter().map(ToString::to_string).collect()
    };
    let one = || slice("s", "web", "port: 80", "{addresses: [10.1.0.1]}");
    let other = |name: &str| service(name, "ports: [{port: 80}]");
    let none = [""; 0];
    assert_eq!(at(0, vec![other("web"), other("empty")]), none);
    // Its slice comes, goes and comes again.
    assert_eq!(at(1, vec![one()]), none);
    assert_eq!(at(2, vec![slice_gone("s")]), none);
    assert_eq!(at(3, vec![one()]), none);
    assert_eq!(at(4, vec![slice_gone("s")]), none);
    let lasting = at(5, Vec::new());
    assert_eq!(lasting.len(), 1, "{lasting:?}");
    assert!(lasting[0].starts_with("Service default/empty has no endpoints"));
    assert_eq!(at(8, vec![one()]), none);
    assert_eq!(at(60, Vec::new()), none);
    // A slice that is there before its Service, and one that stays alone.
    assert_eq!(
        at(
            61,
            vec![slice("l", "late", "port: 80", "{addresses: [10.1.0.2]}")]
        ),
        none
    );
    assert_eq!(
        at(
            62,
            vec![other("late"), Event::ServiceGone(service_name("web"))]
        ),
        none
    );
    let lasting = at(67, Vec::new());
    assert_eq!(lasting.len(), 1, "{lasting:?}");
    assert!(lasting[0].starts_with("EndpointSlice default/s belongs to Service default/web"));
}
