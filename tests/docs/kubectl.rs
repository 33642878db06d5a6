//! Calls of kubectl: the objects that they name are in `deploy/`, or created by an earlier call.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;
use tripod::ask::kubectl as plugin;

use super::{
    commands::{flag, is_there},
    root,
};
use crate::deploy::chart::tool;

/// Objects that Kubernetes and kubeadm create: kind, namespace, name.
const FOREIGN: [(&str, &str, &str); 3] = [
    ("clusterrolebinding", "", "kubeadm:node-proxier"),
    ("clusterrole", "", "system:node-proxier"),
    ("configmap", "kube-system", "kube-proxy"),
];

/// Names that kubectl has for kinds, in addition to the singular.
const KINDS: [&str; 5] = [
    "services",
    "endpointslices",
    "nodes",
    "namespaces",
    "controllerrevisions",
];

/// The port of metrics, unless configured.
const METRICS_PORT: &str = "10249";

/// Flags that take a value in a separate word.
const WITH_VALUE: [&str; 8] = [
    "-n",
    "-l",
    "-o",
    "-k",
    "-c",
    "--selector",
    "--output",
    "--for",
];

type Object = (String, String, String);

/// The objects that exist, as far as documents need them.
pub struct Cluster {
    objects: BTreeSet<Object>,
    /// DaemonSet and container.
    containers: BTreeSet<(String, String)>,
}

impl Cluster {
    /// Returns a cluster with the objects of `deploy/`.
    pub fn new() -> Cluster {
        let foreign = FOREIGN.map(|(kind, namespace, name)| {
            (kind.to_owned(), namespace.to_owned(), name.to_owned())
        });
        let mut cluster = Cluster {
            objects: foreign.into(),
            containers: BTreeSet::new(),
        };
        for folder in ["deploy/kustomize", "deploy/monitoring"] {
            for file in manifests(&root().join(folder)) {
                let text = fs::read_to_string(&file).expect("a manifest");
                let objects: Vec<Value> = serde_saphyr::from_multiple(&text).expect("YAML");
                objects.iter().for_each(|object| cluster.add(object));
            }
        }
        cluster
    }

    fn add(&mut self, object: &Value) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let metadata = &object["metadata"];
        let (kind, name) = (
            text(&object["kind"]).to_lowercase(),
            text(&metadata["name"]),
        );
        let containers = object["spec"]["template"]["spec"]["containers"].as_array();
        for container in containers.into_iter().flatten() {
            self.containers
                .insert((name.clone(), text(&container["name"])));
        }
        self.objects
            .insert((kind, text(&metadata["namespace"]), name));
    }

    /// Checks a call, by the words after the program's name.
    ///
    /// # Errors
    /// Names the thing that does not exist, or says that there is no check for the call.
    pub fn check(&mut self, words: &[&str]) -> Result<(), String> {
        if words.first() == Some(&"tripod") {
            let read = plugin::command().try_get_matches_from(words);
            return read.map(drop).map_err(|error| error.to_string());
        }
        // The words of another program, after `--`, are checked as a command of that program.
        let own = words.split(|word| *word == "--").next().unwrap_or_default();
        is_understood(own)?;
        let namespace = flag(own, &["-n"]).unwrap_or_default();
        let mut plain = Vec::new();
        let mut at = own.iter();
        while let Some(word) = at.next() {
            if WITH_VALUE.contains(word) {
                at.next();
            } else if !word.starts_with('-') {
                plain.push(*word);
            }
        }
        match &plain[..] {
            ["set", "image", of, image] => {
                self.exists(of, namespace)?;
                let set = of.split_once('/').map(|(_, name)| name).unwrap_or_default();
                let container = image.split('=').next().unwrap_or_default();
                let key = (set.to_owned(), container.to_owned());
                let is_there =
                    container.trim_matches('\'') == "*" || self.containers.contains(&key);
                is_there
                    .then_some(())
                    .ok_or(format!("{of} has no container {container}"))
            }
            ["rollout", "status" | "history" | "undo" | "restart", of] => {
                self.exists(of, namespace)
            }
            ["exec", of] => self.has_pod(of, namespace),
            ["port-forward", of, METRICS_PORT] => self.has_pod(of, namespace),
            ["apply" | "delete"] => {
                let folder = flag(own, &["-k"]).ok_or("it names no folder with -k")?;
                is_there(&format!("{folder}/kustomization.yaml"))
            }
            ["delete", "pod", "$POD"] | ["debug", "node/$NODE"] => Ok(()),
            ["delete", "namespaces"] => {
                selects(own, &format!("app.kubernetes.io/name={}", of_test()))
            }
            ["delete", kinds, names @ ..] if !names.is_empty() => {
                let kinds = kinds.split(',');
                let mut each = kinds.flat_map(|kind| names.iter().map(move |name| (kind, name)));
                each.try_for_each(|(kind, name)| self.exists(&format!("{kind}/{name}"), namespace))
            }
            ["get", kinds] => kinds.split(',').try_for_each(|kind| {
                let is_kind = KINDS.contains(&kind);
                is_kind
                    .then_some(())
                    .ok_or(format!("{kind} is no kind that is known"))
            }),
            ["events"] if flag(own, &["--for"]) == Some("service/NAME") => Ok(()),
            ["describe", "service"] | ["label", "node", "$NODE", _] => Ok(()),
            ["get" | "edit", kind, name] => self.exists(&format!("{kind}/{name}"), namespace),
            ["create", "token", name] => self.exists(&format!("serviceaccount/{name}"), "default"),
            ["create", "serviceaccount", name] => {
                self.made("serviceaccount", "default", name);
                Ok(())
            }
            ["create", "clusterrolebinding", name] => {
                let role = flag(own, &["--clusterrole"]).ok_or("no --clusterrole")?;
                self.exists(&format!("clusterrole/{role}"), "")?;
                let account = flag(own, &["--serviceaccount"]).and_then(|of| of.split_once(':'));
                let (namespace, account) = account.ok_or("no --serviceaccount NAMESPACE:NAME")?;
                self.exists(&format!("serviceaccount/{account}"), namespace)?;
                self.made("clusterrolebinding", "", name);
                Ok(())
            }
            _ => Err("it is not known how to check it: say so in tests/docs/kubectl.rs".to_owned()),
        }
    }

    fn made(&mut self, kind: &str, namespace: &str, name: &str) {
        self.objects
            .insert((kind.to_owned(), namespace.to_owned(), name.to_owned()));
    }

    /// Checks that `of`, KIND/NAME, is an object in `namespace`; cluster roles are in none.
    fn exists(&self, of: &str, namespace: &str) -> Result<(), String> {
        let (kind, name) = of.split_once('/').ok_or(format!("{of} is not KIND/NAME"))?;
        let object = (kind.to_owned(), namespace.to_owned(), name.to_owned());
        let is_there = self.objects.contains(&object);
        is_there
            .then_some(())
            .ok_or(format!("there is no {of} in namespace {namespace:?}"))
    }

    /// Checks that `of` is an object that has pods, or the name of one of the pods.
    fn has_pod(&self, of: &str, namespace: &str) -> Result<(), String> {
        if of.contains('/') {
            return self.exists(of, namespace);
        }
        let (set, _) = of
            .rsplit_once('-')
            .ok_or(format!("{of} is no pod of a DaemonSet"))?;
        self.exists(&format!("daemonset/{set}"), namespace)
    }
}

fn manifests(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let each = paths.flat_map(|path| match path.extension() {
        _ if path.is_dir() => manifests(&path),
        Some(kind) if kind == "yaml" => vec![path],
        _ => Vec::new(),
    });
    each.collect()
}

/// Checks that kubectl knows the command and its flags.
fn is_understood(words: &[&str]) -> Result<(), String> {
    let Some(program) = tool("kubectl/kubectl") else {
        return Ok(());
    };
    let done = Command::new(program).args(words).arg("--help").output();
    let done = done.expect("running kubectl");
    let errors = String::from_utf8_lossy(&done.stderr).into_owned();
    done.status.success().then_some(()).ok_or(errors)
}

fn selects(words: &[&str], expected: &str) -> Result<(), String> {
    let selector = flag(words, &["-l", "--selector"]);
    (selector == Some(expected))
        .then_some(())
        .ok_or(format!("the selector is {expected}"))
}

/// Reads the value of the label that `tripod test` gives to its objects.
fn of_test() -> String {
    let source = fs::read_to_string(root().join("src/test/cluster/objects.rs")).expect("a source");
    let (_, rest) = source
        .split_once("const APP: &str = \"")
        .expect("the constant");
    rest.split('"').next().expect("its value").to_owned()
}
