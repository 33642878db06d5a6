//! The command line: helpful to people, strict about what it does not know.

use std::process::{Command, Output};

use crate::lab::tripod_binary;

fn tripod(arguments: &[&str]) -> Output {
    Command::new(tripod_binary())
        .args(arguments)
        .output()
        .expect("running tripod")
}

#[test]
fn help_names_what_a_newcomer_needs() {
    let common = [
        "--proxy-mode",
        "--manifests",
        "--hostname-override",
        "cleanup",
    ];
    for (flag, more) in [
        ("--help", "--help-all"),
        ("--help-all", "--userspace-capture"),
    ] {
        let output = tripod(&[flag]);
        assert!(output.status.success());
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        for word in common.into_iter().chain([more]) {
            assert!(text.contains(word), "{word} is missing in:\n{text}");
        }
    }
}

#[test]
fn what_is_not_understood_names_itself_and_exits_2() {
    let cases: [(&[&str], &[&str]); 6] = [
        (&["--no-such-flag"], &["--no-such-flag"]),
        (&["--proxy-mode=magic"], &["magic", "--proxy-mode"]),
        (
            &["--userspace-capture=magic"],
            &["magic", "--userspace-capture"],
        ),
        (&["--udp-timeout=soon"], &["soon", "--udp-timeout"]),
        (&["--ipvs-scheduler=best"], &["best", "--ipvs-scheduler"]),
        (
            &["--metrics-bind-address=here"],
            &["here", "--metrics-bind-address"],
        ),
    ];
    for (arguments, words) in cases {
        let output = tripod(arguments);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {message}");
        for word in words {
            assert!(
                message.contains(word),
                "{arguments:?}: no {word:?} in: {message}"
            );
        }
        assert!(!message.contains("panicked"), "{message}");
    }
}
