//! Words and flags that are not known, and words that mean the same.

use super::*;
use crate::cli::help::COMMANDS;

#[test]
fn an_unknown_word_has_the_commands_listed() {
    let lists = |text: &str| {
        let mut names = COMMANDS.iter().flat_map(|(_, names)| names.iter());
        names.all(|name| text.contains(&format!("\n  {name} ")))
    };
    for (arguments, is_listed, words) in [
        (&["servces"][..], true, "'services'"),
        (&["frobnicate"], true, "'frobnicate'"),
        (&["help", "frobnicate"], true, "'frobnicate'"),
        (&["--v=2", "frobnicate"], true, "'frobnicate'"),
        (&["status", "frobnicate"], false, "'frobnicate'"),
        (&["--no-such-flag"], false, "--no-such-flag"),
    ] {
        let text = refusal("", arguments);
        assert_eq!(lists(&text), is_listed, "{arguments:?}: {text}");
        assert!(text.contains(words), "{arguments:?}: {text}");
        assert!(text.ends_with("try '--help'."), "{arguments:?}: {text}");
    }
}

#[test]
fn the_flag_that_is_suggested_is_likely_meant() {
    for (arguments, meant) in [
        (&["--mode=ipvs"][..], "--proxy-mode"),
        (&["--mode", "ipvs"], "--proxy-mode"),
        (&["--scheduler=rr"], "--ipvs-scheduler"),
        (&["--port-range=1-2"], "--proxy-port-range"),
        (&["--metrics_address=:1"], "--metrics-bind-address"),
        // No flag has the word, but one is similar.
        (&["--manifest=/m"], "--manifests"),
        (&["test", "--mode=ipvs"], "--proxy-mode"),
        (&["status", "--socket=/s"], "--status-socket"),
    ] {
        let text = refusal("", arguments);
        let tip = format!("a similar argument exists: '{meant}'");
        assert!(text.contains(&tip), "{arguments:?}: {text}");
    }
}

#[test]
fn the_version_is_a_command_too() {
    assert_eq!(answer(&["version"]), answer(&["--version"]));
}

#[test]
fn words_that_mean_the_same_are_accepted() {
    let job = |arguments: &[&str]| settings(arguments).job;
    for (words, same) in [
        (&["ls"][..], &["services"][..]),
        (&["svc", "shop"], &["services", "shop"]),
        (&["list", "-w"], &["services", "-w"]),
        (&["explain", "shop/web"], &["explain", "--to=shop/web"]),
        (
            &["explain", "[fd00::a]:53/udp", "--from=node"],
            &["explain", "--from=node", "--to", "[fd00::a]:53/udp"],
        ),
        (&["trace", "10.96.0.1:80"], &["trace", "--to=10.96.0.1:80"]),
    ] {
        assert_eq!(job(words), job(same), "{words:?}");
    }
    assert!(matches!(job(&["migrate", "--check"]), Job::Migrate(_)));
    for arguments in [
        &["explain"][..],
        &["explain", "shop/web", "--to=shop/web"],
        &["trace"],
    ] {
        let text = refusal("", arguments);
        assert!(text.contains("<DESTINATION>"), "{arguments:?}: {text}");
    }
}

#[test]
fn a_question_names_a_sender_only_if_it_is_given() {
    let from = |arguments: &[&str]| match settings(arguments).job {
        Job::Ask(Ask::Explain(explain)) => explain.from,
        other => panic!("{other:?}"),
    };
    assert_eq!(from(&["explain", "shop/web"]), None);
    let given = from(&["explain", "shop/web", "--from=outside"]);
    assert_eq!(given.as_deref(), Some("outside"));
}
