//! `tripod check`: whether this node serves what it should, and calls from it arrive. Changes
//! nothing, unless it is told to make Services.

mod calls;
mod endpoints;
mod sample;
mod state;
#[cfg(test)]
mod tests;

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use tokio::time::{sleep, timeout};

use self::calls::Calls;
use super::{
    UNABLE, cluster,
    report::{Outcome, Report},
};
use crate::{
    ask::{
        self,
        check::{CheckReport, CheckedNode, Finding},
    },
    cli::{self, Check},
};

/// Maximum number of addresses of Services that are called.
const ADDRESSES: usize = 100;

/// Time between two comparisons with the kernel. Changes of other programs are repaired, and
/// Services applied, within a second.
const APART: Duration = Duration::from_secs(2);

/// Checks this node, and prints the report. Returns the exit status: 0; 1 if there are faults; 2 if
/// nothing could be checked.
pub async fn check(asked: &Check) -> ExitCode {
    let report = report(asked).await;
    let printed = report.and_then(|report| report.print(asked.common.format.output));
    printed.unwrap_or_else(|error| cli::fail(&error, UNABLE))
}

async fn report(asked: &Check) -> Result<CheckReport, String> {
    let begun = Instant::now();
    let until = begun + asked.timeout;
    let socket = &asked.common.socket;
    let status = timeout(asked.timeout, ask::status_of(socket)).await;
    let status = status.map_err(|_| {
        format!(
            "Tripod does not answer at {} within {} s: it is stopped or hangs; see its log, or \
             restart it",
            socket.display(),
            asked.timeout.as_secs_f64()
        )
    })??;
    let node = &*status.node;
    let mut report = CheckReport::default();
    state::add_status(&status, &mut report);
    let ports = ask::service_ports(socket, None, None).await?;
    let before = ask::differences(socket).await;
    let compared = Instant::now();

    let sample = sample::sample(&ports, node, ADDRESSES);
    let calls = Calls::new(asked, node, until);
    let called = calls.endpoints(&sample).await;
    endpoints::add(node, &called, &mut report);
    let found = calls.addresses(&ports, &sample, &called).await;
    report.faults.extend(found);
    if calls.left.get() > 0 {
        let problem = format!("{} calls were not made in time", calls.left.get());
        let finding = Finding::new(node, "the check", problem, "use a longer --timeout");
        report.notes.push(finding);
    }

    let mut now = before.clone();
    if now.as_ref().is_ok_and(state::differs) {
        sleep(APART.saturating_sub(compared.elapsed())).await;
        now = ask::differences(socket).await;
    }
    match (before, now) {
        (Ok(before), Ok(now)) => state::add_differences(node, &before, &now, &mut report),
        (Err(why), _) | (_, Err(why)) => {
            let remedy = "see the log of Tripod";
            let finding = Finding::new(node, "comparison with the kernel", why, remedy);
            report.faults.push(finding);
        }
    }
    if let Some(kubeconfig) = &asked.make {
        let settings = asked.cluster(kubeconfig.clone());
        match cluster::test(&settings, socket).await {
            Ok(made) => report.faults.extend(failed(node, &made)),
            Err(why) => report.faults.push(Finding::new(
                node,
                "Services made for the check",
                why,
                "tripod test on this node makes the same; it needs the rights that its page lists",
            )),
        }
    }
    report.nodes.push(CheckedNode {
        node: node.to_owned(),
        version: status.version.clone(),
        mode: status.mode.name.clone(),
        service_ports: ports.len(),
        endpoints: ports.iter().map(|port| port.endpoints.len()).sum(),
        digest: sample::digest(&ports),
        called: calls.made.get(),
        seconds: begun.elapsed().as_secs_f64(),
    });
    Ok(report)
}

/// Returns the promises to Services made for the check that were not kept.
fn failed(node: &str, report: &Report) -> Vec<Finding> {
    let checks = report.checks.iter();
    let failed = checks.filter(|check| check.finding.outcome == Outcome::Failed);
    let each = failed.map(|check| {
        let object = format!("{} {} {}", check.name, check.to, check.protocol);
        let (promised, seen) = (&check.finding.promised, &check.finding.seen);
        let problem = format!(
            "called from {}, promised: {promised}; seen: {seen}",
            check.from
        );
        let remedy = "tripod trace shows the rules that packets to such a Service meet";
        Finding::new(node, object, problem, remedy)
    });
    each.collect()
}
