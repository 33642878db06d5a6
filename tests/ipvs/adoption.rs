//! A restart finds everything in place, and nobody notices.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

use super::{node, recorded::State};
use crate::lab::{Capture, Lab, Service, Share, ask, eventually, figure, run, say, tcp};

#[test]
#[ignore = "for a guest kernel with IPVS"]
fn restarts_and_rolling_replacements_fail_no_request() {
    let name = concat!(
        module_path!(),
        "::restarts_and_rolling_replacements_fail_no_request"
    );
    run(name, Share::Alone, || {
        let mut lab = Lab::new(Capture::Redirect);
        lab.three_backends();
        let service = Service::new("web", 1).with_external_ip();
        let at = service.cluster()[0];
        lab.publish(&service, &["a", "b"]);
        let mut tripod = node::start(&lab, &[]);
        let (stop, asked) = (AtomicBool::new(false), AtomicUsize::new(0));
        let lab = &lab;
        // A failed assertion must not leave the others calling for ever.
        let end = Stop(&stop);
        std::thread::scope(|scope| {
            let end = end;
            let short = scope.spawn(|| {
                let mut failed = Vec::new();
                while !stop.load(Relaxed) {
                    for (from, to) in [(&lab.node, at), (&lab.outside, service.external()[0])] {
                        failed.extend(ask(from, to).err().map(|e| e.to_string()));
                        asked.fetch_add(1, Relaxed);
                    }
                }
                failed
            });
            let kept = scope.spawn(|| {
                let mut stream = tcp(&lab.outside, service.external()[0]).expect("a connection");
                let first = say(&mut stream, "name").expect("an answer");
                while !stop.load(Relaxed) {
                    assert_eq!(say(&mut stream, "name").expect("an answer"), first);
                    std::thread::sleep(Duration::from_millis(5));
                }
            });
            let some = |n: usize| {
                let goal = asked.load(Relaxed) + n;
                eventually("more requests", Duration::from_secs(30), || {
                    let now = asked.load(Relaxed);
                    if now >= goal {
                        Ok(())
                    } else {
                        Err(format!("{now} of {goal}"))
                    }
                });
            };
            some(20);
            let before = State::of(&lab.node);
            tripod.kill();
            some(20);
            tripod = node::start(lab, &[]);
            some(20);
            let found = before.differences(&State::of(&lab.node));
            assert!(found.is_empty(), "{}", found.join("\n"));
            for endpoints in [["b", "c"], ["c", "a"], ["a", "b"]] {
                lab.publish(&service, &endpoints);
                some(30);
            }
            assert_eq!(tripod.terminate().code(), Some(0));
            some(20);
            tripod = node::start(lab, &[]);
            some(20);
            drop(end);
            assert_eq!(short.join().expect("requests"), Vec::<String>::new());
            kept.join().expect("a connection that goes on");
        });
        assert_eq!(tripod.said(&["repaired"]), 0, "{}", tripod.log());
        figure("requests during restarts", asked.load(Relaxed));
    });
}

/// Tells callers to stop when it is dropped.
pub struct Stop<'a>(pub &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}
