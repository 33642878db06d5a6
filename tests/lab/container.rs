//! Tripod as the DaemonSet of `deploy/` runs it: first the init container's part, then
//! the main container.

use std::{path::Path, process::Command};

use k8s_openapi::api::{apps::v1::DaemonSet, core::v1::Container};

use super::{Host, tripod_binary};

/// As a container runtime starts a program: with only the capabilities in `$1`, no way to gain
/// others later, and `/proc/sys` read-only.
const START: &str = r#"
mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys &&
set="$1" && shift &&
exec setpriv --no-new-privs --inh-caps=-all --bounding-set="$set" "$0" "$@""#;

/// Returns the DaemonSet's main container.
fn stays() -> Container {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/kustomize/base/daemon-set.yaml");
    let text = std::fs::read_to_string(path).expect("the DaemonSet");
    let set: DaemonSet = serde_saphyr::from_str(&text).expect("a DaemonSet");
    let pod = set.spec.expect("a spec").template.spec.expect("a pod");
    pod.containers.into_iter().next().expect("a container")
}

/// Returns a command that runs Tripod on `node` as the main container; flags can be added
/// to it.
pub fn in_container(node: &Host) -> Command {
    let container = stays();
    let context = container.security_context.expect("a security context");
    let capabilities = context.capabilities.expect("capabilities");
    assert_eq!(capabilities.drop.as_deref(), Some(&["ALL".to_owned()][..]));
    let mut set = "-all".to_owned();
    for capability in capabilities.add.iter().flatten() {
        set.push_str(&format!(",+{}", capability.to_lowercase()));
    }
    let words = container.command.expect("a command");
    let confined = words.iter().filter(|word| word.starts_with("--confine="));
    let mut command = node.command("sh");
    command.args(["-c", START]).arg(tripod_binary()).arg(set);
    command.args(confined);
    command
}

/// Does the init container's part for `mode`, given as a flag.
pub fn init_container(node: &Host, mode: &str) {
    let mut init = node.command(tripod_binary());
    let init = init.args(["--init-only", mode]).status();
    let init = init.expect("running tripod");
    assert!(init.success(), "{init}");
}
