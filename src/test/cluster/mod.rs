//! Tests the Tripod that runs on this node of a cluster: with pods and Services made for the test,
//! or with existing Services.

mod carry_out;
mod change;
pub(super) mod existing;
mod external;
pub(super) mod health;
mod kubernetes;
mod networks;
mod objects;
mod preferences;
mod promise;
mod setup;
mod stage;
mod tried;
mod tries;

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, Read, Write},
    net::IpAddr,
    path::Path,
    time::{Duration, Instant},
};

use data_encoding::HEXLOWER;
use tokio::time::timeout;

use self::{kubernetes::Kubernetes, networks::External, objects::Run, stage::Stage};
use super::report::{Check, Finding, Report};
use crate::{
    ask,
    cli::{Cluster, Ends},
    status_api::Status,
};

/// How long it may take until the state that the running Tripod shows is applied, with a
/// `minSyncPeriod` of some seconds, and a sync of a large cluster.
const SETTLES: Duration = Duration::from_secs(10);

/// Time limit for removing everything.
const CLEANED_WITHIN: Duration = Duration::from_secs(30);

/// Runs the requested test. Returns the report.
///
/// # Errors
/// Says why nothing can be tested.
pub async fn test(asked: &Cluster, socket: &Path) -> Result<Report, String> {
    let running = ask::status_of(socket).await?;
    if !asked.services.is_empty() {
        let checks = existing::test(&asked.services, socket).await?;
        return Ok(Report::new(&running.mode.name, checks));
    }
    let kubernetes = Kubernetes::open(asked.kubeconfig.clone()).await?;
    let run = run(asked, socket, &kubernetes).await?;
    let mut ends = Ends::listen().map_err(|error| error.to_string())?;
    let done = tokio::select! {
        done = try_all(&kubernetes, &run, &running) => done,
        () = ends.arrived() => Err("interrupted".to_owned()),
    };
    if asked.keep {
        let Run { namespace, id, .. } = &run;
        say(&format!(
            "pods and Services stay in namespace {namespace}; to remove them: kubectl -n \
             {namespace} delete pods,services -l app.kubernetes.io/instance={id}"
        ));
    } else {
        remove(&kubernetes).await;
    }
    done
}

/// Chooses the namespace and the names of the objects.
async fn run(asked: &Cluster, socket: &Path, kubernetes: &Kubernetes) -> Result<Run, String> {
    let mut id = random()?;
    id.truncate(8);
    let own = format!("tripod-test-{id}");
    let number = u32::from_str_radix(&id, 16).unwrap_or_default();
    Ok(Run {
        namespace: asked.namespace.clone().unwrap_or(own),
        is_own: asked.namespace.is_none(),
        id,
        image: match &asked.image {
            Some(image) => image.clone(),
            None => kubernetes.image().await?,
        },
        token: random()?,
        socket: socket.to_owned(),
        timeout: asked.timeout,
        keep: asked.keep,
        external: External::choose(&asked.external, number, &taken(socket).await?),
    })
}

/// Asks for the addresses of the Services that the running proxy serves.
async fn taken(socket: &Path) -> Result<BTreeSet<IpAddr>, String> {
    let served = ask::service_ports(socket, None, None).await?;
    let addresses = served.iter().flat_map(|port| &port.addresses);
    let ips = addresses.filter_map(|address| address.ip.as_deref()?.parse().ok());
    Ok(ips.collect())
}

/// Returns 32 random hexadecimal digits that nobody can guess.
fn random() -> Result<String, String> {
    let mut bytes = [0; 16];
    let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(|error| format!("/dev/urandom cannot be read: {error}"))?;
    Ok(HEXLOWER.encode(&bytes))
}

async fn try_all(kubernetes: &Kubernetes, run: &Run, running: &Status) -> Result<Report, String> {
    say(&format!(
        "creating pods and Services in namespace {}",
        run.namespace
    ));
    let mut stage = setup::set_up(kubernetes, run, running).await?;
    let tries = tries::all(&stage);
    say(&format!("testing {} things", tries.len()));
    let settled = Instant::now() + SETTLES;
    let mut checks = carry_out::each(&tries, run, settled).await;
    checks.extend(health::check(&stage, run, settled).await);
    checks.extend(not_made(&stage, run));
    checks.extend(alone(&stage, run));
    say("removing an endpoint");
    checks.extend(change::try_change(kubernetes, run, &mut stage).await);
    Ok(Report::new(stage.mode, checks))
}

/// Returns the row that says why nothing was tested across nodes; `None` if it was.
fn alone(stage: &Stage, run: &Run) -> Option<Check> {
    let why = stage.alone.clone()?;
    Some(Check {
        name: "another node".to_owned(),
        service_port: run.namespace.clone(),
        to: "-".to_owned(),
        protocol: "TCP, UDP".to_owned(),
        from: "a pod of another node".to_owned(),
        finding: Finding::skipped(why),
    })
}

/// Returns the rows for skipped Services that a cluster may refuse, or that a mode may not support.
fn not_made(stage: &Stage, run: &Run) -> Vec<Check> {
    let each = stage.not_made.iter().map(|(kind, why)| Check {
        name: kind.check().to_owned(),
        service_port: format!("{}/{}", run.namespace, run.named(kind.name())),
        to: "-".to_owned(),
        protocol: "TCP, UDP".to_owned(),
        from: "this node, its pods".to_owned(),
        finding: Finding::skipped(why.clone()),
    });
    each.collect()
}

/// Removes everything that was created, whatever the results; reports leftovers.
async fn remove(kubernetes: &Kubernetes) {
    let until = Instant::now() + CLEANED_WITHIN;
    for (of, name) in kubernetes.made() {
        let left = until.saturating_duration_since(Instant::now());
        let why = match timeout(left, kubernetes.delete(&of, &name)).await {
            Ok(Ok(())) => continue,
            Ok(Err(failure)) => failure.to_string(),
            Err(_) => format!("no answer within {} s", CLEANED_WITHIN.as_secs()),
        };
        say(&format!(
            "{name} of {of} stays: {why}; remove it with kubectl delete"
        ));
    }
}

/// Reports progress on standard error, separate from the report.
fn say(words: &str) {
    let _ = writeln!(io::stderr(), "{words}");
}
