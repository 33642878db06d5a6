//! Asks the health-check node port of a Service, as a load balancer does.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use net::Protocol;
use serde_json::Value;
use tokio::{
    net::TcpStream,
    time::{sleep, timeout},
};

use super::{
    super::report::{Check, Finding, Outcome},
    objects::{Kind, Run},
    stage::{Reach, Stage, TestService},
};
use crate::ask;

/// Time between one request and the next.
const PAUSE: Duration = Duration::from_millis(200);

/// How long an answer may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// The status and the content of an answer, or why there is none.
pub type Answer = Result<(u16, Value), String>;

/// Asks at this node's address of each IP family, repeatedly until `settled` while the answer is
/// not as promised.
pub async fn check(stage: &Stage, run: &Run, settled: Instant) -> Vec<Check> {
    let Some(service) = stage.service(Kind::LoadBalancer) else {
        return Vec::new();
    };
    let Some(port) = service.health_check else {
        let why = "the API server gave the Service no healthCheckNodePort".to_owned();
        return vec![row(service, run, "-".to_owned(), Finding::skipped(why))];
    };
    let mut checks = Vec::new();
    for ip in &service.cluster_ips {
        let Some(node) = stage.node_ip(*ip) else {
            continue;
        };
        let to = SocketAddr::new(node, port);
        let here = stage.servers(Kind::LoadBalancer, node, Reach::Node).len();
        let finding = match not_served(to, run).await {
            Some(why) => Finding::skipped(why),
            None => tried(to, here, settled).await,
        };
        checks.push(row(service, run, to.to_string(), finding));
    }
    checks
}

/// Explains why nothing answers at that address; `None` if something does.
async fn not_served(to: SocketAddr, run: &Run) -> Option<String> {
    let protocol = Protocol::Tcp.name();
    match ask::explanation(&run.socket, ask::PATIENCE, to, protocol, "node").await {
        Ok(explained) if explained.verdict == "answered" => None,
        Ok(explained) => {
            let steps = explained.steps.last().cloned().unwrap_or_default();
            Some(format!("no health checks there: {steps}"))
        }
        Err(why) => Some(why),
    }
}

async fn tried(to: SocketAddr, here: usize, settled: Instant) -> Finding {
    loop {
        let finding = judge(ask(to, ANSWER_WITHIN).await, here);
        if finding.outcome == Outcome::Passed || Instant::now() > settled {
            return finding;
        }
        sleep(PAUSE).await;
    }
}

/// Asks for the health of a Service.
pub async fn ask(to: SocketAddr, within: Duration) -> Answer {
    let answer = timeout(within, async {
        let stream = TcpStream::connect(to).await;
        ask::exchange(stream.map_err(|error| error.to_string())?, "/").await
    });
    let answer = answer.await.unwrap_or_else(|_| Err("timed out".to_owned()));
    let (status, body) = answer?;
    let content = serde_json::from_slice(&body).unwrap_or_default();
    Ok((status.as_u16(), content))
}

/// Judges whether the answer reports `here` endpoints on this node.
fn judge(answer: Answer, here: usize) -> Finding {
    let expected = if here > 0 { 200 } else { 503 };
    let promised = format!("status {expected}, localEndpoints {here}");
    let (status, content) = match answer {
        Ok(answer) => answer,
        Err(error) => return Finding::tried(promised, error, false),
    };
    let count = &content["localEndpoints"];
    let kept = status == expected && count.as_u64() == Some(here as u64);
    let seen = format!("status {status}, localEndpoints {count}");
    Finding::tried(promised, seen, kept)
}

fn row(service: &TestService, run: &Run, to: String, finding: Finding) -> Check {
    let service_port = format!("{}/{}:tcp", run.namespace, service.name);
    Check::of_node("health-check node port", service_port, to, finding)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_has_the_endpoints_of_this_node() {
        let answer = |code: u16, body: &str| Ok((code, serde_json::from_str(body).unwrap()));
        let two = r#"{"localEndpoints":2,"serviceProxyHealthy":true}"#;
        let none = r#"{"localEndpoints":0,"serviceProxyHealthy":true}"#;
        for (answer, here, outcome, seen) in [
            (
                answer(200, two),
                2,
                Outcome::Passed,
                "status 200, localEndpoints 2",
            ),
            (
                answer(503, none),
                0,
                Outcome::Passed,
                "status 503, localEndpoints 0",
            ),
            (
                answer(200, two),
                1,
                Outcome::Failed,
                "status 200, localEndpoints 2",
            ),
            (
                answer(503, two),
                2,
                Outcome::Failed,
                "status 503, localEndpoints 2",
            ),
            (
                answer(200, "null"),
                2,
                Outcome::Failed,
                "status 200, localEndpoints null",
            ),
            (
                Err("connection refused".to_owned()),
                2,
                Outcome::Failed,
                "connection refused",
            ),
        ] {
            let judged = judge(answer, here);
            assert_eq!(judged.outcome, outcome, "{seen}");
            assert_eq!(judged.seen, seen);
        }
    }
}
