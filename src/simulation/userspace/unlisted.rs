//! Open frontends while the addresses of the node cannot be listed.

use net::PerFamily;
use nix::libc;
use simulated::Call;
use xtables::Engine;

use super::{in_node, local::OfLocal, redirect::OfRedirect};
use crate::{
    modes::{Mode, userspace::Userspace},
    services::{
        Changes, ServiceMap,
        service_ports::{endpoint, endpoints, service_port},
    },
    simulation::{
        named_cases::{Refusing, on_a_node},
        subject::{Rules, Subject},
    },
};

/// Returns Services with these last numbers, each of which has an endpoint.
pub(super) fn services(numbers: &[u8]) -> ServiceMap {
    let services = numbers.iter().map(|number| {
        let mut port = service_port(&format!("web-{number}"), [10, 96, 0, *number]);
        port.endpoints = endpoints([endpoint(([10, 244, 0, *number], 80))]);
        port
    });
    services.collect()
}

/// Makes `subject` serve Services, before and while the node's addresses cannot be listed.
fn serves_while_addresses_are_unlisted<S>(subject: S)
where
    S: Rules + Subject<Mode = Userspace> + Copy + Send + 'static,
{
    let refusing = Refusing::default();
    let unlist = || {
        let is_one = |call| call == Call::Dump(libc::RTM_GETADDR);
        refusing.refuse(is_one, 0, usize::MAX);
    };
    on_a_node(subject, refusing.clone(), async |kernel, mode| {
        let mut sync = async |numbers: &[u8], full| {
            let map = services(numbers);
            let changes = Changes {
                ports: map.iter().map(|port| port.name.clone()).collect(),
                full,
                retry: true,
                ..Changes::default()
            };
            let outcomes = mode.sync(&map, PerFamily::each(|_| Some(&changes))).await;
            outcomes.map(|_, outcome| outcome.expect("an answer"))
        };
        let is_led = |number: u8| {
            let cluster_ip = [10, 96, 0, number];
            super::is_led(&subject, kernel, cluster_ip, [10, 244, 0, number])
        };

        unlist();
        for (family, outcome) in sync(&[1], true).await {
            outcome.expect_err(&format!("nothing of {family} is known"));
        }
        refusing.stop();
        for (_, outcome) in sync(&[1], true).await {
            let report = outcome.expect("it is applied");
            assert_eq!((report.failed.len(), report.unfinished.len()), (0, 0));
        }
        assert!(is_led(1));

        unlist();
        for full in [true, false] {
            for (family, outcome) in sync(&[1, 2], full).await {
                let report = outcome.expect("it is applied but for node ports");
                assert_eq!(report.failed.len(), 0, "{family}");
                let [why] = &report.unfinished[..] else {
                    panic!("{family}: {:?}", report.unfinished);
                };
                assert!(why.contains("node ports stay at"), "{why}");
            }
            assert!(is_led(1) && is_led(2), "what is known stays");
        }

        refusing.stop();
        for (_, outcome) in sync(&[1, 2, 3], false).await {
            let report = outcome.expect("it is applied");
            assert_eq!((report.failed.len(), report.unfinished.len()), (0, 0));
        }
        assert!(is_led(1) && is_led(2) && is_led(3));
    });
}

#[test]
fn services_follow_under_local_capture() {
    in_node(|| serves_while_addresses_are_unlisted(OfLocal));
}

#[test]
fn services_follow_under_redirect_capture() {
    in_node(|| serves_while_addresses_are_unlisted(OfRedirect(Engine::NfTables)));
}
