//! `tripod migrate --check`: examines this node, and joins that with what follows from
//! kube-proxy's configuration.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use super::probe;
use crate::{
    ask,
    cli::{Machine, Migrate, Output, Settings},
    kernel::{probe::Kernel, xtables::Engine},
    migrate::{self, Chosen, Report, differences, origin, state},
    modes::verdict,
    net::{Family, ModeName},
};

/// Something that matters differs.
const DIFFERS: u8 = 1;
/// The configuration cannot be read.
const FAILED: u8 = 2;

/// Prints what differs. Returns the status to exit with.
pub(super) async fn check(asked: &Migrate) -> ExitCode {
    let printed = match report(asked).await {
        Ok(report) => text(&report, asked.output).map(|text| (text, report.differs())),
        Err(error) => Err(error),
    };
    match printed {
        Ok((text, differs)) => {
            // The reader may close its end early, as `head` does.
            let _ = io::stdout().write_all(text.as_bytes());
            if differs {
                ExitCode::from(DIFFERS)
            } else {
                ExitCode::SUCCESS
            }
        }
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: {error}");
            ExitCode::from(FAILED)
        }
    }
}

async fn report(asked: &Migrate) -> Result<Report, String> {
    let given = origin::read(&asked.from)?;
    let settings = &given.settings;
    let (node, kernel) = match asked.machine {
        Machine::Elsewhere => (None, Vec::new()),
        Machine::Node => {
            let (mode, chosen, engines) = examined(settings);
            let observed = state::observe(&settings.effective.ipvs_exclude).await;
            (Some(chosen), state::groups(&observed, mode, &engines))
        }
    };
    Ok(Report {
        configuration: given.origin.clone(),
        kube_proxy_mode: given.kube_proxy_mode().to_string(),
        asked: settings.effective.mode.to_string(),
        differences: differences(&given, node.as_ref()),
        node,
        kernel,
    })
}

/// Returns the mode that this node would get, why, and where its rules would go.
fn examined(settings: &Settings) -> (Option<ModeName>, Chosen, Vec<(Family, Engine)>) {
    let requirements = probe::requirements(settings);
    let kernel = probe::examine_last(&requirements);
    let choice = verdict::choose(settings.effective.mode, &kernel, &requirements);
    let chosen = Chosen {
        mode: choice.mode.map(|mode| mode.to_string()),
        passed_over: choice.passed_over().collect(),
        lost: choice.lost().collect(),
    };
    (choice.mode, chosen, engines(&kernel))
}

fn engines(kernel: &Kernel) -> Vec<(Family, Engine)> {
    let of = |family| Some((family, kernel.toolkit(family).ok()?.writer.engine));
    Family::ALL.into_iter().filter_map(of).collect()
}

fn text(report: &Report, output: Output) -> Result<String, String> {
    ask::document(report, output, || migrate::table(report))
}
