//! Properties of every plan.

use std::collections::HashSet;

use net::{Family, Protocol};
use proptest::prelude::*;
use xtables::{
    desired::Chain,
    extension::Extension,
    features::Features,
    rule::{Match, Rule, Table, Target},
};

use super::{
    walk::Ruleset,
    world::{endpoints, exposed, net, options, service},
};
use crate::{
    modes::iptables::plan::{Dispatch, Options, fixed, names, plan},
    services::{NameParts, ServiceName, ServicePort, TrafficPolicy},
};

/// Longest name of a chain: `XT_EXTENSION_MAXNAMELEN` of
/// `linux/netfilter/x_tables.h` is 29 with the terminating zero.
const LONGEST: usize = 28;

fn any_features() -> impl Strategy<Value = Features> {
    use Extension::{Addrtype, Comment, Conntrack, Nfacct, RandomFully, Recent, Reject, Statistic};
    let optional = vec![
        Comment,
        Statistic,
        Recent,
        Addrtype,
        Conntrack,
        Nfacct,
        Reject,
        RandomFully,
    ];
    let gone = prop::sample::subsequence(optional, 0..=8);
    gone.prop_map(|gone| Features::all() - gone.iter().copied().collect::<Features>())
}

fn any_options() -> impl Strategy<Value = Options> {
    let switches = prop::array::uniform6(prop::bool::ANY);
    (any_features(), switches).prop_map(|(features, [a, b, c, d, e, f])| Options {
        features,
        masquerade_all: a,
        localhost_node_ports: b,
        tcp_be_liberal: c,
        large_cluster: d,
        dispatch: if e {
            Dispatch::Indexed
        } else {
            Dispatch::Linear
        },
        undivided: if f { 1 } else { 2 },
        ..options()
    })
}

fn busy() -> ServicePort {
    ServicePort {
        session_affinity: Some(std::time::Duration::from_secs(10800)),
        load_balancer_source_ranges: [net("192.0.2.0/24")].into(),
        health_check_node_port: Some(31_000),
        external_traffic_policy: TrafficPolicy::Local,
        endpoints: endpoints(&[("10.244.0.6:80", true, 1), ("10.244.1.7:80", false, 2)]),
        ..exposed("busy")
    }
}

fn uses(rule: &Rule) -> Vec<Extension> {
    let matches = rule.matches.iter().filter_map(|one| match one {
        Match::Comment(_) => Some(Extension::Comment),
        Match::Probability(_) => Some(Extension::Statistic),
        Match::RecentlySeen { .. } | Match::RememberSource(_) => Some(Extension::Recent),
        Match::LocalAddress(_) => Some(Extension::Addrtype),
        Match::ConnectionState(_) => Some(Extension::Conntrack),
        Match::Account(_) => Some(Extension::Nfacct),
        _ => None,
    });
    let target = match &rule.target {
        Some(Target::Reject) => Some(Extension::Reject),
        Some(Target::Masquerade { random_fully: true }) => Some(Extension::RandomFully),
        _ => None,
    };
    matches.chain(target).collect()
}

proptest! {
    #[test]
    fn names_fit_and_every_jump_leads_somewhere(
        name in "[a-z0-9.-]{1,253}", port in "[a-z0-9-]{0,63}", options in any_options(),
    ) {
        let mut busy = busy();
        busy.name = NameParts {
            service: ServiceName { name: name.as_str().into(), ..busy.name.service.clone() },
            ..NameParts::clone(&busy.name.of_port(&port))
        }
        .into();
        let plain = ServicePort { endpoints: busy.endpoints.clone(), ..service("plain") };
        let refused = service("refused");
        let set = Ruleset::new([&busy, &plain, &refused], &options);
        let mut jumped_to = HashSet::new();
        for ((table, chain), rules) in &set.chains {
            prop_assert!(chain.len() <= LONGEST, "{}", chain);
            for rule in rules {
                let words = rule.words(Family::V4).to_string();
                prop_assert!(!words.contains('\n'));
                if let Some(Target::Jump(to)) = &rule.target {
                    prop_assert!(set.chains.contains_key(&(*table, to.clone())), "{}", words);
                    jumped_to.insert((*table, to.clone()));
                }
            }
        }
        // No chain without a way to it, the kernel's and the canaries aside.
        for key in set.chains.keys() {
            let top = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING", names::CANARY];
            prop_assert!(top.contains(&key.1.as_str()) || jumped_to.contains(key), "{:?}", key);
        }
    }

    #[test]
    fn nothing_is_used_that_is_not_there(options in any_options()) {
        let set = Ruleset::new([&busy(), &service("refused")], &options);
        for rule in set.chains.values().flatten() {
            for used in uses(rule) {
                let words = rule.words(Family::V4);
                prop_assert!(options.features.contains(used), "{:?}: {}", used, words);
            }
        }
        let counted: HashSet<_> = set.chains.values().flatten().flat_map(|rule| &rule.matches)
            .filter_map(|one| match one { Match::Account(name) => Some(*name), _ => None })
            .collect();
        prop_assert_eq!(counted, crate::modes::iptables::plan::accounts(&options).into_iter().collect::<HashSet<_>>());
    }
}

#[test]
fn chains_come_before_those_that_jump_to_them() {
    for options in [
        options(),
        Options {
            undivided: 1,
            ..options()
        },
    ] {
        let mut known: HashSet<(Table, String)> = HashSet::new();
        let own = plan(&busy(), &options).chains;
        let fixed = fixed(&options).chains.into_iter();
        let fixed = fixed.map(|chain| {
            let rules = chain.contents.rules().to_vec();
            (chain.table, chain.name.into_owned(), rules)
        });
        let own = own
            .into_iter()
            .map(|Chain { table, name, rules }| (table, name, rules));
        for (table, name, rules) in fixed.chain(own) {
            for rule in &rules {
                if let Some(Target::Jump(to)) = &rule.target {
                    assert!(known.contains(&(table, to.clone())), "{to}");
                }
            }
            known.insert((table, name));
        }
    }
}

/// A port called `tcp` must not share chains with a protocol.
#[test]
fn ports_and_protocols_have_chains_of_their_own() {
    let mut seen = HashSet::new();
    for name in ["", "a", "b"] {
        for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
            let mut port = busy();
            port.name = port.name.of_port(name);
            port.name = port.name.over(protocol);
            for chain in plan(&port, &options()).chains {
                assert!(seen.insert(chain.name.clone()), "{}", chain.name);
            }
        }
    }
}

#[test]
fn a_large_cluster_goes_without_the_comments_that_are_many() {
    let large = Options {
        large_cluster: true,
        ..options()
    };
    for chain in plan(&busy(), &large).chains {
        let many = ["KUBE-SEP-", "KUBE-SVL-"];
        if many.iter().any(|prefix| chain.name.starts_with(prefix)) {
            for rule in &chain.rules {
                assert!(
                    !uses(rule).contains(&Extension::Comment),
                    "{}",
                    rule.words(Family::V4)
                );
            }
        } else {
            assert!(
                uses(&chain.rules[0]).contains(&Extension::Comment),
                "{}",
                chain.name
            );
        }
    }
}
