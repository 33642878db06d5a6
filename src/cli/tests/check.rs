//! Command lines of `tripod check`.

use super::*;
use crate::cli::Check;

fn check(arguments: &[&str]) -> Check {
    match settings(&[&["check"], arguments].concat()).job {
        Job::Check(check) => check,
        other => panic!("{arguments:?}: {other:?}"),
    }
}

#[test]
fn a_check_makes_services_only_if_asked() {
    let usual = check(&[]);
    assert_eq!(usual.timeout, Duration::from_secs(30));
    assert_eq!((usual.make, usual.others), (None, vec![]));
    for (flag, kubeconfig) in [("--make", None), ("--make=-", Some("-".into()))] {
        let asked = check(&[flag, "--image=i"]);
        let cluster = asked.cluster(asked.make.clone().expect("it is asked for"));
        assert_eq!(cluster.kubeconfig, kubeconfig, "{flag}");
        assert_eq!(cluster.image.as_deref(), Some("i"));
        assert_eq!(cluster.external.len(), 2);
    }
    let others = check(&["--other-node=b=192.0.2.1", "--other-node", "b=2001:db8::1"]).others;
    let ip = |text: &str| text.parse().expect("an address");
    let b = |text: &str| ("b".to_owned(), ip(text));
    assert_eq!(others, [b("192.0.2.1"), b("2001:db8::1")]);
}

#[test]
fn what_makes_no_sense_in_a_check_is_refused() {
    for (argument, words) in [
        ("--image=i", "--make"),
        ("--other-node=b", "node-2=192.0.2.12"),
        ("--other-node=b=c", "node-2=192.0.2.12"),
        ("--timeout=soon", "250ms"),
    ] {
        let text = refusal("", &["check", argument]);
        assert!(text.contains(words), "{argument}: {text}");
    }
}
