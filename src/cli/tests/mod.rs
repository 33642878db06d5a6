mod check;
mod file;
mod flags;
mod gates;
mod help;
mod live_test;
mod recorded;
mod test;
mod trace;
mod unknown;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::Path,
    time::Duration,
};

use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::Value;

use super::*;
use crate::{
    config::{DetectLocal, ModeName, NodePortAddresses},
    modes::userspace::capture::Requested,
    sched::SchedulerName,
};

const FLAGS: &str = include_str!("../../../tests/config/kube-proxy-1.36-flags.tsv");
const DEFAULTS: &str = include_str!("../../../tests/config/kube-proxy-1.36-config-defaults.yaml");
const EVERY_FIELD: &str = include_str!("../../../tests/config/every-field.yaml");
const EVERY_FIELD_COMPLETE: &str = include_str!("../../../tests/config/every-field.complete.yaml");
const KUBEADM: &str = include_str!("../../../tests/config/kubeadm-configmap.yaml");
const KUBEADM_COMPLETE: &str = include_str!("../../../tests/config/kubeadm.complete.yaml");

const TOP: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

/// Reads the settings of `tripod` with these arguments if the file `config` holds `text`.
fn read_with(text: &str, arguments: &[&str]) -> Result<Settings, Stop> {
    let all = std::iter::once(&"tripod").chain(arguments);
    read(all.map(Into::into), |path| {
        if path == Path::new("config") {
            Ok(text.to_owned())
        } else {
            Err(io::ErrorKind::NotFound.into())
        }
    })
}

fn settings(arguments: &[&str]) -> Settings {
    read_with("", arguments).unwrap_or_else(|stop| panic!("{arguments:?}: {stop:?}"))
}

fn settings_of_file(text: &str, more: &[&str]) -> Settings {
    let arguments = [&["--config=config"], more].concat();
    read_with(text, &arguments).unwrap_or_else(|stop| panic!("{text}: {stop:?}"))
}

fn refusal(text: &str, arguments: &[&str]) -> String {
    match read_with(text, arguments) {
        Err(Stop::Refusal(text)) => text,
        other => panic!("{arguments:?}: {other:?}"),
    }
}

fn answer(arguments: &[&str]) -> String {
    match read_with("", arguments) {
        Err(Stop::Answer(text)) => text,
        other => panic!("{arguments:?}: {other:?}"),
    }
}

fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).expect("valid")
}
