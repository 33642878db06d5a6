//! Reasons for a process that is asked to end to wait, where no other one takes over.

use std::time::{Duration, Instant};

use super::SOON;
use super::succession::{Open, start};
use crate::lab::{Lab, Service, eventually};

on_each_capture!(
    without_connections_a_process_ends_at_once,
    it_ends_with_its_last_connection,
);

/// Far less than the time that connections get to end.
const AT_ONCE: Duration = Duration::from_secs(5);

const PATIENT: &[&str] = &["--userspace-drain-timeout=5m"];

fn without_connections_a_process_ends_at_once(lab: &mut Lab) {
    lab.three_backends().publish_all(&Service::new("web", 10));
    let mut tripod = start(lab, 0, PATIENT);
    let asked = Instant::now();
    tripod.ask_to_end();
    assert!(tripod.ended().success());
    assert!(asked.elapsed() < AT_ONCE, "{:?}", asked.elapsed());
}

fn it_ends_with_its_last_connection(lab: &mut Lab) {
    let web = Service::new("web", 10);
    lab.three_backends().publish_all(&web);
    let mut tripod = start(lab, 0, PATIENT);
    let open = Open::to(lab, &web.cluster());
    tripod.ask_to_end();
    eventually("it waits", SOON, || {
        match tripod.logged(&["ending when all connections have ended"]) {
            0 => Err(tripod.log()),
            _ => Ok(()),
        }
    });
    // New ones are served meanwhile.
    let mut more = Open::to(lab, &web.cluster());
    drop(open);
    more.are_served("others have ended");
    let ends = Instant::now();
    drop(more);
    assert!(tripod.ended().success());
    assert!(ends.elapsed() < AT_ONCE, "{:?}", ends.elapsed());
}
