//! Folding events into the service map, counted in instructions.

use crate::tests::instructions::{CHANGES, REPEATED, SERVICES, counted};

use super::*;

fn trackers() -> Vec<Tracker> {
    (0..REPEATED).map(|_| Tracker::new("node")).collect()
}

fn objects(number: u32) -> [Event; 2] {
    let name = format!("service-{number}");
    let (high, low) = (number / 250, number % 250 + 1);
    let service: wire::Service = yaml(&format!(
        "{{metadata: {{name: {name}}}, spec: {{clusterIP: 10.96.{high}.{low}, \
         ports: [{{port: 80, targetPort: 8080}}]}}}}"
    ));
    let reduced = Service::reduce(&service, &mut Names::default()).expect("good Service");
    [
        Event::Changed(Object::Service(Arc::new(reduced.object))),
        endpoints(number, 0),
    ]
}

fn endpoints(number: u32, version: u32) -> Event {
    let name = format!("service-{number}");
    let all = (0..5).map(|at| {
        let last = if at == 0 { version } else { 200 + at };
        format!(
            "{{addresses: [10.244.{number}.{}], conditions: {{ready: true}}}}",
            last + 1
        )
    });
    let all = all.collect::<Vec<_>>().join(", ");
    slice(&name, &name, "port: 8080", &all)
}

#[test]
fn fold_first() {
    let events: Vec<Event> = (0..SERVICES).flat_map(objects).collect();
    let mut trackers = trackers();
    let folded = counted(|| {
        let each = trackers
            .iter_mut()
            .map(|tracker| tracker.apply(events.iter().cloned()));
        each.map(|changes| changes.ports.len()).sum::<usize>()
    });
    assert_eq!(folded, REPEATED * SERVICES as usize);
}

#[test]
fn fold_changes() {
    let mut trackers = trackers();
    for tracker in &mut trackers {
        tracker.apply((0..SERVICES).flat_map(objects));
    }
    let events: Vec<Event> = (0..CHANGES).map(|number| endpoints(number, 1)).collect();
    let changed = counted(|| {
        let each = trackers.iter_mut().map(|tracker| {
            let each = events.iter().map(|event| tracker.apply([event.clone()]));
            each.map(|changes| changes.ports.len()).sum::<usize>()
        });
        each.sum::<usize>()
    });
    assert_eq!(changed, REPEATED * CHANGES as usize);
}
