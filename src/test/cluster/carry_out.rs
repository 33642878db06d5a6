//! Makes the calls of each test case, and reports their results.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr, UdpSocket},
    time::{Duration, Instant},
};

use tokio::time::sleep;

use super::{
    super::{
        call::Seen,
        many::{self, Calls},
        report::{Check, Finding, Outcome},
    },
    objects::Run,
    tried::Try,
};
use crate::ask;

/// Time between one attempt and the next.
const PAUSE: Duration = Duration::from_millis(200);

/// Number of calls that show the address of a caller.
const FEW: usize = 4;

/// Runs one test case after the other. If a result is not as promised, the case is repeated until
/// `settled`, as often as time allows, since the running Tripod shows a change before it is
/// applied, and then once more, since a packet may get lost.
pub async fn each(tries: &[Try], run: &Run, settled: Instant) -> Vec<Check> {
    let mut checks = Vec::new();
    for tried in tries {
        checks.extend(one(tried, run, settled).await);
    }
    checks
}

async fn one(tried: &Try, run: &Run, settled: Instant) -> Vec<Check> {
    let mut untried = not_served(tried, run).await;
    if untried.is_none() {
        untried = not_outside(tried, run).await;
    }
    if let Some(why) = untried {
        return vec![row(tried, run, Finding::skipped(why))];
    }
    let mut is_last = false;
    loop {
        let checks = match calls(tried, tried.calls()).await {
            Ok(seen) => judged(tried, run, &seen),
            Err(why) => vec![row(tried, run, Finding::skipped(why))],
        };
        let mut outcomes = checks.iter().map(|check| check.finding.outcome);
        if is_last || !outcomes.any(|outcome| outcome == Outcome::Failed) {
            return checks;
        }
        is_last = Instant::now() > settled;
        sleep(PAUSE).await;
    }
}

/// Explains why there is nothing to call at an address of this node; `None` if there is.
async fn not_served(tried: &Try, run: &Run) -> Option<String> {
    if !tried.at_node {
        return None;
    }
    let protocol = tried.protocol.name();
    let own = tried.caller.of_family(tried.to.ip());
    let from = own.first().map_or("node".to_owned(), IpAddr::to_string);
    match ask::explanation(&run.socket, ask::PATIENCE, tried.to, protocol, &from).await {
        // Packets to a loopback address stay on this node, which refuses them.
        Ok(explained)
            if explained.verdict == "notServed"
                || tried.to.ip().is_loopback() && explained.verdict == "refused" =>
        {
            let steps = explained.steps.last().cloned().unwrap_or_default();
            Some(format!("no node port there: {steps}"))
        }
        Ok(_) => None,
        Err(why) => Some(why),
    }
}

/// Explains why the caller does not count as an outside one, if the promise requires that. Its own
/// node may replace its address, so the addresses that servers see are looked up.
async fn not_outside(tried: &Try, run: &Run) -> Option<String> {
    if !tried.from_outside {
        return None;
    }
    let few = Calls {
        count: FEW,
        ..tried.calls()
    };
    let own = tried.caller.of_family(tried.to.ip());
    let seen = calls(tried, few).await.unwrap_or_default();
    let clients = seen.iter().filter_map(|seen| match seen {
        Seen::Answer { client, .. } => Some(client.ip()).filter(|ip| own.contains(ip)),
        _ => None,
    });
    let clients: BTreeSet<IpAddr> = clients.collect();
    let senders: Vec<IpAddr> = if clients.is_empty() {
        own
    } else {
        clients.into_iter().collect()
    };
    for ip in senders {
        let (protocol, from) = (tried.protocol.name(), ip.to_string());
        match ask::explanation(&run.socket, ask::PATIENCE, tried.to, protocol, &from).await {
            Ok(explained) if explained.origin == "outside" => {}
            Ok(_) => {
                return Some(format!(
                    "Tripod takes {ip} for a pod (--cluster-cidr), and the policy applies only to \
                     other callers"
                ));
            }
            Err(why) => return Some(why),
        }
    }
    None
}

async fn calls(tried: &Try, calls: Calls) -> Result<Vec<Seen>, String> {
    match &tried.caller.agent {
        Some(agent) => agent.make(calls).await,
        None => Ok(many::make(calls).await),
    }
}

/// Builds the row for the calls, and the row for the addresses that servers saw.
fn judged(tried: &Try, run: &Run, seen: &[Seen]) -> Vec<Check> {
    let mut checks = vec![row(tried, run, tried.promise.judge(seen))];
    let client = tried.client.as_ref();
    if let Some(judged) = client.and_then(|client| client.judge(seen, is_own)) {
        let mut check = row(tried, run, judged);
        check.name = format!("{}, client address", check.name);
        checks.push(check);
    }
    checks
}

/// Returns whether an address belongs to this node: no other can be bound.
fn is_own(ip: IpAddr) -> bool {
    UdpSocket::bind(SocketAddr::new(ip, 0)).is_ok()
}

fn row(tried: &Try, run: &Run, finding: Finding) -> Check {
    let port = tried.protocol.name().to_lowercase();
    Check {
        name: tried.name.clone(),
        service_port: format!("{}/{}:{port}", run.namespace, tried.service),
        to: tried.to.to_string(),
        protocol: tried.protocol.to_string(),
        from: tried.caller.words.clone(),
        finding,
    }
}
