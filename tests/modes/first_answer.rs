//! How long clients wait for the first answer, as the metrics say.

use std::{net::SocketAddr, time::Duration};

use super::slow_start::with_each_mode;
use crate::lab::{Lab, Tripod, ask, eventually, get};

const SOON: Duration = Duration::from_secs(10);
/// A Service needs an annotation here that changes nothing.
const ANNOTATION: (&str, &str) = ("tripod.proxy/weight", "1");

/// Reads the metrics, after which new connections are followed. Returns the number of connections
/// over both families, and their whole time in seconds.
fn answers(lab: &Lab, mode: &str) -> (f64, f64) {
    let name = match mode {
        "userspace" => "tripod_userspace_first_answer_duration_seconds",
        _ => "tripod_first_answer_duration_seconds",
    };
    let at = SocketAddr::from(([127, 0, 0, 1], 10249));
    let metrics = get(&lab.node, at, "/metrics").expect("an answer");
    let sum = |part: &str| {
        let start = format!("{name}_{part}{{");
        let lines = metrics.lines().filter(|line| line.starts_with(&start));
        let values = lines.filter_map(|line| line.split(' ').nth(1)?.parse::<f64>().ok());
        values.sum()
    };
    (sum("count"), sum("sum"))
}

#[test]
fn connections_after_a_scrape_are_measured() {
    with_each_mode(ANNOTATION, &["a"], |mode, lab, tripod: &Tripod, web| {
        let before = answers(lab, mode).0;
        eventually("connections are followed", SOON, || {
            for to in web.cluster() {
                ask(&lab.client, to).expect("an answer");
            }
            match answers(lab, mode) {
                (count, time) if count > before && time < count => Ok(()),
                other => Err(format!("{mode}: {other:?}\n{}", tripod.log())),
            }
        });
    });
}
