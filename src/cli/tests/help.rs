//! The texts of the help, short and long.

use super::*;
use crate::cli::{
    flags::{is_beside_file, with_headings},
    help::{COMMANDS, MORE_FLAGS, VALUES},
};

/// Splits the help into the entries of its flags, each in one line.
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
    let help = answer(&["--help-all"]);
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
    for (subcommand, least) in [(&[][..], 70), (&["render"], 23)] {
        let of = |flag| answer(&[subcommand, &[flag]].concat());
        let (short, long) = (of("--help"), of("--help-all"));
        assert_eq!(short, of("-h"));
        let [few, all] = [&short, &long].map(|help| help_entries(help).len());
        assert!((12..=22).contains(&few), "{few} flags in {short}");
        assert!(all > least, "{all} flags in {long}");
        for flag in ["--proxy-mode", "--config", "--manifests", "--v"] {
            assert!(short.contains(flag), "no {flag} in {short}");
        }
        let last = short.lines().last();
        assert_eq!(last, Some(MORE_FLAGS));
        assert!(
            long.contains(VALUES) && !long.contains(MORE_FLAGS),
            "{long}"
        );
    }
}

/// The short help of the program and of each subcommand, by name.
fn short_helps() -> Vec<(String, String)> {
    let command = command();
    let shown = command.get_subcommands().filter(|it| !it.is_hide_set());
    let names = shown.map(|subcommand| subcommand.get_name().to_owned());
    let of = |name: String| {
        let words = [&*name, "--help"];
        let help = answer(&words);
        (name, help)
    };
    let own = ("tripod".to_owned(), answer(&["--help"]));
    std::iter::once(own).chain(names.map(of)).collect()
}

#[test]
fn the_short_help_has_one_line_for_each_flag_and_says_where_there_is_more() {
    let mut wrong = Vec::new();
    for (name, help) in short_helps() {
        // The first paragraphs are the purpose and the usage.
        for line in help.split("\n\n").skip(2).flat_map(str::lines) {
            let (what, about) = line.trim_start().split_once("  ").unwrap_or((line, ""));
            let is_flag = line.starts_with("  ");
            if line.chars().count() > 100 || (is_flag && about.trim().is_empty()) {
                wrong.push(format!("{name}: {what}: {line}"));
            }
        }
        let program = command();
        let about = program.find_subcommand(&name).unwrap_or(&program);
        let more = help.contains("--help-all shows");
        assert_eq!(
            more,
            about.get_after_long_help().is_some(),
            "{name}: {help}"
        );
    }
    assert!(
        wrong.is_empty(),
        "too long, or no line: {}",
        wrong.join("\n")
    );
}

#[test]
fn the_help_names_the_flags_that_apply_beside_a_file() {
    let (paragraph, _) = AFTER_HELP.split_once("\n\n").expect("paragraphs");
    let (alone, except) = paragraph.split_once(" except ").expect("exceptions");
    let named = |text: &str| -> BTreeSet<String> {
        let words = text.split([' ', '\n', ',', '.']);
        let flags = words.filter_map(|word| word.strip_prefix("--"));
        flags.map(str::to_owned).collect()
    };
    let whole = ["Userspace mode", "Logging", "Running"];
    let (mut beside, mut excepted) = (BTreeSet::new(), BTreeSet::new());
    for (heading, flag) in with_headings().filter(|(_, flag)| !flag.hidden) {
        match (whole.contains(&heading), is_beside_file(&(heading, flag))) {
            (true, false) => excepted.insert(flag.name.to_owned()),
            (false, true) => beside.insert(flag.name.to_owned()),
            _ => false,
        };
    }
    let mut alone = named(alone);
    alone.remove("config");
    assert_eq!(alone, beside);
    assert_eq!(named(except), excepted);
}

#[test]
fn the_help_lists_every_subcommand_in_a_group() {
    let command = command();
    let shown = command.get_subcommands().filter(|it| !it.is_hide_set());
    let mut expected: Vec<_> = shown.map(Command::get_name).chain(["help"]).collect();
    let mut listed = COMMANDS.map(|(_, names)| names).concat();
    expected.sort_unstable();
    listed.sort_unstable();
    assert_eq!(listed, expected);
    for flag in ["--help", "--help-all"] {
        let help = answer(&[flag]);
        for (heading, names) in COMMANDS {
            let (_, rest) = help.split_once(&format!("\n{heading}:\n")).expect(heading);
            let found = rest
                .lines()
                .map_while(|line| line.trim_start().split_once("  "));
            assert_eq!(
                found.map(|(name, _)| name).collect::<Vec<_>>(),
                names,
                "{help}"
            );
        }
        assert!(
            !help.contains("Commands:") && help.contains("tripod <COMMAND>"),
            "{help}"
        );
    }
    assert_eq!(answer(&["help"]), answer(&["--help-all"]));
    assert_eq!(answer(&["help", "trace"]), answer(&["trace", "--help-all"]));
    let wrong = refusal("", &["trace", "--count=1"]);
    assert!(wrong.contains("try '--help'"), "{wrong}");
}

/// Completion and manual pages show only these as well; the others are accepted.
#[test]
fn the_help_has_the_flags_that_a_subcommand_uses() {
    let common = ["config", "help", "help-all", "logging-format", "v"];
    let of_cleanup = [
        "ipvs-exclude-cidrs",
        "keep-kube-proxy",
        "status-socket",
        "userspace-holder-socket",
    ];
    let of_probe = [
        "bind-address",
        "ipvs-scheduler",
        "output",
        "userspace-capture",
        "userspace-io",
        "without",
    ];
    let others = ["--masquerade-all", "--proxy-mode=ipvs", "--kube-api-qps=9"];
    for (name, own, job) in [
        ("cleanup", &of_cleanup[..], Job::Cleanup(Cleanup::default())),
        (
            "probe",
            &of_probe,
            Job::Probe(Format {
                output: Output::Table,
            }),
        ),
    ] {
        let expected: BTreeSet<_> = common.iter().chain(own).copied().collect();
        for flag in ["--help", "--help-all"] {
            let help = answer(&[name, flag]);
            let mut entries = help_entries(&help);
            entries.remove("");
            let found: BTreeSet<_> = entries.into_keys().collect();
            assert_eq!(found, expected, "{help}");
        }
        let page = answer(&["man", name]);
        assert!(
            page.contains("scheduler") || page.contains("exclude"),
            "{page}"
        );
        assert!(!page.contains("masquerade"), "{page}");
        let script = answer(&["completion", "bash"]);
        let (_, rest) = script
            .split_once(&format!("tripod__subcmd__{name})\n"))
            .expect(name);
        let (line, _) = rest.trim_start().split_once('\n').expect("its options");
        assert!(
            line.contains(own[0]) && !line.contains("--masquerade"),
            "{line}"
        );
        assert_eq!(settings(&[&[name], &others[..]].concat()).job, job);
    }
    let render = answer(&["render", "--help-all"]);
    for (flag, is_used) in [
        ("--iptables-masquerade-bit", true),
        ("--conntrack-tcp-be-liberal", true),
        ("--kubeconfig", false),
        ("--healthz-bind-address", false),
        ("--oom-score-adj", false),
    ] {
        assert_eq!(render.contains(flag), is_used, "{flag}: {render}");
    }
}

/// `man -k` shows the name, and a synopsis with each flag is the list of options once more.
#[test]
fn manual_pages_have_a_short_name_and_synopsis() {
    let command = command();
    let shown = command.get_subcommands().filter(|it| !it.is_hide_set());
    let names = shown.map(Command::get_name);
    let pages = names.map(|name| (format!("tripod-{name}"), answer(&["man", name])));
    let own = ("tripod".to_owned(), answer(&["man"]));
    for (name, page) in std::iter::once(own).chain(pages) {
        let section = |heading: &str| {
            let (_, rest) = page.split_once(&format!(".SH {heading}\n")).expect(heading);
            rest.split_once("\n.SH ")
                .map_or(rest, |(section, _)| section)
        };
        let of = section("NAME").replace('\\', "");
        assert!(of.starts_with(&format!("{name} - ")), "{of}");
        assert!(of.lines().count() == 1 && of.len() < 110, "{of}");
        let synopsis = section("SYNOPSIS").replace('\\', "");
        let called = name.replacen('-', " ", 1);
        assert!(synopsis.contains(&called), "{synopsis}");
        assert!(synopsis.len() < 130, "{synopsis}");
    }
}

#[test]
fn the_help_of_test_begins_with_manifests() {
    for flag in ["--help", "--help-all"] {
        let help = answer(&["test", flag]);
        let first = help.find("--").expect("a flag");
        assert!(help[first..].starts_with("--manifests"), "{help}");
        let (_, options) = help.split_once("Options:\n").expect("options");
        assert!(options.trim_start().starts_with("--manifests"), "{help}");
    }
}

/// They stand in the order in which one falls back to the next.
#[test]
fn the_help_of_the_mode_names_every_mode() {
    let help = answer(&["--help-all"]);
    let entries = help_entries(&help);
    let [first @ .., last] = ModeName::ALL.map(ModeName::name);
    let all = format!("{} or {last}.", first.join(", "));
    let entry = &entries["proxy-mode"];
    assert!(entry.contains(&all), "{entry}: no {all}");
}
