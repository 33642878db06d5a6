//! Answers `/v1/diff`.

use hyper::StatusCode;

use super::{StatusApi, json, refused};
use crate::{
    net::ModeName,
    runner::question::{self, Compared, Questions, Unanswered},
    serve::http::{Answer, Reply},
    status_api::{Diff, Difference, FamilyDiff, Listed, VERSION},
};

/// Most differences of a family in an answer.
const MOST: usize = 1_000;

impl StatusApi {
    pub(super) fn diff(&self) -> Reply {
        let (questions, mode) = (self.questions.clone(), self.about.mode);
        Reply::later(answer(questions, mode))
    }
}

async fn answer(questions: Questions, mode: ModeName) -> Answer {
    match questions.compare().await {
        Ok(compared) => json(&diff(compared, mode)),
        Err(why) => unanswered(why),
    }
}

/// Returns the answer of a runner that gives none.
pub(super) fn unanswered(why: Unanswered) -> Answer {
    let status = match why {
        Unanswered::Busy => StatusCode::TOO_MANY_REQUESTS,
        Unanswered::Ending => StatusCode::SERVICE_UNAVAILABLE,
    };
    refused(status, why.to_string())
}

fn diff(compared: Compared, mode: ModeName) -> Diff {
    let families = compared.into_iter().filter_map(|(family, found)| {
        let (error, found) = match found? {
            Ok(found) => (None, found),
            Err(error) => (Some(error.to_string()), Vec::new()),
        };
        Some(FamilyDiff {
            family: family.to_string(),
            error,
            differences: Listed {
                total: found.len(),
                items: found.iter().take(MOST).map(difference).collect(),
            },
        })
    });
    Diff {
        api_version: VERSION.to_owned(),
        kind: "Diff".to_owned(),
        mode: mode.to_string(),
        families: families.collect(),
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
