//! An IP family that the kernel cannot serve.

use net::{Family, Protocol};
use prometheus::Registry;
use xtables::Engine;

use super::{
    iptables::OfIptables,
    ipvs::OfIpvs,
    named_cases::{Refusing, on_a_node},
    nftables::OfNftables,
    subject::Subject,
    sync,
};
use crate::{
    kernel::probe::{Ability, NftPart},
    modes::{
        Mode,
        explain::{Caller, Packet, Verdict},
    },
    runner::metrics::Metrics,
    services::{Changes, ServiceMap, service_ports::service_port},
};

/// Syncs the mode of `subject` on a kernel that lacks `ability`, so that it cannot serve IPv6.
fn without<S: Subject>(subject: S, ability: Ability) {
    on_a_node(subject, Refusing::default(), async |_, _| {
        let metrics = Metrics::register(&Registry::new()).expect("a registry of its own");
        let mut mode = subject.mode(&subject.kernel().without(&ability), &metrics);
        let four = service_port("four", [10, 96, 0, 1]);
        let six = service_port("six", [0xfd00_u16, 0, 0, 0, 0, 0, 0, 1]);
        let changes = Changes {
            full: true,
            ..Changes::default()
        };
        for (ports, is_missed) in [(&[&four][..], false), (&[&four, &six], true)] {
            let map: ServiceMap = ports.iter().map(|port| (*port).clone()).collect();
            let reports = sync(&mut mode, &map, &changes).await;
            assert_eq!(reports.v4.not_served, None);
            let why = reports.v6.not_served;
            assert_eq!(why.is_some(), is_missed, "{why:?}");
            assert!(why.is_none_or(|why| why.contains("taken away")));
            assert!(reports.v6.failed.is_empty(), "{:?}", reports.v6.failed);
        }
        let packet = Packet {
            to: ([0xfd00_u16, 0, 0, 0, 0, 0, 0, 1], 80).into(),
            protocol: Protocol::Tcp,
            from: Caller::Pod,
        };
        let map: ServiceMap = [six].into_iter().collect();
        let explanation = mode.explain(&map, &packet).await.expect("an explanation");
        assert_eq!(explanation.verdict, Verdict::NotServed);
    });
}

#[test]
fn a_family_that_the_kernel_cannot_serve_is_reported() {
    for engine in [Engine::NfTables, Engine::Legacy] {
        without(OfIptables(engine), Ability::Nat(Family::V6));
        without(OfIpvs(engine), Ability::Nat(Family::V6));
    }
    let lacks = |part| without(OfNftables, Ability::Nftables(Family::V6, part));
    lacks(NftPart::Tables);
    lacks(NftPart::Ranges);
}
