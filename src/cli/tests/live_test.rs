//! Command lines of `tripod test` on a live cluster.

use super::*;
use crate::cli::Cluster;

fn cluster(arguments: &[&str]) -> Cluster {
    match settings(&[&["test"], arguments].concat()).job {
        Job::Test(test) if test.manifests.is_none() => test.cluster,
        other => panic!("{arguments:?}: {other:?}"),
    }
}

fn networks(texts: &[&str]) -> Vec<ipnet::IpNet> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn a_live_cluster_is_tried_unless_there_are_manifests() {
    let usual = Cluster {
        namespace: None,
        kubeconfig: None,
        image: None,
        keep: false,
        external: networks(&["203.0.113.0/24", "2001:db8:113::/48"]),
        services: Vec::new(),
        timeout: Duration::from_secs(120),
    };
    assert_eq!(cluster(&[]), usual);
    let given = cluster(&[
        "--namespace=n",
        "--kubeconfig=-",
        "--image=i",
        "--keep",
        "--external-networks=192.0.2.0/29,2001:db8::/64",
        "--timeout=5m",
    ]);
    let expected = Cluster {
        namespace: Some("n".to_owned()),
        kubeconfig: Some("-".into()),
        image: Some("i".to_owned()),
        keep: true,
        external: networks(&["192.0.2.0/29", "2001:db8::/64"]),
        services: Vec::new(),
        timeout: Duration::from_secs(300),
    };
    assert_eq!(given, expected);
    let services = cluster(&["--service=a/b", "--service", "c/d-e"]).services;
    let named = |namespace: &str, name: &str| (namespace.to_owned(), name.to_owned());
    assert_eq!(services, [named("a", "b"), named("c", "d-e")]);
}

#[test]
fn what_makes_no_sense_on_a_live_cluster_is_refused() {
    for (arguments, words) in [
        (&["--manifests=/m", "--keep"][..], "--keep"),
        (&["--service=a/b", "--image=i"], "--image"),
        (&["--service=a"], "a slash and a name"),
        (&["--namespace=A/../b"], "lower-case letters"),
        (&["--timeout=soon"], "250ms"),
        (&["--external-networks=192.0.2.1"], "eight addresses"),
        (&["--external-networks=192.0.2.0/30"], "eight addresses"),
        (
            &["--service=a/b", "--external-networks=192.0.2.0/24"],
            "--external-networks",
        ),
    ] {
        let text = refusal("", &[&["test"], arguments].concat());
        assert!(text.contains(words), "{arguments:?}: {text}");
    }
}
