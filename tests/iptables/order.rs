//! No forbidden client gets through, and one bad Service harms no other.

use std::{net::Ipv4Addr, time::Duration};

use tripod::{
    modes::{
        cleanup::{Cleanup, Running},
        iptables,
    },
    services::{ServiceMap, ServicePort},
};

use super::rig::{Rig, hint, service, sh};
use crate::lab::{self, Capture, Lab, ask, none_gets_through};

const SERVICES: u16 = 500;
const LOAD_BALANCER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 9);

fn balanced(number: u16, allowed: &str) -> ServicePort {
    let name = format!("lb-{number}");
    let [high, low] = number.to_be_bytes();
    let endpoint = ([10, 244, 0, 11], 8080);
    ServicePort {
        load_balancer_ips: [LOAD_BALANCER.into()].into(),
        load_balancer_source_ranges: [allowed.parse().expect("a network")].into(),
        ..service(&name, [10, 96, 1 + high, low], 1000 + number, &[endpoint])
    }
}

#[test]
fn a_forbidden_client_never_gets_through() {
    lab::run(|| {
        let mut lab = Lab::new(Capture::Redirect);
        lab.add_backends(&["a"]);
        // All Services except the last exclude the host outside.
        let forbidden = (0..SERVICES).map(|number| balanced(number, "198.51.100.0/24"));
        let map: ServiceMap = forbidden
            .chain([balanced(SERVICES, "192.0.2.0/24")])
            .collect();
        // Table nat translates only for callers in the source ranges, and a Service's part of it is
        // one transaction; the filter drops untranslated packets. So the order of tables cannot
        // admit anybody; only the content of nat could.
        let forbidden = 1000..1000 + SERVICES;
        none_gets_through(&lab.outside, 4, LOAD_BALANCER, forbidden, || {
            lab.node.enter(|| {
                for _ in 0..3 {
                    let mut rig = Rig::new(&["--cluster-cidr=10.244.0.0/16"]);
                    rig.sync(None, &map);
                    let nothing = ServiceMap::default();
                    rig.sync(Some(&map), &nothing);
                    rig.sync(Some(&nothing), &map);
                }
            });
        });
        let allowed = (LOAD_BALANCER, 1000 + SERVICES);
        assert_eq!(ask(&lab.outside, allowed.into()).expect("allowed"), "a");
    });
}

#[test]
fn a_refused_service_is_named_and_harms_no_other() {
    lab::run(|| {
        for engine in super::rig::ENGINES {
            // The program refuses a number of seconds above 32 bits.
            let good = |number: u8| {
                let name = format!("good-{number}");
                service(
                    &name,
                    [10, 96, 0, number],
                    80,
                    &[([10, 244, 0, number], 80)],
                )
            };
            let bad = |seconds| ServicePort {
                session_affinity: Some(Duration::from_secs(seconds)),
                ..service("bad", [10, 96, 9, 9], 80, &[([10, 244, 9, 9], 80)])
            };
            let map: ServiceMap = (1..40).map(good).chain([bad(1 << 40)]).collect();
            hint(engine);
            let mut rig = Rig::new(&["--cluster-cidr=10.244.0.0/16"]);
            let rules = |word: &str| {
                let saved = sh(&format!("iptables-{engine}-save -t nat"));
                let of = |line: &&str| line.contains("--to-destination") && line.contains(word);
                saved.lines().filter(of).count()
            };
            let failed = |report: tripod::modes::SyncReport| -> Vec<String> {
                let failed = report.failed.iter();
                failed.map(|(name, _)| name.to_string()).collect()
            };
            assert_eq!(failed(rig.sync(None, &map)), ["default/bad"]);
            assert_eq!((rules("good"), rules("bad")), (39, 0));
            // Another good Service, while the bad one stays bad.
            let more: ServiceMap = (1..41).map(good).chain([bad(1 << 40)]).collect();
            assert_eq!(failed(rig.sync(Some(&map), &more)), ["default/bad"]);
            assert_eq!((rules("good"), rules("bad")), (40, 0));
            let better: ServiceMap = (1..41).map(good).chain([bad(10)]).collect();
            assert_eq!(failed(rig.sync(Some(&more), &better)), [""; 0]);
            assert_eq!((rules("good"), rules("bad")), (40, 1));
            rig.runtime
                .block_on(iptables::Installed.cleanup(&Running::default()))
                .expect("a clean-up");
            for program in ["iptables", "ip6tables"] {
                sh(&format!(
                    "{program}-{engine} -t mangle -X KUBE-IPTABLES-HINT"
                ));
            }
        }
    });
}
