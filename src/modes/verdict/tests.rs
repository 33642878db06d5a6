use super::*;
use crate::kernel::probe::Extension;

fn wishes() -> Wishes {
    Wishes {
        primary: Family::V4,
        scheduler: "rr".to_owned(),
        capture: Requested::Auto,
        transparent: true,
    }
}

#[test]
fn one_thing_taken_away_after_another_leads_to_the_right_mode_with_the_right_words() {
    let v4 = Family::V4;
    let redirected = [Ability::Nat(v4)];
    let _ = redirected;
    let cases: [(Ability, ModeName, &str); 9] = [
        (Ability::Ipvs, ModeName::Iptables, "IPVS"),
        (Ability::DummyLink, ModeName::Iptables, "dummy"),
        (
            Ability::IpSet("hash:ip,port,ip"),
            ModeName::Iptables,
            "ip_set_hash_ipportip",
        ),
        (
            Ability::Extension(v4, Extension::Set),
            ModeName::Iptables,
            "xt_set",
        ),
        (
            Ability::Extension(v4, Extension::Mark),
            ModeName::Userspace,
            "xt_mark",
        ),
        (Ability::Extension(v4, Extension::Dnat), ModeName::Ipvs, ""),
        (
            Ability::Extension(v4, Extension::Comment),
            ModeName::Ipvs,
            "",
        ),
        (Ability::Nat(v4), ModeName::Userspace, "iptable_nat"),
        (Ability::Nat(Family::V6), ModeName::Ipvs, ""),
    ];
    for (gone, mode, word) in cases {
        let kernel = Kernel::with_everything(&["rr".to_owned()]).without(&gone);
        let choice = choose(ModeName::Ipvs, &kernel, &wishes());
        assert_eq!(choice.mode, Some(mode), "without {gone}");
        let said: Vec<String> = choice.passed_over().collect();
        assert!(said.join("\n").contains(word), "without {gone}: {said:?}");
        assert_eq!(said.is_empty(), word.is_empty(), "without {gone}: {said:?}");
    }
}

#[test]
fn nothing_runs_without_privileges_and_each_mode_says_why() {
    let kernel = Kernel::with_everything(&["rr".to_owned()]).without(&Ability::NetAdmin);
    let choice = choose(ModeName::Ipvs, &kernel, &wishes());
    assert_eq!(choice.mode, None);
    let said: Vec<String> = choice.passed_over().collect();
    assert_eq!(said.len(), 3);
    assert!(
        said.iter().all(|line| line.contains("CAP_NET_ADMIN")),
        "{said:?}"
    );
    assert!(table(&choice.verdicts).ends_with("No mode can run here.\n"));
}

#[test]
fn a_worse_mode_that_was_asked_for_is_given_even_where_a_better_one_could_run() {
    let kernel = Kernel::with_everything(&["rr".to_owned()]);
    for mode in ModeName::ALL {
        assert_eq!(choose(mode, &kernel, &wishes()).mode, Some(mode));
    }
}
