//! Command lines of `tripod test`.

use super::*;

#[test]
fn folders_that_are_tried() {
    let test = |arguments: &[&str]| match settings(&[&["test"], arguments].concat()).job {
        Job::Test(test) => test,
        other => panic!("{arguments:?}: {other:?}"),
    };
    let expected = |mode, node: Option<&str>, output, socket: &str| Test {
        place: Place::Manifests(FolderTest {
            folder: "/m".into(),
            mode,
            node: node.map(str::to_owned),
        }),
        output,
        socket: socket.into(),
    };
    assert_eq!(
        test(&["--manifests=/m"]),
        expected(None, None, Output::Table, "/run/tripod/tripod.sock")
    );
    assert_eq!(
        test(&[
            "--manifests=/m",
            "--proxy-mode=iptables",
            "--hostname-override=node-1",
            "-oyaml",
            "--status-socket=/s",
        ]),
        expected(Some(ModeName::Iptables), Some("node-1"), Output::Yaml, "/s")
    );
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
