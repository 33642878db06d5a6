//! Changes of our chains are counted, those of others are not.

use testing::{in_namespace, sh};

use super::*;

const CHAINS: Chains = Chains {
    family: Family::V4,
    interest,
};

fn interest(_: Table, chain: &str) -> Interest {
    if chain.starts_with("KUBE-") {
        Interest::Whole
    } else {
        Interest::Foreign
    }
}

fn changed(table: &str, chain: &str, leads_to: Option<&[&str]>) -> Event {
    Event::Changed(ChangedChain {
        family: Some(Family::V4),
        table: table.to_owned(),
        chain: chain.to_owned(),
        leads_to: leads_to.map(|chains| chains.iter().map(|chain| (*chain).into()).collect()),
    })
}

/// Counts `events` after generation 7, and returns how many generations changed
/// something, whether all up to `generation` is counted, and how often some were missed.
fn counted(generation: u32, events: impl IntoIterator<Item = Event>) -> (u32, bool, u32) {
    let mut record = Record::default();
    record.count(7);
    for event in events {
        record.take_in(event, &CHAINS);
    }
    let count = record.count(generation);
    (count.changed, count.is_complete, count.missed)
}

#[test]
fn generations_that_change_ours_are_counted() {
    let ours = || changed("nat", "KUBE-SERVICES", Some(&[]));
    let events = [
        changed("nat", "POSTROUTING", Some(&["DOCKER"])),
        Event::Generation(8),
        ours(),
        ours(),
        Event::Generation(9),
        changed("filter", "INPUT", Some(&["KUBE-FIREWALL"])),
        Event::Generation(10),
        changed("mangle", "INPUT", None),
        Event::Generation(11),
    ];
    assert_eq!(counted(11, events), (3, true, 0));
    assert_eq!(counted(8, [ours()]), (0, false, 0), "it is just being made");
    let foreign = [changed("firewalld", "KUBE-X", None), Event::Generation(8)];
    assert_eq!(counted(8, foreign), (0, true, 0), "no table of iptables");
}

#[test]
fn what_was_counted_before_is_not_counted_again() {
    let ours = changed("nat", "KUBE-SERVICES", Some(&[]));
    let events = [ours, Event::Generation(7), Event::Generation(8)];
    assert_eq!(counted(8, events), (0, true, 0));
}

#[test]
fn a_generation_that_is_left_out_was_missed() {
    assert_eq!(counted(9, [Event::Generation(9)]), (0, true, 1));
}

/// Returns how many generations a change by another process is counted as, and how often
/// some were missed.
fn counts_of(watcher: &mut ChainWatcher, change: &str) -> (u32, u32) {
    let before = watcher.count().unwrap();
    sh(change);
    let now = watcher.count().unwrap();
    assert!(now.is_complete, "{change}");
    let of_all = now.generation.wrapping_sub(before.generation);
    assert!(of_all > 0, "{change} changes nothing");
    (now.changed - before.changed, now.missed - before.missed)
}

#[test]
fn the_kernel_notifies_of_what_others_change_of_ours() {
    in_namespace(|| {
        sh("iptables-nft -t nat -N KUBE-SERVICES
            iptables-nft -t nat -N DOCKER
            iptables-nft -t nat -A KUBE-SERVICES -j RETURN
            iptables-nft -t nat -A PREROUTING -j DOCKER
            iptables-nft -t nat -A PREROUTING -j KUBE-SERVICES
            ip6tables-nft -t nat -N KUBE-SERVICES");
        let mut watcher = ChainWatcher::open(Family::V4, interest).unwrap();
        for change in [
            "iptables-nft -t nat -R KUBE-SERVICES 1 -j ACCEPT",
            "iptables-nft -t nat -D PREROUTING -j KUBE-SERVICES",
            "iptables-nft -t nat -A DOCKER -j KUBE-SERVICES",
            "iptables-nft -t nat -F DOCKER",
            "iptables-nft -t nat -F KUBE-SERVICES",
            "iptables-nft -t nat -X KUBE-SERVICES",
            "iptables-nft -N KUBE-FORWARD",
            "nft delete chain ip filter KUBE-FORWARD",
            "iptables-nft -t nat -N KUBE-SERVICES",
            "nft flush ruleset",
        ] {
            assert_eq!(counts_of(&mut watcher, change), (1, 0), "{change}");
        }
        sh("ip6tables-nft -t nat -N KUBE-SERVICES");
        for change in [
            "ip6tables-nft -t nat -A KUBE-SERVICES -j RETURN",
            "iptables-nft -t nat -N DOCKER",
            "iptables-nft -t nat -A PREROUTING -s 192.0.2.1 -j DOCKER",
            "iptables-nft -t nat -A POSTROUTING -s 192.0.2.0/24 -j MASQUERADE",
            "iptables-nft -t nat -F",
            "nft add table ip other; nft add chain ip other KUBE-SERVICES",
            "nft add table inet nat; nft add chain inet nat KUBE-SERVICES",
        ] {
            assert_eq!(counts_of(&mut watcher, change), (0, 0), "{change}");
        }
    });
}

#[test]
fn what_is_not_received_counts_as_missed() {
    in_namespace(|| {
        let mut watcher = ChainWatcher::open(Family::V4, |_, _| Interest::Whole).unwrap();
        watcher.pause();
        sh("iptables-nft -t nat -N KUBE-SERVICES");
        watcher.resume();
        assert_eq!(counts_of(&mut watcher, "iptables-nft -N X"), (1, 0));
        assert_eq!(watcher.count().unwrap().missed, 1);
        // More than the socket holds.
        let many = "(echo '*nat'; seq 40000 | sed 's/^/-A KUBE-SERVICES -m comment --comment /'; \
            echo COMMIT) | iptables-nft-restore --noflush";
        assert_eq!(counts_of(&mut watcher, many).1, 1);
        assert_eq!(counts_of(&mut watcher, "iptables-nft -N Y"), (1, 0));
    });
}
