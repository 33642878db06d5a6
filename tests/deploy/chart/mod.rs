//! The Helm chart, rendered and installed by Helm itself.

mod archive;
mod cluster;
mod kustomize;
mod metrics;
mod protobuf;
mod release;
mod values;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::Value;

use super::folder;
use crate::lab::skip;

/// Objects by kind and name.
type Objects = BTreeMap<(String, String), Value>;

/// The image of the kustomization.
const IMAGE: &str = "image.repository=tripod";

pub const NEW_CLUSTER: [&str; 3] = [
    "config.create=true",
    "config.server=https://192.0.2.10:6443",
    "config.kubeProxy.clusterCIDR=10.244.0.0/16",
];

/// Returns a program that `make test-all` unpacked, or `None` after the test was skipped.
pub fn tool(path: &str) -> Option<PathBuf> {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools");
    let program = tools.join(path);
    if !program.is_file() {
        skip(format!(
            "{path} is not here: make test-all INSTALL=yes unpacks it"
        ));
        return None;
    }
    Some(program)
}

fn helm(arguments: &[&str]) -> Option<Output> {
    let mut command = Command::new(tool("helm/helm")?);
    let done = command.args(arguments).current_dir(folder()).output();
    Some(done.expect("running helm"))
}

/// Renders `chart` in `namespace` with these values, or returns why Helm refuses them.
fn attempt(chart: &str, namespace: &str, values: &[&str]) -> Option<Result<Objects, String>> {
    let mut arguments = vec!["template", "tripod", chart, "--namespace", namespace];
    for value in values {
        arguments.extend(["--set", value]);
    }
    let done = helm(&arguments)?;
    let errors = String::from_utf8_lossy(&done.stderr).into_owned();
    if !done.status.success() {
        return Some(Err(errors));
    }
    assert_eq!(errors, "", "{values:?}: a warning");
    Some(Ok(objects(&String::from_utf8_lossy(&done.stdout))))
}

fn template(chart: &str, namespace: &str, values: &[&str]) -> Option<Objects> {
    let values = [&[IMAGE], values].concat();
    let rendered = attempt(chart, namespace, &values)?;
    Some(rendered.unwrap_or_else(|errors| panic!("{values:?}: {errors}")))
}

pub fn rendered(values: &[&str]) -> Option<Objects> {
    template("helm/tripod", "kube-system", values)
}

/// Helm's reason to refuse these values, in addition to the image; empty if it accepts them.
pub fn refusal(values: &[&str]) -> Option<String> {
    let values = [&[IMAGE], values].concat();
    let rendered = attempt("helm/tripod", "kube-system", &values)?;
    Some(rendered.err().unwrap_or_default())
}

fn name(kind: &str, name: &str) -> (String, String) {
    (kind.to_owned(), name.to_owned())
}

/// Returns the DaemonSet `kube-proxy`.
pub fn proxy(objects: &Objects) -> &Value {
    &objects[&name("DaemonSet", "kube-proxy")]
}

/// Reads documents; a configuration within a ConfigMap counts by its meaning.
fn objects(text: &str) -> Objects {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).expect("YAML");
    let documents = documents.into_iter().filter(|object| !object.is_null());
    let mut found = Objects::new();
    for mut object in documents {
        if let Some(data) = object.get_mut("data").and_then(Value::as_object_mut) {
            for (_, text) in data.iter_mut().filter(|(key, _)| key.ends_with(".conf")) {
                let inner = text.as_str().expect("text");
                *text = serde_saphyr::from_str(inner).expect("YAML within YAML");
            }
        }
        let word = |value: &Value| value.as_str().expect("a word").to_owned();
        let name = (word(&object["kind"]), word(&object["metadata"]["name"]));
        assert!(
            found.insert(name.clone(), object).is_none(),
            "{name:?} again"
        );
    }
    found
}
