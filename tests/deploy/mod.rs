//! The promises of `deploy/`: manifests that Kubernetes accepts as intended, rights for exactly the
//! calls that are made, flags that the binary accepts, and a static binary that needs no other
//! file.

mod aarch64;
mod addresses;
pub mod chart;
mod chroot;
mod command;
mod configuration;
mod holder;
mod image;
mod monitoring;
mod objects;
mod package;
mod privileges;
mod release;
mod rights;
mod secure;
mod surge;

use std::{path::PathBuf, time::Duration};

use k8s_openapi::api::{apps::v1::DaemonSet, core::v1::ConfigMap};
use serde_json::Value;

/// How soon an edit of a manifest must take effect, even on a slow machine; less than the 30 s
/// after which everything is compared.
const SOON: Duration = Duration::from_secs(20);

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("deploy")
}

fn read(file: &str) -> String {
    let path = folder().join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The documents of a file.
fn documents(file: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(&read(file)).unwrap_or_else(|e| panic!("{file}: {e}"))
}

/// The only document of a file.
fn only<T: serde::de::DeserializeOwned>(file: &str) -> T {
    let [document] = <[Value; 1]>::try_from(documents(file)).expect("one document");
    serde_json::from_value(document).unwrap_or_else(|e| panic!("{file}: {e}"))
}

fn daemon_set() -> DaemonSet {
    only("kustomize/base/daemon-set.yaml")
}

fn config_map() -> ConfigMap {
    only("kustomize/new-cluster/config-map.yaml")
}
