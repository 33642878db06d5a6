//! The watch's view of refusals in a run.

use std::{iter, sync::Arc};

use net::Family;
use simulated::{Call, ipset::ADD_MEMBERS, packet::Disposition};
use testing::Random;
use tokio::time::Instant;

use super::{LOAD_BALANCER, OF_IPVS, STRANGER, SUBJECT, WITHIN, load_balancer, serving, to};
use crate::{
    modes::SyncReport,
    services::{ServiceMap, ServicePort, Tracker, service_ports::port_name},
    simulation::{
        subject::{Promises, Reported, Rules},
        watch::{Sticky, Watch},
        world::{AFFINITY, Called, Caller, NODE, Probe, Spec},
    },
};

/// The number of the Service that is watched: its load balancer is at [`LOAD_BALANCER`].
const WEB: usize = 0;

/// Passes the report of a sync of IPv4 to `watch`, up to the change `version`.
fn is_reported(watch: &mut Watch, version: u64, report: &SyncReport, failed: Option<usize>) {
    let reported = Reported {
        version,
        failed: &failed.into_iter().collect(),
        removals: SUBJECT.removals(&report.unfinished),
        is_finished: report.unfinished.is_empty(),
    };
    watch.in_force(Family::V4, &reported);
}

/// Makes `spec` the desired version of the watched Service from the change `version` on. Returns
/// the Services that must now be served.
fn is_to_be(watch: &mut Watch, tracker: &mut Tracker, version: u64, spec: &Spec) -> ServiceMap {
    tracker.apply(spec.events());
    watch.desire(WEB, version, Some(Arc::new(spec.clone())));
    tracker.map().clone()
}

/// A virtual server that could not be deleted is not reported for any Service. When the Service has
/// its address again, the next refusal is reported for it: then nothing else is unfinished, and the
/// old endpoint is still called.
#[test]
fn what_an_earlier_service_left_may_be_open_until_the_one_that_failed_is_in_force() {
    serving(&load_balancer(&[1], &[]), async |node| {
        let mut watch = Watch::new(0, Box::new(SUBJECT));
        let mut random = Random::new(0);
        let mut is_to_be = |watch: &mut Watch, version| {
            let spec = Arc::new(Spec::random(WEB, &mut random));
            watch.desire(WEB, version, Some(spec));
        };
        let comes_in_force = |watch: &mut Watch, version, report: &SyncReport| {
            let web = report.failed.contains_key(&port_name("web"));
            is_reported(watch, version, report, web.then_some(WEB));
            (web, watch.histories[WEB].left.is_empty())
        };
        is_to_be(&mut watch, 0);
        watch.goes_wrong();

        let without_address = |port: &Arc<ServicePort>| {
            let mut port = ServicePort::clone(port);
            if port.name == port_name("web") {
                port.load_balancer_ips = [].into();
            }
            port
        };
        let before = load_balancer(&[1], &[]);
        let now = before.iter().map(without_address).collect();
        is_to_be(&mut watch, 1);
        node.refuse(OF_IPVS, 1);
        let report = node.report(&now, false).await;
        assert_eq!(comes_in_force(&mut watch, 1, &report), (false, false));

        let now = load_balancer(&[], &[]);
        is_to_be(&mut watch, 2);
        node.refuse(OF_IPVS, 1);
        let report = node.report(&now, false).await;
        assert_eq!(node.call(WITHIN, LOAD_BALANCER), [to(1)]);
        assert_eq!(comes_in_force(&mut watch, 2, &report), (true, false));

        let report = node.report(&now, false).await;
        assert_ne!(node.call(WITHIN, LOAD_BALANCER), [to(1)]);
        assert_eq!(comes_in_force(&mut watch, 2, &report), (false, true));
    });
}

/// A virtual server that could not be deleted is open when the next Service gets its address. A
/// full sync, or another process, does not know that the source ranges of that Service are new:
/// while their rules cannot be written, callers that the earlier Service let in reach the
/// endpoints of the new one.
#[test]
fn whom_an_earlier_service_let_in_gets_the_endpoints_of_the_next_while_rules_are_refused() {
    let mut random = Random::new(0);
    let to_caller = |spec: &Spec, caller| {
        let all = spec.reachable(Called::LoadBalancer, caller, SUBJECT.external_policy());
        all.into_iter().map(Disposition::Passes).collect::<Vec<_>>()
    };
    let to_stranger = |spec: &Spec| to_caller(spec, Caller::Stranger);
    let mut of_random = |is_one: &dyn Fn(&Spec) -> bool| {
        let mut all = iter::repeat_with(|| Spec::random(WEB, &mut random));
        all.find(is_one).expect("there is always another one")
    };
    let earlier = of_random(&|spec| !to_stranger(spec).is_empty() && !spec.has_ranges());
    let last = of_random(&|spec| {
        let to_those_within = to_caller(spec, Caller::Outside);
        let mut before = to_stranger(&earlier).into_iter();
        let are_new = !before.any(|to| to_those_within.contains(&to));
        !to_those_within.is_empty() && are_new && to_stranger(spec).is_empty()
    });
    let mut all = iter::repeat_with(|| earlier.changed(&mut random));
    let without_address = all
        .find(|spec| !spec.has_address(Called::LoadBalancer))
        .expect("there is always another one");
    serving(&ServiceMap::default(), async |node| {
        let mut watch = Watch::new(0, Box::new(SUBJECT));
        watch.goes_wrong();
        let mut tracker = Tracker::new(NODE);
        let now = is_to_be(&mut watch, &mut tracker, 1, &earlier);
        let report = node.report(&now, false).await;
        is_reported(&mut watch, 1, &report, None);
        assert_eq!(node.call(STRANGER, LOAD_BALANCER), to_stranger(&earlier));

        let now = is_to_be(&mut watch, &mut tracker, 2, &without_address);
        node.refuse(OF_IPVS, 1);
        let report = node.report(&now, false).await;
        is_reported(&mut watch, 2, &report, None);

        let now = is_to_be(&mut watch, &mut tracker, 3, &last);
        let writes_rules = |call| matches!(call, Call::Restore(Family::V4));
        node.refusing.refuse(writes_rules, 0, usize::MAX);
        for (full, of) in [(false, &earlier), (true, &last)] {
            let report = node.report(&now, full).await;
            assert!(!report.failed.is_empty());
            is_reported(&mut watch, 3, &report, Some(WEB));
            let may = to_caller(of, Caller::Outside);
            assert_eq!(node.call(STRANGER, LOAD_BALANCER), may);
            node.kernel
                .change(|state| watch.check(state, &[Family::V4]));
        }
    });
}

/// A client that stays on its endpoint is dropped while the kernel refuses the source range that
/// contains it, like others in that range, and is back on that endpoint afterwards.
#[test]
fn a_client_with_affinity_is_dropped_while_its_source_range_is_refused() {
    let mut random = Random::new(0);
    let reached = |spec: &Spec, caller| {
        spec.reachable(Called::LoadBalancer, caller, SUBJECT.external_policy())
    };
    let earlier = iter::repeat_with(|| Spec::random(WEB, &mut random))
        .find(|spec| {
            spec.has_affinity() && !spec.has_ranges() && reached(spec, Caller::Stranger).len() == 1
        })
        .expect("there is always another one");
    // The Service gets one source range.
    let last = iter::repeat_with(|| earlier.changed(&mut random))
        .find(|spec| spec.has_ranges() && reached(spec, Caller::Outside).is_empty())
        .expect("there is always another one");
    let on = reached(&last, Caller::Stranger)[0];
    serving(&ServiceMap::default(), async |node| {
        let mut watch = Watch::new(0, Box::new(SUBJECT));
        let mut tracker = Tracker::new(NODE);
        let now = is_to_be(&mut watch, &mut tracker, 1, &earlier);
        let report = node.report(&now, false).await;
        is_reported(&mut watch, 1, &report, None);
        let is_one = |probe: &&Probe| {
            (probe.service, probe.called, probe.caller)
                == (WEB, Called::LoadBalancer, Caller::Stranger)
        };
        let probe = watch.probes.iter().find(is_one).expect("it is watched");
        watch.sticky.push(Sticky {
            probe: probe.clone(),
            on,
            until: Instant::now() + AFFINITY,
        });

        let now = is_to_be(&mut watch, &mut tracker, 2, &last);
        // If a list of members is refused, they are requested one by one.
        for (refused, becomes) in [(2, Disposition::Dropped), (0, Disposition::Passes(on))] {
            node.refuse(ADD_MEMBERS, refused);
            *watch.lacks_members.get_mut(Family::V4) = refused > 0;
            let report = node.report(&now, false).await;
            assert_eq!(node.call(STRANGER, LOAD_BALANCER), [becomes]);
            node.kernel
                .change(|state| watch.check(state, &[Family::V4]));
            let failed = (!report.failed.is_empty()).then_some(WEB);
            assert_eq!(failed.is_some(), refused > 0);
        }
    });
}
