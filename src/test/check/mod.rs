//! `tripod check`: whether this node serves what it should, and calls from it arrive. Changes
//! nothing, unless it is told to make Services.

mod addresses;
mod attempt;
mod calls;
mod endpoints;
mod sample;
mod state;
#[cfg(test)]
mod tests;

use std::{
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};

use tokio::time::{sleep, timeout};

use self::calls::{Calls, Doubt};
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
    status_api::{Diff, ServicePort},
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
    let ports = match ask::service_ports(socket, None, None).await {
        Ok(ports) => ports,
        Err(why) => {
            report.fault(node, "Services", why, "see the log of Tripod");
            return Ok(report);
        }
    };
    let mut called = 0;
    if !asked.no_calls {
        let compared = (ask::differences(socket).await, Instant::now());
        called = call(asked, node, &ports, &mut report).await;
        add_comparison(node, socket, compared, &mut report).await;
    }
    if let Some(kubeconfig) = &asked.make {
        let settings = asked.cluster(kubeconfig.clone());
        match cluster::test(&settings, socket).await {
            Ok(made) => report.faults.extend(failed(node, &made)),
            Err(why) => {
                let remedy = "tripod test on this node makes the same; it needs the rights that its page lists";
                report.fault(node, "Services made for the check", why, remedy);
            }
        }
    }
    report.nodes.push(CheckedNode {
        node: node.to_owned(),
        version: status.version.clone(),
        mode: status.mode.name.clone(),
        mode_named: status.mode.named,
        service_ports: ports.len(),
        endpoints: ports.iter().map(|port| port.endpoints.len()).sum(),
        digest: sample::digest(&ports),
        called,
        seconds: begun.elapsed().as_secs_f64(),
    });
    Ok(CheckReport::of([report]))
}

/// Calls a sample of the Services. Returns the number of calls.
async fn call(asked: &Check, node: &str, ports: &[ServicePort], report: &mut CheckReport) -> usize {
    let sample = sample::sample(ports, node, ADDRESSES);
    let calls = Calls::new(asked, node);
    let (endpoints, addresses) =
        tokio::join!(calls.endpoints(&sample), calls.addresses(ports, &sample));
    // It may have stopped after the last question.
    let status = ask::status_of(&asked.common.socket);
    if let Err(Doubt::Wrong(finding)) = calls.question(status).await {
        report.faults.push(finding);
    }
    let hosts = asked.others.iter().map(|(_, ip)| *ip).collect();
    endpoints::add(node, &hosts, &endpoints, report);
    let mut unknown = 0;
    for doubt in addresses.into_iter().filter_map(Result::err) {
        match doubt {
            Doubt::Wrong(finding) => report.faults.push(finding),
            Doubt::Unknown => unknown += 1,
            Doubt::Late => {}
        }
    }
    for (count, problem, remedy) in [
        (
            calls.left.get(),
            "calls were not made in time",
            "use a longer --timeout",
        ),
        (
            unknown,
            "addresses cannot be judged: their endpoints do not answer this node, or a limit of \
             connections was reached",
            "see the endpoints; a NetworkPolicy may forbid these calls",
        ),
    ] {
        if count > 0 {
            report.note(node, "the check", format!("{count} {problem}"), remedy);
        }
    }
    calls.made.get()
}

/// Adds what two comparisons with the kernel show: the first one that shows anything, and one after
/// it. One that fails is repeated.
async fn add_comparison(
    node: &str,
    socket: &Path,
    (mut compared, mut at): (Result<Diff, String>, Instant),
    report: &mut CheckReport,
) {
    let mut before: Option<Diff> = None;
    for is_last in [false, false, true] {
        match (compared, &before) {
            (Ok(now), _) if !state::differs(&now) => return,
            (Ok(now), Some(before)) => return state::add_differences(node, before, &now, report),
            (Ok(now), None) => before = Some(now),
            (Err(why), _) if is_last => {
                let object = "comparison with the kernel";
                return report.fault(node, object, why, "see the log of Tripod");
            }
            (Err(_), _) => {}
        }
        sleep(APART.saturating_sub(at.elapsed())).await;
        (compared, at) = (ask::differences(socket).await, Instant::now());
    }
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
