//! Local ports to which rules of an ended process redirect.

use std::net::IpAddr;

use net::{Family, PerFamily};
use simulated::Call;
use xtables::Engine;

use super::{in_node, is_led, redirect::OfRedirect};
use crate::{
    modes::{Mode, userspace::Userspace},
    services::{
        Changes, ServicePort, TrafficPolicy,
        service_ports::{endpoint, endpoints, service_port},
    },
    simulation::named_cases::{Refusing, mode, on_a_node},
};

const SUBJECT: OfRedirect = OfRedirect(Engine::NfTables);
const EXTERNAL: [u8; 4] = [10, 51, 0, 1];

/// Returns a Service with an external IP whose endpoint, if it has one, is on another
/// node, so that calls of the cluster IP do not reach it.
fn web(cluster_ip: [u8; 4], endpoint_there: Option<u8>) -> ServicePort {
    let there = endpoint_there.map(|last| endpoint(([10, 244, 0, last], 80)));
    ServicePort {
        external_ips: [IpAddr::from(EXTERNAL)].into(),
        internal_traffic_policy: TrafficPolicy::Local,
        endpoints: endpoints(there),
        ..service_port("web", cluster_ip)
    }
}

/// The port of the external IP goes first to the group of both addresses, which keeps it for the
/// cluster IP when they get different endpoints.
#[test]
fn two_groups_never_have_the_same_one() {
    in_node(|| {
        let refusing = Refusing::default();
        on_a_node(SUBJECT, refusing.clone(), async |kernel, process| {
            let sync = async |mode: &mut Userspace, port: ServicePort| {
                let map = [port].into_iter().collect();
                let changes = Changes {
                    full: true,
                    ..Changes::default()
                };
                let outcomes = Mode::sync(mode, &map, PerFamily::each(|_| Some(&changes))).await;
                outcomes.v4.expect("an answer").map(|report| report.failed)
            };
            let before = sync(process, web([10, 96, 0, 9], Some(1))).await;
            assert!(before.expect("it is applied").is_empty());
            *process = mode(SUBJECT);
            let cluster_ip = [10, 96, 0, 1];
            // Only the first reading succeeds: it shows where rules redirect, and nothing more.
            refusing.refuse(|call| call == Call::Save(Family::V4), 1, usize::MAX);
            let unread = sync(process, web(cluster_ip, None)).await;
            unread.expect_err("rules cannot be read");
            refusing.stop();
            let now = sync(process, web(cluster_ip, Some(2))).await;
            assert!(now.expect("it is applied").is_empty());
            let reached = |to| is_led(&SUBJECT, kernel, to, [10, 244, 0, 2]);
            assert!(reached(EXTERNAL));
            assert!(!reached(cluster_ip));
        });
    });
}
