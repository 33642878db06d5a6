//! `tripod migrate`: examines this node, and combines the findings with kube-proxy's configuration
//! and the cluster's objects.

use std::{path::Path, process::ExitCode};

use net::Family;
use xtables::Engine;

use super::{
    probe,
    render::{self, Objects, OwnAddresses},
};
use crate::{
    ask,
    cli::{self, Machine, Migrate, Output, Settings},
    config::ModeName,
    kernel::probe::Kernel,
    listing::first_of,
    migrate::{
        self, Chosen, Given, Holdings, ModeChanges, Report, differences, node_lines, origin, state,
    },
    modes::verdict::{self, ModeRequirements},
    node,
    services::Tracker,
};

/// Exit status: there are differences that matter.
const DIFFERS: u8 = 1;
/// Exit status: the configuration or the objects cannot be read, or the answer cannot be written.
const FAILED: u8 = 2;
/// Maximum number of Nodes that an error names; the rest is counted.
const NODES: usize = 6;

/// Prints the differences. Returns the exit status.
pub(super) async fn check(asked: &Migrate) -> ExitCode {
    let printed = match report(asked).await {
        Ok(report) => print(&report, asked.output).map(|()| report.differs()),
        Err(error) => Err(error),
    };
    match printed {
        Ok(true) => ExitCode::from(DIFFERS),
        Ok(false) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

/// Prints why nothing can be compared. Returns the exit status.
pub(super) fn failed(why: &str) -> ExitCode {
    cli::fail(&why, FAILED)
}

fn print(report: &Report, output: Output) -> Result<(), String> {
    cli::put(&text(report, output)?).map_err(|error| error.to_string())
}

async fn report(asked: &Migrate) -> Result<Report, String> {
    let mut given = origin::read(&asked.from)?;
    if let Some(name) = &asked.hostname_override {
        let configuration = &mut given.settings.configuration;
        configuration.hostname_override.clone_from(name);
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
    let mut own = None;
    let mut dropping = None;
    let (kernel, engines, there) = match &asked.machine {
        Machine::Node => {
            let kernel = probe::examine_last(&requirements);
            let engines = engines(&kernel);
            let (mode, chosen) = chosen(settings, &kernel, &requirements);
            let exclude = &settings.effective.ipvs_exclude;
            let observed = state::observe(exclude).await;
            report.node = Some(chosen);
            report.kernel = state::groups(&observed, mode, &engines);
            report.unknown = observed.unknown.clone();
            dropping = observed.dropping.clone();
            let there = match asked.manifests {
                Some(_) => {
                    own = Some(node::addresses::own().map_err(|error| error.to_string())?);
                    node_lines::read(&observed, exclude).await?
                }
                None => Holdings::default(),
            };
            (kernel, engines, there)
        }
        machine => {
            let kernel = probe::imagine(settings, &requirements);
            let there = match machine {
                Machine::Saved(folder) => {
                    node_lines::saved(folder, &settings.effective.ipvs_exclude)?
                }
                _ => Holdings::default(),
            };
            (kernel, Vec::new(), there)
        }
    };
    report.differences = differences(&given, report.node.as_ref(), dropping.as_deref());
    if let Some(folder) = &asked.manifests {
        let target = Target {
            given: &given,
            kernel: &kernel,
            requirements: &requirements,
            engines: &engines,
            own: own
                .as_deref()
                .map_or(OwnAddresses::Object, OwnAddresses::Listed),
        };
        let mut objects = render::read(settings, folder).await?;
        report.incomplete = lacking_node(&objects, folder)?;
        if !objects.faults.is_empty() {
            let faults = objects.faults.join("; ");
            let faults = format!("--manifests has invalid parts: {faults}");
            let before = report.incomplete.take().map(|before| format!("{before}; "));
            report.incomplete = Some(before.unwrap_or_default() + &faults);
        }
        report.changes = Some(target.changes(&there, &mut objects.tracker)?);
    }
    Ok(report)
}

/// The configuration and the kernel with which Tripod would run.
struct Target<'a> {
    given: &'a Given,
    kernel: &'a Kernel,
    requirements: &'a ModeRequirements,
    /// The engine of its rules in each family; a missing family is not known.
    engines: &'a [(Family, Engine)],
    own: OwnAddresses<'a>,
}

impl Target<'_> {
    /// Lines of `there` that change in each mode, for the objects of `tracker`.
    fn changes(&self, there: &Holdings, tracker: &mut Tracker) -> Result<Vec<ModeChanges>, String> {
        let settings = &self.given.settings;
        let engine = |family| {
            let mut engines = self.engines.iter();
            let found = engines.find(|(of, _)| *of == family);
            found.map(|(_, engine)| *engine)
        };
        let mut changes = Vec::new();
        for mode in ModeName::ALL {
            let verdict = verdict::verdict(mode, self.kernel, self.requirements);
            let mut places = Vec::new();
            let impossible = (!verdict.can_run()).then(|| verdict.to_string());
            if impossible.is_none() {
                let text = render::text_of(mode, self.kernel, settings, tracker, self.own);
                let mut desired = Holdings::default();
                desired.rendered(&text.map_err(|error| error.to_string())?, engine);
                places = migrate::changes(there, &desired);
            }
            changes.push(ModeChanges {
                mode: mode.to_string(),
                impossible,
                places,
            });
        }
        Ok(changes)
    }
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

/// The mode that this node would run, and why.
fn chosen(
    settings: &Settings,
    kernel: &Kernel,
    requirements: &ModeRequirements,
) -> (Option<ModeName>, Chosen) {
    let choice = verdict::choose(settings.effective.mode, kernel, requirements);
    let chosen = Chosen {
        mode: choice.mode.map(|mode| mode.to_string()),
        passed_over: choice.passed_over().collect(),
        lost: choice.lost().collect(),
    };
    (choice.mode, chosen)
}

fn engines(kernel: &Kernel) -> Vec<(Family, Engine)> {
    let of = |family| Some((family, kernel.toolkit(family).ok()?.writer.engine));
    Family::ALL.into_iter().filter_map(of).collect()
}

fn text(report: &Report, output: Output) -> Result<String, String> {
    ask::document(report, output, |wide| migrate::table(report, wide))
}

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf};

    use super::*;
    use crate::cli::Origin;

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
        let report = report(&Migrate {
            from: Origin::File(folder.join("config")),
            machine: Machine::Elsewhere,
            manifests: Some(folder.clone()),
            hostname_override: name.map(str::to_owned),
            output: Output::Table,
        })
        .await;
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
        let text = text(&report, Output::Table).unwrap();
        assert!(text.contains("\nincomplete  --manifests"), "{text}");
    }
}
