//! Commands of other programs in the documents: the objects of this repository, or of its
//! installation, that they name exist.

use std::{collections::BTreeSet, fs, process::Command};

use serde_json::Value;
use tripod::config::{self, decode};

use super::{documents, inline, kubectl::Cluster, parts, root, shell};
use crate::{deploy::chart::tool, userspace::firewall};

/// Commands that cannot be checked here, by their beginning, and why.
const UNCHECKED: [(&str, &str); 12] = [
    (
        "ufw allow from 10.244.0.0/16",
        "ufw is not here, and would replace the rules of the machine",
    ),
    (
        "firewall-cmd --permanent --zone=trusted",
        "firewalld is not here, and needs D-Bus and the machine's own rules",
    ),
    ("docker push $IMAGE", "the registry is the reader's"),
    (
        "kubectl -n kube-system rollout undo daemonset/kube-proxy --to-revision=$REVISION",
        "the reader finds the number with the command before",
    ),
    (
        "cosign verify --key tripod.pub --insecure-ignore-tlog",
        "cosign is not here; deploy::release verifies its format",
    ),
    (
        "kubeadm upgrade apply $VERSION",
        "kubeadm is not here, and upgrades a cluster",
    ),
    ("kops ", "kops is not here, and changes a cluster"),
    (
        "talosctl upgrade-k8s",
        "talosctl is not here, and upgrades a cluster",
    ),
    ("mkdir objects", "a folder of the reader's"),
    ("cat $HOME/", "a file of the reader's"),
    (
        "install -d -o 65534 /run/tripod",
        "folders of the node; tests/deploy/privileges.rs runs so",
    ),
    (
        "install -o 65534 -m 0600 /dev/null /run/xtables.lock",
        "the same of a file",
    ),
];

/// Checks a command, by its words.
///
/// # Errors
/// Names the thing that does not exist, or says that there is no check for the command.
fn check(words: &[String], cluster: &mut Cluster) -> Result<(), String> {
    let line = words.join(" ");
    let unchecked = |(begin, _): &(&str, &str)| line.starts_with(begin);
    if UNCHECKED.iter().any(unchecked) {
        return Ok(());
    }
    let all: Vec<&str> = words.iter().map(String::as_str).collect();
    let (program, rest) = all.split_first().ok_or("no words")?;
    match *program {
        // The test `commands_are_understood` has the program parse these.
        "tripod" | "target/debug/tripod" => Ok(()),
        "target/debug/examples/whoami" => is_there("examples/whoami.rs"),
        "kill" | "sleep" | "wait" => Ok(()),
        // `deploy::release` runs these.
        "base64" | "cut" | "grep" | "jq" | "openssl" | "sha256sum" | "skopeo" => Ok(()),
        "make" => inline::make(rest),
        "docker" => docker(rest),
        "helm" => helm(rest),
        "kubectl" => cluster.check(rest),
        "kustomize" => kustomize(rest),
        "cd" => is_there(rest.first().unwrap_or(&"")),
        "sed" => rest
            .iter()
            .filter(|word| word.contains("hello.yaml"))
            .try_for_each(|file| is_there(file)),
        "apt" => one_of(rest, &["install ./target/dist/tripod_*.deb"]),
        "cp" => is_packaged(rest),
        "systemctl" => is_there(&format!(
            "deploy/debian/{}.service",
            rest.last().unwrap_or(&"")
        )),
        "curl" => curl(rest),
        "iptables" => is_run_in_the_lab(&line),
        _ => Err("it is not known how to check it: say so in tests/docs/commands.rs".to_owned()),
    }
}

fn one_of(words: &[&str], known: &[&str]) -> Result<(), String> {
    let line = words.join(" ");
    let is_known = known.contains(&&*line);
    is_known
        .then_some(())
        .ok_or(format!("only {known:?} is known"))
}

pub fn is_there(path: &str) -> Result<(), String> {
    let is_there = !path.is_empty() && root().join(path).exists();
    is_there
        .then_some(())
        .ok_or(format!("there is no {path:?}"))
}

pub fn is_target(name: &str) -> Result<(), String> {
    let makefile = fs::read_to_string(root().join("Makefile")).expect("the Makefile");
    let is_other = |line: &&str| line.starts_with(|c: char| c.is_whitespace() || c == '#');
    let is_target = makefile.lines().filter(|line| !is_other(line)).any(|line| {
        line.split_once(':').is_some_and(|(targets, rest)| {
            !rest.starts_with('=') && targets.split(' ').any(|target| target == name)
        })
    });
    is_target
        .then_some(())
        .ok_or(format!("make has no target {name}"))
}

/// Finds the value of the flag that `words` have under one of these names.
pub fn flag<'a>(words: &[&'a str], names: &[&str]) -> Option<&'a str> {
    words.iter().enumerate().find_map(|(at, word)| {
        names
            .iter()
            .find_map(|name| match word.strip_prefix(name)? {
                "" => words.get(at + 1).copied(),
                rest => rest.strip_prefix('='),
            })
    })
}

fn docker(words: &[&str]) -> Result<(), String> {
    if words.first() != Some(&"build") {
        return Err("only docker build is known".to_owned());
    }
    is_there(flag(words, &["-f"]).ok_or("it names no Dockerfile")?)?;
    is_there(words.last().unwrap_or(&""))
}

/// Flags of `helm upgrade` that `helm template` does not have.
const OF_UPGRADE: [&str; 3] = [
    "--install",
    "--reset-then-reuse-values",
    "--force-conflicts",
];

/// Has Helm render the chart with the same flags; its schema refuses unknown values.
fn helm(words: &[&str]) -> Result<(), String> {
    if words.first() == Some(&"uninstall") {
        return one_of(words, &["uninstall tripod --namespace kube-system"]);
    }
    if words.first() == Some(&"rollback") {
        return one_of(words, &["rollback tripod --namespace kube-system"]);
    }
    let [verb @ ("install" | "upgrade" | "template"), rest @ ..] = words else {
        return Err(
            "only helm install, upgrade, rollback, uninstall and template are known".to_owned(),
        );
    };
    let [release, chart, ..] = rest else {
        return Err("it names no chart".to_owned());
    };
    is_there(&format!("{chart}/Chart.yaml"))?;
    if *release != "tripod" {
        return Err(format!("release {release}: elsewhere it is tripod"));
    }
    let Some(program) = tool("helm/helm") else {
        return Ok(());
    };
    let rest = rest
        .iter()
        .filter(|word| *verb != "upgrade" || !OF_UPGRADE.contains(word));
    // The values of the upgraded release include an image.
    let reused = ["--set", "image.repository=registry.example.org/tripod"];
    let reused = reused
        .iter()
        .filter(|_| words.contains(&"--reset-then-reuse-values"));
    let done = Command::new(program)
        .arg("template")
        .args(rest)
        .args(reused)
        .current_dir(root())
        .output();
    let done = done.expect("running helm");
    if !done.status.success() {
        return Err(String::from_utf8_lossy(&done.stderr).into_owned());
    }
    configuration(&String::from_utf8_lossy(&done.stdout))
}

/// Checks that Tripod knows the rendered fields of `config.kubeProxy`, which the schema
/// leaves to Tripod.
fn configuration(rendered: &str) -> Result<(), String> {
    let objects: Vec<Value> = serde_saphyr::from_multiple(rendered).expect("YAML");
    for object in objects {
        let Some(text) = object["data"]["config.conf"].as_str() else {
            continue;
        };
        let decoded = decode::decode(text).map_err(|error| error.to_string())?;
        if !decoded.ignored.is_empty() {
            return Err(decoded.ignored.join("; "));
        }
        let checked = config::check(decoded.configuration, decoded.problems);
        checked.map_err(|problems| format!("{problems:?}"))?;
    }
    Ok(())
}

fn kustomize(words: &[&str]) -> Result<(), String> {
    let ["edit", "set", "image", image] = words else {
        return Err("only kustomize edit set image is known".to_owned());
    };
    let (name, _) = image.split_once('=').ok_or("NAME=IMAGE")?;
    let manifest = fs::read_to_string(root().join("deploy/kustomize/base/daemon-set.yaml"));
    let has_image = |line: &str| line.trim() == format!("image: {name}");
    let is_image = manifest.expect("a manifest").lines().any(has_image);
    is_image
        .then_some(())
        .ok_or(format!("no container has the image {name}"))
}

/// Checks that the copied file is in the package, whose contents Cargo.toml lists.
fn is_packaged(words: &[&str]) -> Result<(), String> {
    let [from, to] = words else {
        return Err("cp FROM TO".to_owned());
    };
    let cargo = fs::read_to_string(root().join("Cargo.toml")).expect("Cargo.toml");
    let (folder, name) = from.rsplit_once('/').ok_or("a whole path")?;
    let is_copied = cargo.lines().any(|line| {
        line.contains(&format!("/{name}\"")) && line.contains(&format!("\"{}/\"", &folder[1..]))
    });
    let is_target = cargo.contains(&format!("\"{}README\"", to.trim_start_matches('/')));
    (is_copied && is_target)
        .then_some(())
        .ok_or(format!("the package has not {from} and {to}"))
}

/// Checks that a test runs the command, and sees its effect.
fn is_run_in_the_lab(line: &str) -> Result<(), String> {
    let is_run = firewall::commands()
        .iter()
        .any(|(command, _)| *command == line);
    is_run
        .then_some(())
        .ok_or("only commands that tests/userspace/firewall.rs runs are known".to_owned())
}

/// Checks that the socket is that of Tripod, and that it knows the path.
fn curl(words: &[&str]) -> Result<(), String> {
    let socket = flag(words, &["--unix-socket"]);
    if socket.is_some_and(|path| path != tripod::status_api::SOCKET) {
        return Err(format!("the socket is {}", tripod::status_api::SOCKET));
    }
    let url = words.last().copied().unwrap_or_default();
    let path = url.splitn(4, '/').last().unwrap_or_default();
    if url == "http://10.96.0.20/" {
        return is_there("examples/local/local.yaml");
    }
    one_of(&[path], &["v1/status", "v1/services", "v1/diff", "metrics"])
}

#[test]
fn commands_of_other_programs_name_what_is_there() {
    let (mut checked, mut used, mut wrong) = (0, BTreeSet::new(), Vec::new());
    for (path, document) in documents() {
        let mut cluster = Cluster::new();
        for line in parts(&document).commands {
            for words in shell::commands(&line) {
                checked += 1;
                let joined = words.join(" ");
                let begins = |(begin, _): &&(&str, &str)| joined.starts_with(begin);
                used.extend(UNCHECKED.iter().find(begins).map(|(begin, _)| *begin));
                if let Err(why) = check(&words, &mut cluster) {
                    wrong.push(format!("{}: {joined}: {why}", path.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(checked > 60, "{checked} commands found");
    let stale = UNCHECKED.iter().filter(|(begin, _)| !used.contains(begin));
    assert_eq!(
        stale.count(),
        0,
        "no document has some of the unchecked commands: {used:?}"
    );
}

/// Blocks of commands must be marked `sh`, or no check would see them.
#[test]
fn blocks_of_commands_are_marked() {
    let documents = inline::all_documents();
    let mut programs: BTreeSet<String> = inline::PROGRAMS.map(str::to_owned).into();
    programs.insert("tripod".to_owned());
    for document in documents.values() {
        let lines = parts(document).commands;
        let commands = lines.iter().flat_map(|line| shell::commands(line));
        programs.extend(commands.map(|words| words[0].clone()));
    }
    assert!(programs.contains("firewall-cmd"), "{programs:?}");
    for (path, document) in documents {
        for line in parts(&document).unmarked {
            let word = line.split(' ').next().unwrap_or_default();
            assert!(
                !programs.contains(word),
                "{}: the block that begins with {line:?} should be marked sh",
                path.display()
            );
        }
    }
}

/// The fault in each is found.
#[test]
fn commands_that_name_what_is_not_there_are_found() {
    for line in [
        "make demos",
        "make tests",
        "cargo build --release",
        "docker build -t x -f deploy/Dockerfil .",
        "helm install tripod deploy/helm/tripot",
        "helm install proxy deploy/helm/tripod",
        "kustomize edit set image tripot=x",
        "cd deploy/kustomize/bases",
        "sed x examples/hello.yaml",
        "cp /usr/share/doc/tripod/examples/helo.yaml /etc/tripod/manifests/",
        "systemctl enable --now tripot",
        "curl --unix-socket /run/tripod.sock http://localhost/v1/status",
        "curl --unix-socket /run/tripod/tripod.sock http://localhost/v2/status",
        "kubectl apply -k deploy/monitor",
        "kubectl apply -f deploy/monitoring",
        "kubectl -n kube-system set image daemonset/kube-proxy proxy=x",
        "kubectl -n kube-system set image daemonset/kubeproxy kube-proxy=x",
        "kubectl -n default rollout status daemonset/kube-proxy",
        "kubectl rollout status daemonset/kube-proxy",
        "kubectl -n kube-system rollout status deployment/kube-proxy",
        "kubectl -n kube-system exec kubeproxy-x2x9z -- tripod status",
        "kubectl -n kube-system port-forward kube-proxy-x2x9z 10294",
        "kubectl delete clusterrole tripod:metric-reader",
        "kubectl delete clusterrolebinding,clusterrole tripod:status-reader",
        "helm uninstall tripot --namespace kube-system",
        "kubectl delete namespaces -l app.kubernetes.io/name=tripod-tests",
        "kubectl create clusterrolebinding b --clusterrole=tripod:reader --serviceaccount=kube-system:kube-proxy",
        "kubectl create clusterrolebinding b --clusterrole=tripod:status-reader --serviceaccount=default:nobody",
        "kubectl create token nobody",
        "kubectl get servicess -A",
        "iptables -A INPUT -j ACCEPT",
        "ufw enable",
        "frobnicate",
    ] {
        let words = shell::commands(line).remove(0);
        assert!(check(&words, &mut Cluster::new()).is_err(), "{line}");
    }
    let mut cluster = Cluster::new();
    // The programs themselves report unknown words.
    let programs = [
        (
            "kubectl/kubectl",
            "kubectl -n kube-system rollout status daemonset/kube-proxy --watching",
        ),
        (
            "kubectl/kubectl",
            "kubectl -n kube-system rolout status daemonset/kube-proxy",
        ),
        (
            "helm/helm",
            "helm install tripod deploy/helm/tripod --set mode=ipvs",
        ),
        (
            "helm/helm",
            "helm install tripod deploy/helm/tripod --set image.repository=tripod --set \
             config.create=true --set config.server=https://192.0.2.10:6443 --set config.kubeProxy.clusterCIDR=10.244.0.0/16 \
             --set config.kubeProxy.clusterCIDRs=10.244.0.0/16",
        ),
        (
            "helm/helm",
            "helm install tripod deploy/helm/tripod --namespace kube-system --set \
             image.repository=tripod --take-owner",
        ),
    ];
    for (program, line) in programs {
        if tool(program).is_some() {
            let words = shell::commands(line).remove(0);
            assert!(check(&words, &mut cluster).is_err(), "{line}");
        }
    }
}
