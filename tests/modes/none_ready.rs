//! The last ready endpoints stay in use when none is ready (`tripod.proxy/when-none-ready`).

use std::{
    thread,
    time::{Duration, Instant},
};

use super::slow_start::with_each_mode;
use crate::lab::{EndpointChoice, ask_within, eventually, figure, tripod_binary};

const SOON: Duration = Duration::from_secs(10);
/// For how long no endpoint is ready although all work.
const OUTAGE: Duration = Duration::from_secs(20);
/// How long a client waits: it sends no further SYN meanwhile, which it would after a second.
const PATIENCE: Duration = Duration::from_millis(900);
/// Time until an endpoint that died is avoided: three seconds, and some for whatever else the machine
/// does meanwhile.
const AVOIDED: Duration = Duration::from_secs(10);
/// Calls in a row that have to succeed.
const CALLS: usize = 40;

#[test]
fn endpoints_that_work_are_called_as_before() {
    let annotation = ("tripod.proxy/when-none-ready", "last");
    with_each_mode(annotation, &["a", "b"], |mode, lab, tripod, web| {
        lab.publish_endpoints(web, &["a", "b"].map(EndpointChoice::unready));
        let began = Instant::now();
        let mut calls = 0_usize;
        while began.elapsed() < OUTAGE {
            for to in web.cluster() {
                let answer = ask_within(&lab.client, to, PATIENCE);
                assert!(answer.is_ok(), "{mode}: {answer:?} after {calls} calls");
                calls += 1;
            }
            thread::sleep(Duration::from_millis(10));
        }
        figure(
            &format!("{mode}: calls while none was ready, 0 failed"),
            calls,
        );
        let program = tripod_binary();
        let services = lab
            .node
            .show(&format!("{} services default/web", program.display()));
        assert!(
            services.contains("in use, as one of the last that were ready"),
            "{mode}: {services}"
        );
        let marked = tripod.metric(&lab.node, "tripod_service_ports_none_ready");
        assert!(marked >= Some(2.0), "{mode}: {marked:?}");
        // One that is ready ends it at once.
        let ready = [EndpointChoice::ready("a"), EndpointChoice::unready("b")];
        lab.publish_endpoints(web, &ready);
        eventually("a alone", SOON, || {
            for _ in 0..CALLS {
                let [v4, _] = web.cluster();
                match ask_within(&lab.client, v4, PATIENCE) {
                    Ok(name) if name == "a" => {}
                    other => return Err(format!("{other:?}")),
                }
            }
            Ok(())
        });
    });
}

#[test]
fn those_that_died_are_left_out_within_three_seconds() {
    let annotation = ("tripod.proxy/when-none-ready", "last");
    with_each_mode(annotation, &["a", "b"], |mode, lab, tripod, web| {
        lab.publish_endpoints(web, &["a", "b"].map(EndpointChoice::unready));
        eventually("they stay", SOON, || {
            match tripod.metric(&lab.node, "tripod_service_ports_none_ready") {
                Some(2.0..) => Ok(()),
                marked => Err(format!("{marked:?}")),
            }
        });
        let [v4, _] = web.cluster();
        lab.backend("a").blackhole();
        let died = Instant::now();
        let (mut since, mut row) = (died, 0);
        while row < CALLS {
            assert!(died.elapsed() < 3 * AVOIDED, "{mode}: {}", tripod.log());
            let began = Instant::now();
            match ask_within(&lab.client, v4, PATIENCE) {
                Ok(_) if row == 0 => (since, row) = (began, 1),
                Ok(_) => row += 1,
                Err(_) => row = 0,
            }
        }
        let took = since - died;
        figure(
            &format!("{mode}: the one that died is left out after"),
            format!("{took:?}"),
        );
        assert!(took < AVOIDED, "{mode}: {took:?}\n{}", tripod.log());
    });
}
