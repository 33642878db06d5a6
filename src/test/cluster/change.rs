//! Removes an endpoint while connections are open.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use tokio::{net::TcpStream, time::timeout};

use super::{
    super::{
        call::{Seen, ask_by},
        report::{Check, Finding, Outcome},
    },
    carry_out, health,
    kubernetes::Kubernetes,
    objects::{Kind, NO_ROLE, ROLE, Run, SERVICE_PORT},
    promise::{Promise, answered},
    setup,
    stage::{Reach, Stage},
    tries,
};

/// The server that is removed from the Services, but continues to run.
const LEAVES: &str = "here-2";

const LEFT: &str = "an endpoint is removed";

/// How long opening a connection, or an answer over it, may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Connections to one address, opened before the change.
struct Open {
    to: SocketAddr,
    streams: Vec<TcpStream>,
    failed: usize,
}

/// Removes an endpoint, and checks the promises for that case.
pub async fn try_change(kubernetes: &Kubernetes, run: &Run, stage: &mut Stage) -> Vec<Check> {
    let before = open(stage).await;
    let pod = run.named(LEAVES);
    let label = (ROLE, NO_ROLE);
    if let Err(failure) = kubernetes.label_pod(&run.namespace, &pod, label).await {
        let judged = Finding::skipped(failure.to_string());
        return vec![row(stage, run, LEFT, "-".to_owned(), judged)];
    }
    for pod in &mut stage.pods {
        pod.plan.serves &= pod.plan.name != LEAVES;
    }
    let until = Instant::now() + run.timeout;
    let mut checks = Vec::new();
    match setup::in_force(stage, run, until).await {
        Ok(_) => {
            let tries = tries::after_change(stage);
            let settled = Instant::now() + super::SETTLES;
            checks.extend(carry_out::each(&tries, run, settled).await);
            checks.extend(health::check(stage, run, settled).await);
        }
        Err(why) => {
            let promised = format!("{LEAVES} is removed from the Services");
            let judged = Finding::tried(promised, why, false);
            checks.push(row(stage, run, LEFT, "-".to_owned(), judged));
        }
    }
    for open in before {
        checks.push(finish(stage, run, open).await);
    }
    checks
}

/// Opens enough connections from this node that the endpoint to be removed has some.
async fn open(stage: &Stage) -> Vec<Open> {
    let mut all = Vec::new();
    let service = stage.service(Kind::ClusterIp);
    for ip in service.into_iter().flat_map(|service| &service.cluster_ips) {
        let to = SocketAddr::new(*ip, SERVICE_PORT);
        let count = Promise::Every(stage.servers(Kind::ClusterIp, *ip, Reach::Cluster)).calls();
        let mut open = Open {
            to,
            streams: Vec::new(),
            failed: 0,
        };
        for _ in 0..count {
            match timeout(ANSWER_WITHIN, TcpStream::connect(to)).await {
                Ok(Ok(stream)) => open.streams.push(stream),
                _ => open.failed += 1,
            }
        }
        all.push(open);
    }
    all
}

/// Asks over the open connections.
async fn finish(stage: &Stage, run: &Run, open: Open) -> Check {
    let mut seen = Vec::new();
    for stream in open.streams {
        seen.push(ask_by(stream, ANSWER_WITHIN).await);
    }
    let judged = judge(&seen, open.failed);
    row(
        stage,
        run,
        "connections outlive a change",
        open.to.to_string(),
        judged,
    )
}

/// Judges whether the connections continued, including those to the removed endpoint.
fn judge(seen: &[Seen], not_opened: usize) -> Finding {
    let answered = answered(seen);
    let total: usize = answered.values().sum();
    let left = answered.get(LEAVES).copied().unwrap_or_default();
    let lost = seen.len() - total;
    let mut words = format!("{total} of {} continued, {left} to {LEAVES}", seen.len());
    if not_opened > 0 {
        words = format!("{words}; {not_opened} could not be opened");
    }
    let outcome = match () {
        () if lost > 0 || not_opened > 0 || seen.is_empty() => Outcome::Failed,
        // The scheduler did not choose that endpoint, so nothing is known about it.
        () if left == 0 => Outcome::Skipped,
        () => Outcome::Passed,
    };
    Finding {
        promised: format!("connections continue, also those to {LEAVES}, which was removed"),
        seen: words,
        outcome,
    }
}

fn row(stage: &Stage, run: &Run, name: &str, to: String, finding: Finding) -> Check {
    let service = stage.service(Kind::ClusterIp);
    let service = service.map(|service| service.name.clone());
    let service_port = format!("{}/{}:tcp", run.namespace, service.unwrap_or_default());
    Check::of_node(name, service_port, to, finding)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by(name: &str) -> Seen {
        Seen::Answer {
            name: name.to_owned(),
            client: "10.244.0.9:4000".parse().unwrap(),
        }
    }

    #[test]
    fn connections_go_on_or_not() {
        for (seen, not_opened, outcome) in [
            (vec![by("here-1"), by(LEAVES)], 0, Outcome::Passed),
            (vec![by("here-1"), by(LEAVES)], 1, Outcome::Failed),
            (vec![by(LEAVES), Seen::Refused], 0, Outcome::Failed),
            (vec![by(LEAVES), Seen::Silence], 0, Outcome::Failed),
            (vec![by("here-1")], 0, Outcome::Skipped),
            (vec![], 0, Outcome::Failed),
        ] {
            assert_eq!(judge(&seen, not_opened).outcome, outcome, "{seen:?}");
        }
    }
}
