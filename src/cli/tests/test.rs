//! Command lines of `tripod test`.

use super::*;

#[test]
fn folders_that_are_tried() {
    let test = |arguments: &[&str]| match settings(&[&["test"], arguments].concat()).job {
        Job::Test(test) => test,
        other => panic!("{arguments:?}: {other:?}"),
    };
    let usual = test(&["--manifests=/m"]);
    assert_eq!(usual.manifests, Some("/m".into()));
    assert_eq!((usual.proxy_mode, usual.hostname_override), (None, None));
    assert_eq!(usual.common.format.output, Output::Table);
    assert_eq!(usual.common.socket, Path::new("/run/tripod/tripod.sock"));
    let given = test(&[
        "--manifests=/m",
        "--proxy-mode=iptables",
        "--hostname-override=node-1",
        "-oyaml",
        "--status-socket=/s",
    ]);
    assert_eq!(given.proxy_mode, Some(ModeName::Iptables));
    assert_eq!(given.hostname_override.as_deref(), Some("node-1"));
    assert_eq!(given.common.format.output, Output::Yaml);
    assert_eq!(given.common.socket, Path::new("/s"));
}

#[test]
fn what_is_wrong_is_refused() {
    for arguments in [
        &["test", "--proxy-mode=nftables"][..],
        &["test", "--manifests=/m", "--proxy-mode=fast"],
        &["test", "--manifests=/m", "--output=xml"],
    ] {
        match read_with("", arguments) {
            Err(Stop::Refusal(_)) => {}
            other => panic!("{arguments:?}: {other:?}"),
        }
    }
}
