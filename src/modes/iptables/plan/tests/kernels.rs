//! Plans for odd kernels, loaded into this one.

use std::time::Duration;

use net::Family;
use testing::{block_on, in_namespace};
use xtables::{Search, Xtables, extension::Extension, features::Features};

use super::world::{endpoints, exposed, ip, options, service};
use crate::{
    modes::iptables::{
        plan::{DetectLocal, Dispatch, Options},
        render::write_rules,
    },
    services::{ServiceMap, ServicePort, TrafficPolicy},
};

fn ports() -> ServiceMap {
    let sticky = Some(Duration::from_secs(60));
    let four = [
        ServicePort {
            endpoints: endpoints(&[("10.244.0.6:80", true, 1), ("10.244.1.7:80", false, 2)]),
            session_affinity: sticky,
            external_traffic_policy: TrafficPolicy::Local,
            ..exposed("sticky")
        },
        ServicePort {
            cluster_ip: Some(ip("10.96.0.2")),
            endpoints: endpoints(&[("10.244.0.6:80", true, 1), ("10.244.1.7:80", false, 2)]),
            ..service("spread")
        },
        ServicePort {
            cluster_ip: Some(ip("10.96.0.3")),
            ..service("empty")
        },
    ];
    let six = ServicePort {
        cluster_ip: Some(ip("fd00:10:96::1")),
        session_affinity: sticky,
        endpoints: endpoints(&[("[fd00:1::1]:80", true, 1), ("[fd00:1::2]:80", false, 2)]),
        ..service("sticky")
    };
    let mut six = [six.clone(), service("other"), six];
    six[1].cluster_ip = Some(ip("fd00:10:96::2"));
    six[1].endpoints = six[0].endpoints.clone();
    six[2].cluster_ip = Some(ip("fd00:10:96::3"));
    six[2].endpoints = endpoints(&[]);
    for (n, port) in (0..).zip(&mut six) {
        port.name = port.name.in_family(Family::V6);
        port.name = port.name.of_port(&format!("p{n}"));
    }
    four.into_iter().chain(six).collect()
}

/// The rules as they were loaded and as the kernel lists them.
async fn there_and_back(options: &Options) {
    let mut text = String::new();
    write_rules(&ports(), options, &mut text).expect("text");
    let xtables = Xtables::chosen(&Search::new(options.family))
        .await
        .expect("iptables")
        .0;
    xtables
        .restore(&text)
        .await
        .unwrap_or_else(|e| panic!("{:?}: {e}", options.features));
    let mut saved = String::new();
    for table in ["mangle", "filter", "nat"] {
        saved += &xtables.saved(table).await.expect("saved");
    }
    let rules = |text: &str| -> Vec<String> {
        let rules = text
            .lines()
            .filter_map(|line| line.strip_prefix("-A ").or(line.strip_prefix("-I ")));
        let mut rules: Vec<_> = rules.map(|rule| rule.trim_end().to_owned()).collect();
        rules.sort_unstable();
        rules
    };
    let (loaded, printed) = (rules(&text), rules(&saved));
    let different = loaded
        .iter()
        .zip(&printed)
        .find(|(loaded, printed)| loaded != printed);
    assert_eq!(different, None, "{:?}", options.features);
    assert_eq!(loaded.len(), printed.len());
}

/// The kernel takes the plans for kernels with fewer features, and prints every rule as we do.
#[test]
fn this_kernel_takes_every_plan() {
    use Extension::{Addrtype, Comment, Conntrack, Nfacct, RandomFully, Recent, Reject, Statistic};
    let cases: [&[Extension]; 6] = [
        &[],
        &[Comment],
        &[Statistic],
        &[Recent],
        &[Addrtype, Conntrack],
        &[Reject, RandomFully],
    ];
    for without in cases {
        // Counters would have to exist first.
        let features = Features::all() - Nfacct - without.iter().copied().collect::<Features>();
        for dispatch in [Dispatch::Linear, Dispatch::Indexed] {
            in_namespace(move || {
                let four = Options {
                    features,
                    dispatch,
                    ..options()
                };
                let six = Options {
                    family: Family::V6,
                    detect_local: DetectLocal::Through("cali+".to_owned()),
                    node_ip: None,
                    node_addresses: vec![ip("fd00::1")],
                    ..four.clone()
                };
                block_on(async {
                    there_and_back(&four).await;
                    there_and_back(&six).await;
                });
            });
        }
    }
}
