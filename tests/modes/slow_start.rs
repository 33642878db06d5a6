//! The share of an endpoint that became ready grows (`tripod.proxy/slow-start`).

use std::{
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use super::{probe::default_mode, started};
use crate::lab::{Capture, Lab, Service, Tripod, ask, eventually, run, tripod_binary};

const SOON: Duration = Duration::from_secs(10);
const ANNOTATION: &str = "tripod.proxy/slow-start";
const CALLS: usize = 1_000;
/// Time between two looks at the shares.
const LOOK: Duration = Duration::from_millis(50);
/// In how short a time shares grow here, so that a test can wait for it.
const GROWTH: Duration = Duration::from_secs(10);

/// The modes that can run here.
fn modes() -> &'static [&'static str] {
    match default_mode() {
        "ipvs" => &["ipvs"],
        "nftables" => &["nftables", "iptables", "userspace"],
        _ => &["userspace"],
    }
}

/// Runs `test` in each mode, with a Service that has the annotation and these endpoints.
pub fn with_each_mode(
    (annotation, value): (&str, &str),
    endpoints: &[&str],
    test: impl Fn(&str, &mut Lab, &Tripod, &Service),
) {
    run(|| {
        for mode in modes() {
            let mut lab = Lab::new(Capture::Local);
            lab.add_backends(&["a", "b"]);
            let web = Service::new("web", 1).annotated(annotation, value);
            lab.publish(&web, endpoints);
            let tripod = started(&lab, mode);
            for to in web.cluster() {
                eventually("the Service", SOON, || {
                    ask(&lab.client, to).map_err(|error| error.to_string())
                });
            }
            test(mode, &mut lab, &tripod, &web);
        }
    });
}

/// Returns the share that each endpoint has of calls to the Service over IPv4, by `tripod explain`.
fn shares(lab: &Lab, web: &Service) -> Vec<f64> {
    let to = web.cluster()[0].to_string();
    let mut command = lab.node.command(tripod_binary());
    let printed = command.args(["explain", "--output=json", &to]).output();
    let printed = printed.expect("tripod explain").stdout;
    let answer: Value = serde_json::from_slice(&printed).unwrap_or_default();
    let candidates = answer["candidates"].as_array().cloned();
    let shares = candidates.unwrap_or_default().into_iter();
    shares.filter_map(|one| one["share"].as_f64()).collect()
}

#[test]
fn it_begins_with_a_tenth() {
    with_each_mode((ANNOTATION, "1h"), &["a"], |mode, lab, _, web| {
        lab.publish(web, &["a", "b"]);
        for to in web.cluster() {
            eventually("b is used", SOON, || match ask(&lab.client, to) {
                Ok(name) if name == "b" => Ok(()),
                other => Err(format!("{other:?}")),
            });
            let names = (0..CALLS).map(|_| ask(&lab.client, to).expect("an answer"));
            let of_b = names.filter(|name| name == "b").count();
            // A tenth of the weight is a share of 1/11; five standard deviations of it are 4.5 %.
            let share = of_b as f64 / CALLS as f64;
            assert!((0.045..0.137).contains(&share), "{mode}, {to}: {share}");
        }
    });
}

#[test]
fn it_grows_to_the_whole_weight() {
    let growth = format!("{}s", GROWTH.as_secs());
    with_each_mode((ANNOTATION, &growth), &["a"], |mode, lab, _, web| {
        lab.publish(web, &["a", "b"]);
        let begun = Instant::now();
        let mut seen = Vec::new();
        while begun.elapsed() < GROWTH + SOON {
            let before = begun.elapsed();
            if let [_, share] = shares(lab, web)[..] {
                seen.push((before, begun.elapsed(), share));
            }
            if seen.last().is_some_and(|(.., share)| *share >= 0.5) {
                break;
            }
            thread::sleep(LOOK);
        }
        let share_after = |time: Duration| {
            let grown = 0.1 + 0.9 * (time.as_secs_f64() / GROWTH.as_secs_f64()).min(1.0);
            grown / (1.0 + grown)
        };
        // It begins when Tripod has seen it, within a moment.
        let moment = Duration::from_millis(500);
        for (from, to, share) in &seen {
            let least = share_after(from.saturating_sub(moment)) - 0.02;
            let most = share_after(*to) + 0.02;
            assert!((least..=most).contains(share), "{mode}: {share} at {to:?}");
        }
        let last = seen.last().map(|(.., share)| *share);
        assert_eq!(last, Some(0.5), "{mode}: {seen:?}");
        assert!(seen.len() > 3, "{mode}: {seen:?}");
        let listed = lab
            .node
            .show(&format!("{} services", tripod_binary().display()));
        assert!(listed.contains(&*web.name), "{mode}: {listed}");
    });
}
