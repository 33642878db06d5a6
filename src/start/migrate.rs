//! `tripod migrate --check`: examines this node, and joins that with what follows from
//! kube-proxy's configuration and the cluster's objects.

use std::{
    io::{self, Write},
    path::Path,
    process::ExitCode,
};

use super::{
    probe,
    render::{self, OwnAddresses},
};
use crate::{
    ask,
    cli::{self, Machine, Migrate, Output, Settings},
    kernel::{probe::Kernel, xtables::Engine},
    migrate::{
        self, Chosen, Given, Holdings, ModeChanges, Report, differences, node_lines, origin, state,
    },
    modes::verdict::{self, ModeRequirements},
    net::{Family, ModeName},
    node,
};

/// Something that matters differs.
const DIFFERS: u8 = 1;
/// The configuration or the objects cannot be read, or the answer cannot be written.
const FAILED: u8 = 2;

/// Prints what differs. Returns the status to exit with.
pub(super) async fn check(asked: &Migrate) -> ExitCode {
    let printed = match report(asked).await {
        Ok(report) => print(&report, asked.output).map(|()| report.differs()),
        Err(error) => Err(error),
    };
    match printed {
        Ok(true) => ExitCode::from(DIFFERS),
        Ok(false) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: {error}");
            ExitCode::from(FAILED)
        }
    }
}

fn print(report: &Report, output: Output) -> Result<(), String> {
    cli::put(&text(report, output)?).map_err(|error| error.to_string())
}

async fn report(asked: &Migrate) -> Result<Report, String> {
    let given = origin::read(&asked.from)?;
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
    };
    // These are of this node, if it is the one that is asked about.
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
        report.changes = Some(target.changes(&there, folder).await?);
    }
    Ok(report)
}

/// The configuration and the kernel with which Tripod would run.
struct Target<'a> {
    given: &'a Given,
    kernel: &'a Kernel,
    requirements: &'a ModeRequirements,
    /// The engine of its rules in each family; a family that is missing: not known.
    engines: &'a [(Family, Engine)],
    own: OwnAddresses<'a>,
}

impl Target<'_> {
    /// Returns what changes, in each mode, of the lines in `there`, for the objects of a folder.
    async fn changes(&self, there: &Holdings, folder: &Path) -> Result<Vec<ModeChanges>, String> {
        let settings = &self.given.settings;
        let mut tracker = render::read(settings, folder).await?;
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
                let text = render::text_of(mode, self.kernel, settings, &mut tracker, self.own);
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

/// Returns the mode that this node would run, and why.
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
    ask::document(report, output, || {
        migrate::table(report, output == Output::Wide)
    })
}
