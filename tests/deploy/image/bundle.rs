//! A container of the DaemonSet in the form of a runtime: a bundle for runc (OCI runtime
//! specification).

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use k8s_openapi::api::core::v1::Container;
use serde_json::{Value, json};

use crate::lab::{Lab, die_with_parent};

/// The default profile of the runtimes, as Debian has it.
const SECCOMP: &str = "/usr/share/containers/seccomp.json";

/// How far the container is confined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confinement {
    /// `privileged`: all capabilities, and /proc/sys can be written to.
    Privileged,
    /// The security context of the pod.
    OfPod,
}

/// A folder with `config.json`.
pub struct Bundle {
    folder: PathBuf,
    /// The container's name.
    pub name: String,
    state: PathBuf,
}

impl Bundle {
    /// Makes the bundle of `container` with the image's `root`.
    pub fn new(
        place: &Path,
        name: &str,
        container: &Container,
        root: &Path,
        confinement: Confinement,
    ) -> Bundle {
        let folder = place.join(format!("bundle-{name}"));
        fs::create_dir_all(&folder).expect("a folder");
        let made = Command::new("runc")
            .arg("spec")
            .current_dir(&folder)
            .status();
        assert!(made.expect("running runc").success());
        let file = folder.join("config.json");
        let text = fs::read_to_string(&file).expect("what runc wrote");
        let mut spec: Value = serde_json::from_str(&text).expect("JSON");
        spec["root"] = json!({"path": root, "readonly": true});
        spec["hostname"] = json!("");
        process(&mut spec["process"], container);
        // The pod has the node's network.
        let namespaces = ["pid", "ipc", "uts", "mount"].map(|kind| json!({"type": kind}));
        spec["linux"]["namespaces"] = json!(namespaces);
        confine(&mut spec, container, confinement);
        let mounts = spec["mounts"].as_array_mut().expect("mounts");
        // It cannot be mounted again, because another user namespace owns the network namespace.
        mounts.retain(|mount| mount["destination"] != "/sys" && mount["type"] != "cgroup");
        for mount in container.volume_mounts.iter().flatten() {
            mounts.push(bind(
                place,
                &mount.name,
                &mount.mount_path,
                mount.read_only == Some(true),
            ));
        }
        // Instead of an API server; not in the DaemonSet.
        let manifests = json!({
            "destination": "/manifests", "type": "bind", "source": place.join("manifests"),
            "options": ["bind", "ro"],
        });
        mounts.push(manifests);
        fs::write(&file, spec.to_string()).expect("config.json");
        Bundle {
            folder,
            name: format!("tripod-{name}-{}", std::process::id()),
            state: place.join("runc"),
        }
    }

    /// Path of the specification.
    pub fn config(&self) -> PathBuf {
        self.folder.join("config.json")
    }

    /// Gives the lab's manifests to the containers.
    pub fn publish(place: &Path, lab: &Lab) {
        let manifests = place.join("manifests");
        std::os::unix::fs::symlink(lab.manifests(), &manifests).expect("a link");
    }

    /// Returns runc with its options. It runs on the lab's node, whose network namespace
    /// becomes that of the container and of processes that are started in it later.
    pub fn runc(&self, lab: &Lab) -> Command {
        // Not ip netns exec, which hides the mounts of cgroups.
        let mut command = die_with_parent("nsenter");
        command
            .arg(format!("--net=/run/netns/{}", lab.node.name()))
            .args(["runc", "--root"])
            .arg(&self.state);
        command
    }

    /// Returns a command that runs it.
    pub fn run(&self, lab: &Lab) -> Command {
        let mut command = self.runc(lab);
        command
            .args(["run", "--bundle"])
            .arg(&self.folder)
            .arg(&self.name)
            .stdin(Stdio::null());
        command
    }
}

fn process(process: &mut Value, container: &Container) {
    let words = container.command.iter().chain(&container.args).flatten();
    let words = words.map(|word| word.replace("$(NODE_NAME)", "node"));
    let mut words: Vec<String> = words.collect();
    words.push("--manifests=/manifests".to_owned());
    process["args"] = json!(words);
    process["terminal"] = json!(false);
}

fn confine(spec: &mut Value, container: &Container, confinement: Confinement) {
    let context = container
        .security_context
        .as_ref()
        .expect("a security context");
    assert_eq!(
        context.privileged == Some(true),
        confinement == Confinement::Privileged
    );
    let asked: Vec<String> = match confinement {
        Confinement::Privileged => {
            for paths in ["readonlyPaths", "maskedPaths"] {
                spec["linux"][paths] = json!([]);
            }
            ALL.map(|name| format!("CAP_{name}")).into()
        }
        Confinement::OfPod => {
            let added = context
                .capabilities
                .as_ref()
                .and_then(|all| all.add.as_ref());
            let added: Vec<String> = added
                .into_iter()
                .flatten()
                .map(|c| format!("CAP_{c}"))
                .collect();
            spec["linux"]["seccomp"] = seccomp(&added);
            added
        }
    };
    let sets = ["bounding", "effective", "permitted"].map(|set| (set.to_owned(), json!(asked)));
    spec["process"]["capabilities"] = Value::Object(sets.into_iter().collect());
    let escalates = context.allow_privilege_escalation != Some(false);
    spec["process"]["noNewPrivileges"] = json!(!escalates);
    assert_eq!(context.read_only_root_filesystem, Some(true));
}

/// The capabilities that the init container uses, as far as this process has them.
const ALL: [&str; 5] = [
    "NET_ADMIN",
    "NET_RAW",
    "NET_BIND_SERVICE",
    "SYS_ADMIN",
    "DAC_OVERRIDE",
];

fn bind(place: &Path, volume: &str, path: &str, read_only: bool) -> Value {
    let source = match volume {
        "kube-proxy" => "config",
        "xtables-lock" => "xtables.lock",
        "lib-modules" => "modules",
        "findings" => "findings",
        "succession" => "succession",
        other => panic!("a volume that this test does not know: {other}"),
    };
    let options = if read_only {
        ["bind", "ro"]
    } else {
        ["bind", "rw"]
    };
    json!({
        "destination": path, "type": "bind", "source": place.join(source), "options": options,
    })
}

/// Makes the profile for a container with these capabilities, as runtimes do.
fn seccomp(capabilities: &[String]) -> Value {
    let text = fs::read_to_string(SECCOMP).unwrap_or_else(|e| panic!("{SECCOMP}: {e}"));
    let profile: Value = serde_json::from_str(&text).expect("JSON");
    let has: BTreeSet<&str> = capabilities.iter().map(String::as_str).collect();
    let words = |value: &Value| -> Vec<String> {
        serde_json::from_value(value.clone()).unwrap_or_default()
    };
    let applies = |rule: &&Value| {
        let (includes, excludes) = (&rule["includes"], &rule["excludes"]);
        let named = |of: &Value| words(&of["caps"]);
        let arches = words(&includes["arches"]);
        named(includes)
            .iter()
            .all(|name| has.contains(name.as_str()))
            && !named(excludes)
                .iter()
                .any(|name| has.contains(name.as_str()))
            && (arches.is_empty() || arches.iter().any(|arch| arch == "amd64"))
            && !words(&excludes["arches"])
                .iter()
                .any(|arch| arch == "amd64")
    };
    let rules = profile["syscalls"].as_array().expect("rules").iter();
    let rules: Vec<Value> = rules
        .filter(applies)
        .map(|rule| {
            let mut kept = json!({"names": rule["names"], "action": rule["action"]});
            for part in ["args", "errnoRet"] {
                if !rule[part].is_null() {
                    kept[part] = rule[part].clone();
                }
            }
            kept
        })
        .collect();
    json!({
        "defaultAction": profile["defaultAction"],
        "defaultErrnoRet": profile["defaultErrnoRet"],
        "architectures": ["SCMP_ARCH_X86_64"],
        "syscalls": rules,
    })
}
