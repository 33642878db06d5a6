//! What the help says, short and long.

use super::*;

/// What the help says of each flag, in one line.
fn help_entries(help: &str) -> BTreeMap<&str, String> {
    let mut entries: BTreeMap<&str, String> = BTreeMap::new();
    let mut name = "";
    for line in help.lines() {
        let text = line.trim_start();
        let long = text
            .find("--")
            .filter(|at| *at == 0 || text.starts_with('-'));
        if line.starts_with("  ")
            && let Some(at) = long
        {
            let rest = &text[at + 2..];
            let end = rest.find([' ', '[']).unwrap_or(rest.len());
            name = &rest[..end];
        }
        let entry = entries.entry(name).or_default();
        *entry = format!("{entry} {text}");
    }
    entries
}

#[test]
fn every_flag_of_kube_proxy_is_in_the_help_with_its_default() {
    let help = answer(&["--help"]);
    let entries = help_entries(&help);
    let mut seen = 0;
    for line in FLAGS.lines().skip(1) {
        let columns: Vec<&str> = line.split('\t').collect();
        let (name, default) = (columns[0], columns[2].trim_matches('"'));
        let entry = entries.get(name);
        let entry = entry.unwrap_or_else(|| panic!("--{name} is not in the help"));
        if !default.is_empty() {
            let shown = format!("[default: {default}]");
            assert!(entry.contains(&shown), "{entry}: no {shown}");
        }
        seen += 1;
    }
    assert_eq!(seen, 57, "flags in the recording");
    for line in help.lines() {
        assert!(line.len() <= 100, "{line}");
    }
}

#[test]
fn the_short_help_has_the_most_used_flags_and_names_the_other() {
    for subcommand in [&[][..], &["probe"], &["render"]] {
        let of = |flag| answer(&[subcommand, &[flag]].concat());
        let (short, long) = (of("-h"), of("--help"));
        let [few, all] = [&short, &long].map(|help| help_entries(help).len());
        assert!((14..=20).contains(&few), "{few} flags in {short}");
        assert!(all > 70, "{all} flags in {long}");
        for flag in ["--proxy-mode", "--config", "--manifests", "--v"] {
            assert!(short.contains(flag), "no {flag} in {short}");
        }
        let last = short.lines().last();
        assert_eq!(last, Some(MORE_HELP));
        assert!(
            long.contains(VALUES_HELP) && !long.contains(MORE_HELP),
            "{long}"
        );
    }
}

/// What a shell completes and man(1) shows has these alone, too; the others are taken.
#[test]
fn the_help_of_cleanup_has_the_flags_that_it_uses() {
    let expected = [
        "config",
        "help",
        "ipvs-exclude-cidrs",
        "keep-kube-proxy",
        "logging-format",
        "status-socket",
        "userspace-holder-socket",
        "v",
    ];
    for flag in ["-h", "--help"] {
        let help = answer(&["cleanup", flag]);
        let mut entries = help_entries(&help);
        entries.remove("");
        let found: Vec<_> = entries.into_keys().collect();
        assert_eq!(found, expected, "{help}");
    }
    let page = answer(&["man", "cleanup"]);
    assert!(
        page.contains("exclude") && !page.contains("masquerade"),
        "{page}"
    );
    let script = answer(&["completion", "bash"]);
    let (_, rest) = script
        .split_once("tripod__subcmd__cleanup)\n")
        .expect("cleanup");
    let (line, _) = rest.trim_start().split_once('\n').expect("its options");
    assert!(
        line.contains("--keep-kube-proxy") && !line.contains("--masquerade"),
        "{line}"
    );
    let taken = settings(&["cleanup", "--masquerade-all", "--proxy-mode=ipvs"]);
    assert_eq!(taken.job, Job::Cleanup(Cleanup::Everything));
}

/// In the order in which one falls back to the next.
#[test]
fn the_help_of_the_mode_names_every_mode() {
    let help = answer(&["--help"]);
    let entries = help_entries(&help);
    let [first @ .., last] = ModeName::ALL.map(ModeName::name);
    let all = format!("{} or {last}.", first.join(", "));
    let entry = &entries["proxy-mode"];
    assert!(entry.contains(&all), "{entry}: no {all}");
}
