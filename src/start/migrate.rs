//! `tripod migrate`: examines this node, and combines the findings with kube-proxy's configuration
//! and the cluster's objects.

use std::{net::IpAddr, path::Path, process::ExitCode};

use net::Family;
use xtables::Engine;

use super::{
    probe,
    render::{self, Objects},
};
use crate::{
    ask,
    cli::{self, Migrate, Settings},
    config::ModeName,
    kernel::probe::Kernel,
    listing::first_of,
    migrate::{
        self, Chosen, Holdings, ModeChanges, Report, differences, node_lines, origin, state,
    },
    modes::verdict,
    node,
};

/// Exit status: the configuration or the objects cannot be read, or the answer cannot be written.
const FAILED: u8 = 2;
/// Maximum number of Nodes that an error names; the rest is counted.
const NODES: usize = 6;

/// Prints the differences. Returns the exit status.
pub(super) async fn check(asked: &Migrate) -> ExitCode {
    let printed = report(asked).await.and_then(|report| {
        let output = asked.format.output;
        ask::show(&report, output, |wide| migrate::table(&report, wide))?;
        Ok(cli::exit_status(!report.differs()))
    });
    printed.unwrap_or_else(|error| failed(&error))
}

/// Prints why nothing can be compared. Returns the exit status.
pub(super) fn failed(why: &str) -> ExitCode {
    cli::fail(&why, FAILED)
}

async fn report(asked: &Migrate) -> Result<Report, String> {
    let mut given = origin::read(asked.config.as_deref(), asked.pid)?;
    if let Some(name) = asked.node() {
        let configuration = &mut given.settings.configuration;
        configuration.hostname_override = name.to_owned();
    }
    let settings = &given.settings;
    let requirements = probe::requirements(settings);
    let mut report = Report {
        configuration: given.origin.clone(),
        kube_proxy_mode: given.kube_proxy_mode().to_string(),
        asked: settings.effective.mode.to_string(),
        node: None,
        differences: Vec::new(),
        kernel: Vec::new(),
        unknown: Vec::new(),
        changes: None,
        incomplete: None,
    };
    // These are known only if the question is about this node.
    let (mut own, mut dropping, mut engines) = (None, None, Vec::new());
    let mut there = Holdings::default();
    let exclude = &settings.effective.ipvs_exclude;
    let kernel = if asked.is_of_this_machine() {
        let kernel = probe::examine_last(&requirements);
        engines = engines_of(&kernel);
        let choice = verdict::choose(settings.effective.mode, &kernel, &requirements);
        let observed = state::observe(exclude).await;
        report.node = Some(Chosen {
            mode: choice.mode.map(|mode| mode.to_string()),
            passed_over: choice.passed_over().collect(),
            lost: choice.lost().collect(),
        });
        report.kernel = state::groups(&observed, choice.mode, &engines);
        if asked.manifests.is_some() {
            own = Some(node::addresses::own().map_err(|error| error.to_string())?);
            there = node_lines::read(&observed, exclude).await?;
        }
        report.unknown = observed.unknown;
        dropping = observed.dropping;
        kernel
    } else {
        if let Some(folder) = &asked.saved {
            there = node_lines::saved(folder, exclude)?;
        }
        probe::imagine(settings, &requirements)
    };
    report.differences = differences(&given, report.node.as_ref(), dropping.as_deref());
    if let Some(folder) = &asked.manifests {
        let own = own.as_deref();
        add_changes(
            &mut report,
            settings,
            folder,
            &kernel,
            &engines,
            own,
            &there,
        )
        .await?;
    }
    Ok(report)
}

/// Adds the lines of `there` that change in each mode, for the objects of `folder`, on a node with that
/// kernel and its `own` addresses. The engine of its rules in a family that is not in `engines` is not
/// known.
async fn add_changes(
    report: &mut Report,
    settings: &Settings,
    folder: &Path,
    kernel: &Kernel,
    engines: &[(Family, Engine)],
    own: Option<&[IpAddr]>,
    there: &Holdings,
) -> Result<(), String> {
    let mut objects = render::read(settings, folder).await?;
    let mut incomplete: Vec<String> = lacking_node(&objects, folder)?.into_iter().collect();
    if !objects.faults.is_empty() {
        let faults = objects.faults.join("; ");
        incomplete.push(format!("--manifests has invalid parts: {faults}"));
    }
    report.incomplete = (!incomplete.is_empty()).then(|| incomplete.join("; "));
    let engine = |family| {
        let mut engines = engines.iter();
        engines.find_map(|(of, engine)| (*of == family).then_some(*engine))
    };
    let requirements = probe::requirements(settings);
    let mut changes = Vec::new();
    for mode in ModeName::ALL {
        let verdict = verdict::verdict(mode, kernel, &requirements);
        let (mut impossible, mut places) = (None, Vec::new());
        if verdict.can_run() {
            let text = render::text_of(mode, kernel, settings, &mut objects.tracker, own);
            let mut desired = Holdings::default();
            desired.rendered(&text.map_err(|error| error.to_string())?, engine);
            places = migrate::changes(there, &desired);
        } else {
            impossible = Some(verdict.to_string());
        }
        changes.push(ModeChanges {
            mode: mode.to_string(),
            impossible,
            places,
        });
    }
    report.changes = Some(changes);
    Ok(())
}

/// Message about the lines that are missing because `folder` has no Nodes; `None` if it has the
/// node of the settings.
///
/// # Errors
/// When it has Nodes, but not that node: the lines would be those of a node without addresses.
fn lacking_node(objects: &Objects, folder: &Path) -> Result<Option<String>, String> {
    let Objects {
        tracker,
        node,
        nodes,
        ..
    } = objects;
    let folder = folder.display();
    if tracker.node().is_some() {
        return Ok(None);
    }
    if nodes.is_empty() {
        return Ok(Some(format!(
            "--manifests {folder} has no Node: lines that depend on the object of node {node:?} \
             (its addresses, its pod networks) are missing from what would be added, and may be \
             among what would be removed; add it with kubectl get nodes"
        )));
    }
    let named = first_of(nodes, NODES);
    Err(format!(
        "--manifests {folder} has no Node called {node:?}, but {named}: name the node whose rules \
         are compared with --hostname-override"
    ))
}

fn engines_of(kernel: &Kernel) -> Vec<(Family, Engine)> {
    let of = |family| Some((family, kernel.toolkit(family).ok()?.writer.engine));
    Family::ALL.into_iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf};

    use super::*;
    use crate::cli::{Job, read};

    const CONFIG: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\n\
                          kind: KubeProxyConfiguration\nmode: iptables\nhostnameOverride: \"\"\n";
    const SERVICE: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: b}\n\
                           spec: {clusterIP: 10.96.0.9, ports: [{port: 80}]}\n";
    const NODES: &str = "---\napiVersion: v1\nkind: Node\nmetadata: {name: node-1}\n---\n\
                         apiVersion: v1\nkind: Node\nmetadata: {name: node-2}\n";

    /// Compares a folder with these objects, for a node of this name, on another machine.
    async fn compare(test: &str, objects: &str, name: Option<&str>) -> Result<Report, String> {
        let name_of_folder = format!("tripod-migrate-{test}-{}", std::process::id());
        let folder: PathBuf = std::env::temp_dir().join(name_of_folder);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("objects.yaml"), objects).unwrap();
        fs::write(folder.join("config"), CONFIG).unwrap();
        let config = format!("--config={}", folder.join("config").display());
        let manifests = format!("--manifests={}", folder.display());
        let name = format!("--hostname-override={}", name.unwrap_or_default());
        let line = [
            "tripod",
            "migrate",
            &config,
            "--without-node",
            &manifests,
            &name,
        ];
        let settings = read(line.map(Into::into), |_| unreachable!("no file is named"));
        let Job::Migrate(asked) = settings.expect("settings").job else {
            panic!("another job");
        };
        let report = report(&asked).await;
        fs::remove_dir_all(folder).unwrap();
        report
    }

    /// Otherwise the result would be that of a node without addresses.
    #[tokio::test]
    async fn a_folder_with_other_nodes_alone_is_refused() {
        let objects = format!("{SERVICE}{NODES}");
        for name in [None, Some("node-3")] {
            let why = compare("others", &objects, name).await.unwrap_err();
            assert!(why.contains("but node-1, node-2: name the node"), "{why}");
            assert!(why.contains("--hostname-override"), "{why}");
        }
        let report = compare("named", &objects, Some("node-2")).await.unwrap();
        assert_eq!(report.incomplete, None);
        assert_eq!(report.changes.map(|modes| modes.len()), Some(4));
    }

    #[tokio::test]
    async fn a_folder_without_nodes_makes_an_incomplete_report() {
        let report = compare("none", SERVICE, Some("node-2")).await.unwrap();
        assert!(report.changes.is_some());
        let text = migrate::table(&report, false);
        assert!(text.contains("\nincomplete  --manifests"), "{text}");
    }
}
