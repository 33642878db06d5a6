//! The chart as shipped: its files, and Helm's verdict on it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{IMAGE, NEW_CLUSTER, helm, rendered, template};
use crate::deploy::{folder, read};

/// The newest version of Kubernetes that is supported.
const NEWEST: &str = "1.37.0";

/// Lists the files below `place`.
fn files(place: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(place).expect("a folder");
    let each = entries.flat_map(|entry| {
        let path = entry.expect("an entry").path();
        let kind = fs::symlink_metadata(&path).expect("a file").file_type();
        assert!(
            !kind.is_symlink(),
            "{}: Helm warns of links",
            path.display()
        );
        if kind.is_dir() {
            files(&path)
        } else {
            vec![path]
        }
    });
    each.collect()
}

#[test]
fn copies_of_manifests_are_current() {
    let place = folder().join("helm/tripod");
    let copies = place.join("files");
    let mut found = 0;
    for path in files(&place) {
        let Ok(original) = path.strip_prefix(&copies) else {
            continue;
        };
        found += 1;
        let copy = fs::read_to_string(&path).expect("a copy");
        let original = original.to_str().expect("a path");
        // assert_eq! would print a whole dashboard.
        let is_current = copy == read(original);
        assert!(is_current, "deploy/{original} has changed: run make chart");
    }
    assert!(found > 10, "{found} copies");
}

/// Helm's verdict on the oldest version, on the newest, and on one that is too old.
#[test]
fn it_renders_for_every_supported_kubernetes() {
    let chart = read("helm/tripod/Chart.yaml");
    let (_, oldest) = chart.split_once("kubeVersion: \">=").expect("a version");
    let oldest = oldest.split('-').next().expect("a version");
    for (version, is_supported) in [(oldest, true), (NEWEST, true), ("1.27.99", false)] {
        let done = helm(&[
            "template",
            "tripod",
            "helm/tripod",
            "--namespace=kube-system",
            "--kube-version",
            version,
            "--set",
            IMAGE,
        ]);
        let Some(done) = done else { return };
        let errors = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.success(), is_supported, "{version}: {errors}");
        assert_eq!(errors.contains("kubeVersion"), !is_supported, "{errors}");
    }
}

#[test]
fn the_archive_is_complete() {
    let place = std::env::temp_dir().join(format!("tripod-chart-{}", std::process::id()));
    fs::create_dir_all(&place).expect("a temporary folder");
    let to = place.to_str().expect("a path");
    let Some(done) = helm(&["package", "helm/tripod", "--destination", to]) else {
        return;
    };
    assert!(done.status.success(), "{done:?}");
    let archive = format!("{to}/tripod-{}.tgz", env!("CARGO_PKG_VERSION"));
    let values = [&NEW_CLUSTER[..], &["monitoring.enabled=true"]].concat();
    assert_eq!(
        template(&archive, "kube-system", &values),
        rendered(&values)
    );
    for arguments in [
        &["lint", "--strict", &archive][..],
        &["lint", "--strict", &archive, "--set", IMAGE],
        &["show", "readme", &archive],
    ] {
        let Some(done) = helm(arguments) else { return };
        assert!(done.status.success(), "{done:?}");
        assert!(!done.stdout.is_empty(), "{arguments:?}");
    }
    fs::remove_dir_all(place).expect("it was made");
}
