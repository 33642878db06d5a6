use ipvs::ipset::Kind;

use super::*;
use crate::kernel::probe::{Extension, NftPart};

fn requirements() -> ModeRequirements {
    ModeRequirements {
        primary: Family::V4,
        scheduler: "rr".to_owned(),
        capture: Requested::Auto,
        io: Io::Auto,
        transparent: true,
    }
}

/// A missing ability, and the mode that the default gives without it, with the word that names it.
#[test]
fn one_thing_taken_away_leads_to_the_right_mode_with_the_right_words() {
    let v4 = Family::V4;
    let set = Ability::IpSet;
    let extension = |extension| Ability::Extension(v4, extension);
    let cases: [(Ability, ModeName, &str); 9] = [
        (Ability::Ipvs, ModeName::Nftables, "IPVS"),
        (Ability::DummyLink, ModeName::Nftables, "dummy"),
        (
            set(Kind::IpPortIp),
            ModeName::Nftables,
            "ip_set_hash_ipportip",
        ),
        (extension(Extension::Set), ModeName::Nftables, "xt_set"),
        (extension(Extension::Mark), ModeName::Nftables, "xt_mark"),
        (Ability::Nat(v4), ModeName::Nftables, "iptable_nat"),
        (extension(Extension::Dnat), ModeName::Ipvs, ""),
        (extension(Extension::Comment), ModeName::Ipvs, ""),
        (Ability::Nat(Family::V6), ModeName::Ipvs, ""),
    ];
    for (gone, mode, word) in cases {
        leads_to(&[gone], mode, &[word]);
    }
}

/// Abilities that are missing in addition to IPVS.
#[test]
fn each_mode_falls_back_to_the_next() {
    let v4 = Family::V4;
    let part = |part| Ability::Nftables(v4, part);
    let extension = |extension| Ability::Extension(v4, extension);
    let no_rules = [part(NftPart::Nat), extension(Extension::Mark)];
    let no_nat = [part(NftPart::Tables), Ability::Nat(v4)];
    let cases: [(&[Ability], ModeName, &[&str]); 6] = [
        (&[part(NftPart::Tables)], ModeName::Iptables, &["nf_tables"]),
        (&[part(NftPart::Nat)], ModeName::Iptables, &["nft_nat"]),
        (&[part(NftPart::Numgen)], ModeName::Nftables, &[]),
        (&[part(NftPart::Reject)], ModeName::Nftables, &[]),
        (&no_rules, ModeName::Userspace, &["nft_nat", "xt_mark"]),
        (&no_nat, ModeName::Userspace, &["nf_tables", "iptable_nat"]),
    ];
    for (gone, mode, words) in cases {
        let gone = [&[Ability::Ipvs], gone].concat();
        leads_to(&gone, mode, &[&["ip_vs"], words].concat());
    }
}

/// Asserts that ipvs mode, asked for on a kernel with everything but `gone`, gives
/// `mode`, with `words` among its reasons.
fn leads_to(gone: &[Ability], mode: ModeName, words: &[&str]) {
    let everything = Kernel::with_everything(&["rr".to_owned()]);
    let kernel = gone
        .iter()
        .fold(everything, |kernel, gone| kernel.without(gone));
    let choice = choose(ModeName::Ipvs, &kernel, &requirements());
    assert_eq!(choice.mode, Some(mode), "without {gone:?}");
    let reasons: Vec<String> = choice.passed_over().collect();
    for word in words {
        let named = reasons.join("\n").contains(word);
        assert!(named, "without {gone:?}: no {word:?} in {reasons:?}");
    }
    let is_ipvs = mode == ModeName::Ipvs;
    assert_eq!(reasons.is_empty(), is_ipvs, "{gone:?}: {reasons:?}");
}

#[test]
fn nothing_runs_without_privileges_and_each_mode_says_why() {
    let kernel = Kernel::with_everything(&["rr".to_owned()]).without(&Ability::NetAdmin);
    let choice = choose(ModeName::Ipvs, &kernel, &requirements());
    assert_eq!(choice.mode, None);
    let reasons: Vec<String> = choice.passed_over().collect();
    assert_eq!(reasons.len(), 4);
    let names = |line: &String| line.contains("CAP_NET_ADMIN");
    assert!(reasons.iter().all(names), "{reasons:?}");
    assert!(table(&choice.verdicts).ends_with("No mode can run here.\n"));
}

#[test]
fn a_worse_mode_that_was_asked_for_is_given_even_where_a_better_one_could_run() {
    let kernel = Kernel::with_everything(&["rr".to_owned()]);
    for mode in ModeName::ALL {
        assert_eq!(choose(mode, &kernel, &requirements()).mode, Some(mode));
    }
}

/// Without an answer, the mode stays open: no worse one is chosen instead.
#[test]
fn no_mode_is_passed_over_because_of_what_is_not_known() {
    let [v4, v6] = Family::ALL;
    let all = || Kernel::with_everything(&["rr".to_owned()]);
    let cases = [
        (ModeName::Ipvs, Ability::Ipvs),
        (ModeName::Ipvs, Ability::DummyLink),
        (ModeName::Ipvs, Ability::IpSet(Kind::IpPort)),
        (ModeName::Ipvs, Ability::Nat(v4)),
        (ModeName::Ipvs, Ability::NetAdmin),
        (ModeName::Ipvs, Ability::Extension(v4, Extension::Set)),
        (ModeName::Nftables, Ability::Nftables(v4, NftPart::Tables)),
        (ModeName::Nftables, Ability::Nftables(v4, NftPart::Nat)),
        // Services of the other family would be left to no mode.
        (ModeName::Nftables, Ability::Nftables(v6, NftPart::Nat)),
        (ModeName::Iptables, Ability::Nat(v4)),
        (ModeName::Iptables, Ability::Extension(v4, Extension::Mark)),
        // Rules of the other family would be taken for another mode's.
        (ModeName::Iptables, Ability::Nat(v6)),
        (ModeName::Iptables, Ability::Sockets(v6)),
        // Capture would go another way.
        (ModeName::Userspace, Ability::Nat(v4)),
        (ModeName::Userspace, Ability::Extension(v4, Extension::Dnat)),
    ];
    for (mode, ability) in cases {
        let kernel = all().with_unknown(&ability);
        let choice = choose(mode, &kernel, &requirements());
        assert_eq!(choice.mode, None, "{mode}, {ability}");
        let open = choice.open().map(ToString::to_string).unwrap_or_default();
        let words = format!("not known whether {mode} mode can run here: {ability} (Cannot");
        assert!(open.starts_with(&words), "{mode}, {ability}: {open:?}");
        assert_eq!(choice.passed_over().count(), 0, "{mode}, {ability}");
        let verdicts = verdicts(&kernel, &requirements());
        let table = table(&verdicts);
        let words = format!(
            "{:<10} not known whether it can run: try again\n",
            mode.to_string()
        );
        assert!(table.contains(&words), "{table}");
        let words = format!("    unknown: {ability} (Cannot");
        assert!(table.contains(&words), "{table}");
        let json = json(&verdicts);
        let shown = json["modes"].as_array().into_iter().flatten();
        let shown = shown.filter(|shown| shown["mode"] == mode.to_string());
        for shown in shown {
            assert!(shown["canRun"].is_null(), "{shown:#}");
            assert_eq!(shown["unknown"][0]["what"], ability.to_string());
        }
    }
    // An ability known to be missing decides, even if others are unknown.
    let kernel = all()
        .without(&Ability::Ipvs)
        .with_unknown(&Ability::DummyLink);
    let choice = choose(ModeName::Ipvs, &kernel, &requirements());
    assert_eq!(choice.mode, Some(ModeName::Nftables));
    // An ability that only improves the mode does not keep it from running.
    let comment = Ability::Extension(v4, Extension::Comment);
    let kernel = all().with_unknown(&comment);
    let choice = choose(ModeName::Iptables, &kernel, &requirements());
    assert_eq!(choice.mode, Some(ModeName::Iptables));
    assert_eq!(choice.unknown().len(), 1);
    let lost: Vec<String> = choice.lost().collect();
    let words = "-m comment (Cannot allocate memory";
    assert!(lost[0].contains(words), "{lost:?}");
}
