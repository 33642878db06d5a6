//! Compares our picks with those of the kernel's IPVS, recorded on Linux 6.1: UDP services, one
//! packet from each client, then `ipvsadm -Lcn`. Each letter is the index of the real server that
//! got the client, `-` a client dropped because its server had weight 0 (without `sh-fallback` and
//! `mh-fallback`, which our schedulers always apply). Real server i is 10.0.0.1:(i + 1), as in
//! `tests`.
//!
//! ipvsadm puts a new real server before the older ones, so the last was added first.

use std::sync::atomic::Ordering::Relaxed;

use super::*;

/// Returns a scheduler whose set grew one by one, as in the recording.
fn grown(name: SchedulerName, servers: &[RealServer]) -> Box<dyn Scheduler> {
    let none = build(name, &[], None, Seed::default());
    (0..servers.len()).rev().fold(none, |previous, first| {
        let before = &servers[first + 1..];
        build(
            name,
            &servers[first..],
            Some((&*previous, before)),
            Seed::default(),
        )
    })
}

#[track_caller]
fn assert_picks(
    scheduler: &dyn Scheduler,
    servers: &[RealServer],
    flows: impl Iterator<Item = Flow>,
    recorded: &str,
) {
    for ((i, flow), kernel) in flows.enumerate().zip(recorded.chars()) {
        let picked = scheduler
            .pick(Candidates::new(servers, &|_| false), &flow)
            .unwrap();
        if let Some(kernel) = kernel.to_digit(10) {
            assert_eq!(picked, kernel as usize, "flow {i} of {recorded}");
        }
        // IPVS counts connections of UDP as inactive.
        servers[picked].load.inactive.fetch_add(1, Relaxed);
    }
}

#[test]
fn same_picks_as_the_kernel_for_each_client() {
    #[rustfmt::skip]
    let recorded: &[(&str, &[u32], &str)] = &[
        ("rr", &[1, 1, 1], "012012012012012012012012"),
        ("rr", &[300, 100], "010101010101010101010101"),
        ("rr", &[1, 0, 2, 0, 1], "024024024024024024024024"),
        ("wrr", &[1, 1, 1], "012012012012012012012012"),
        ("wrr", &[3, 1], "010001000100010001000100"),
        ("wrr", &[4, 3, 2], "012001012012001012012001"),
        ("wrr", &[1, 3], "011101110111011101110111"),
        ("wrr", &[300, 100], "010001000100010001000100"),
        ("wrr", &[1, 0, 2, 0, 1], "024202420242024202420242"),
        ("lc", &[3, 1], "0101010101010101"),
        ("wlc", &[3, 1], "0100010001000100"),
        ("sed", &[3, 1], "0000000000000000"),
        ("nq", &[3, 1], "0000000000000000"),
        ("dh", &[1, 1, 1], "11111111"),
        ("sh", &[1, 1, 1], "021101012101202110202210100212020201010121212020201022121002021102012101212110202210101212020201"),
        ("sh", &[3, 1], "000010100000010100000010100000010100000010100000010100000010101000010101000010101000000101000000"),
        ("sh", &[2, 0, 1, 5], "33333003-003-33333303-00323333330320032033333032-032-33333032-032-33333033-032-33333003-032-3303"),
        ("sh", &[1; 9], "654761072104265476508210436548650831043154875083204325487608321432648761872143265876107215326507"),
        ("mh", &[1, 1, 1], "100102211200020212010212222022212222002012112120200210000211022222201221020000110210000112200111"),
        ("mh", &[3, 1], "100000011000000000010000100000010000000010110100000000000011000000001001000000010110000000000010"),
        ("mh", &[2, 0, 1, 5], "300302333300330233030232220323333333333033233233330233330333333323200323330030330233030302333333"),
        ("mh", &[1; 9], "800102514877887247618552248424413774582684134633484253806643538226206865837555515537666362264514"),
        ("mh", &[70, 700, 300], "110102111211120211211212122121112111112211112111211211101211112222211221120111111111111112111111"),
    ];
    for &(name, weights, picks) in recorded {
        let servers = servers(weights);
        let scheduler = grown(name.parse().unwrap(), &servers);
        assert_picks(&*scheduler, &servers, (0..).map(flow), picks);
    }
}

#[test]
fn a_seeded_start_is_somewhere_in_the_kernels_cycle() {
    for (name, weights, picks) in [
        ("rr", &[1, 1, 1][..], "012012012012012012012012"),
        ("rr", &[1, 0, 2, 0, 1], "024024024024024024024024"),
        ("wrr", &[3, 1], "010001000100010001000100"),
        ("wrr", &[4, 3, 2], "012001012012001012012001"),
        ("wrr", &[1, 0, 2, 0, 1], "024202420242024202420242"),
    ] {
        let servers = servers(weights);
        let mut firsts = std::collections::BTreeSet::new();
        for node in 0..50 {
            let seed = Seed::of(&format!("node-{node}"), "default/web");
            let scheduler = build(name.parse().unwrap(), &servers, None, seed);
            let sequence = sequence(&*scheduler, &servers, 12);
            let text: String = sequence.iter().map(ToString::to_string).collect();
            assert!(picks.contains(&text), "{name} {weights:?}: {text}");
            firsts.insert(sequence[0]);
        }
        let weighted = weights.iter().filter(|w| **w > 0).count();
        assert_eq!(firsts.len(), weighted, "{name} {weights:?}");
    }
}

#[test]
fn same_picks_as_the_kernel_after_a_server_was_drained() {
    let before = servers(&[2, 1, 3]);
    let after = servers(&[2, 1, 0]);
    let scheduler = grown(SchedulerName::Mh, &before);
    let scheduler = build(
        SchedulerName::Mh,
        &after,
        Some((&*scheduler, &before)),
        Seed::default(),
    );
    assert_picks(
        &*scheduler,
        &after,
        (0..).map(flow),
        "-0010--1--00--0-1-010------0---1----00-0--11-----00--0000-1-0------01---0-0000-10---00001--00-11",
    );
}

#[test]
fn same_picks_as_the_kernel_for_each_destination() {
    let servers = servers(&[1, 1, 1]);
    let dh = build(SchedulerName::Dh, &servers, None, Seed::default());
    let destinations = (0..24u8).map(|i| Flow {
        destination: [10, 96, i * 7, i * 11 + 1].into(),
        ..flow(1)
    });
    assert_picks(&*dh, &servers, destinations, "112001220011200122001220");
}

#[test]
fn same_picks_as_the_kernel_for_ipv6_clients() {
    for (name, picks) in [
        ("sh", "22221221000000022222111110021111"),
        ("mh", "20211211110210010110102012212021"),
    ] {
        let mut servers = servers(&[1, 1, 1]);
        for server in &mut servers {
            server.address.set_ip("fd00:10::1".parse().unwrap());
        }
        let scheduler = build(name.parse().unwrap(), &servers, None, Seed::default());
        let clients = (0..32u16).map(|i| Flow {
            client: SocketAddr::from(([0xfd00, 0x172, i + 1, 0, 0, 0, 0, i * 5], 40_000)),
            destination: "fd00:96::1".parse().unwrap(),
        });
        assert_picks(&*scheduler, &servers, clients, picks);
    }
}
