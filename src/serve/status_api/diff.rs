//! Answers `/v1/diff`.

use hyper::StatusCode;

use super::{StatusApi, json, kernel_refusal, refused};
use crate::{
    config::ModeName,
    runner::question::{self, Compared, Unanswered},
    serve::http::{Answer, Peer},
    status_api::{Diff, Difference, FamilyDiff, Listed, VERSION},
};

/// Maximum number of differences of a family in an answer.
const MOST: usize = 1_000;

impl StatusApi {
    pub(super) async fn diff(&self, peer: Peer) -> Answer {
        if let Some(answer) = kernel_refusal(peer).or_else(|| self.not_ready()) {
            return answer;
        }
        match self.questions.compare().await {
            Ok(compared) => {
                let node = self.node_differences(None);
                json(&diff(compared, self.about.mode, &node))
            }
            Err(why) => unanswered(why),
        }
    }
}

/// Returns the answer if the runner does not answer a question.
pub(super) fn unanswered(why: Unanswered) -> Answer {
    let status = match why {
        Unanswered::Busy => StatusCode::TOO_MANY_REQUESTS,
        Unanswered::Ending => StatusCode::SERVICE_UNAVAILABLE,
    };
    refused(status, why.to_string())
}

fn diff(compared: Compared, mode: ModeName, node: &[question::Difference]) -> Diff {
    let families = compared.into_iter().filter_map(|(family, found)| {
        let (error, found) = match found? {
            Ok(found) => (None, found),
            Err(error) => (Some(error.to_string()), Vec::new()),
        };
        Some(FamilyDiff {
            family: family.to_string(),
            error,
            differences: Listed::first(&found, MOST, difference),
        })
    });
    Diff {
        api_version: VERSION.to_owned(),
        kind: "Diff".to_owned(),
        mode: mode.to_string(),
        families: families.collect(),
        node: Listed::first(node, MOST, difference),
    }
}

pub(super) fn difference(found: &question::Difference) -> Difference {
    let owner = found.owner.as_ref();
    Difference {
        found: found.found.to_string(),
        object: found.object.clone(),
        service_port: owner.map(ToString::to_string),
        protocol: owner.map(|name| name.protocol.to_string()),
    }
}
