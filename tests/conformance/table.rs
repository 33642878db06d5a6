//! Checks the table itself, without running it.

use std::collections::HashSet;

use super::case::{Caller, Target};
use super::cases::{Numbered, numbered};
use super::columns::{COLUMNS, columns};
use super::observation::{Answered, How, Observation, Source};
use super::{TESTED, TESTED_WITHOUT, matrix, without};

#[test]
fn the_document_is_current() {
    let committed = std::fs::read_to_string(matrix::path()).unwrap_or_default();
    let current = matrix::document(matrix::cell) + &without::section(|v| v.cell());
    for (at, (old, new)) in committed.lines().zip(current.lines()).enumerate() {
        assert_eq!(old, new, "line {}: run `make conformance`", at + 1);
    }
    assert_eq!(committed, current, "run `make conformance`");
}

#[test]
fn it_is_large_enough_and_its_cases_differ() {
    let names: Vec<_> = numbered().map(|numbered| numbered.case.name).collect();
    assert!(names.len() >= 60, "{} cases", names.len());
    let different: HashSet<_> = names.iter().collect();
    assert_eq!(different.len(), names.len(), "two cases have the same name");
}

#[test]
fn every_column_has_a_test() {
    let names: Vec<_> = COLUMNS.iter().map(|column| column.name).collect();
    assert_eq!(names, TESTED);
    let mut varied: Vec<_> = without::variants().map(|v| v.column.name).collect();
    varied.dedup();
    assert_eq!(varied, TESTED_WITHOUT);
    assert!(columns().count() > 0);
}

#[test]
fn cases_say_what_can_be_seen() {
    for Numbered { case, .. } in numbered() {
        let name = case.name;
        assert!(!name.contains(['|', '\t', '\n']), "{name:?}");
        let expectations = case.stages.iter().flat_map(|stage| &stage.expectations);
        for expectation in expectations {
            let observations = expectation
                .but
                .iter()
                .map(|(_, _, observation)| observation);
            for observation in observations.chain([&expectation.observation]) {
                let health = matches!(
                    observation,
                    Observation::Healthy(_) | Observation::Unhealthy
                );
                let pods = matches!(observation, Observation::Answered(_));
                for target in &expectation.targets {
                    match target {
                        Target::HealthCheck => assert!(!pods, "{name}"),
                        _ => assert!(!health, "{name}"),
                    }
                }
                let Observation::Answered(Answered {
                    how, source, by, ..
                }) = observation
                else {
                    continue;
                };
                assert!(!by.is_empty(), "{name}: say refused");
                let node_calls = expectation.callers.contains(&Caller::Node);
                assert!(
                    !(node_calls && *source == Source::Kept),
                    "{name}: the node's address is the node's either way"
                );
                // Only the client pod has several addresses.
                let several = matches!(how, How::Sticky | How::StickyForASecond);
                let the_pod = expectation.callers == [Caller::Pod];
                assert!(
                    !several || the_pod,
                    "{name}: clients are addresses of the pod"
                );
            }
        }
        assert!(
            case.stages
                .iter()
                .any(|stage| !stage.expectations.is_empty()),
            "{name} expects nothing"
        );
    }
}

/// A difference with the same result as without it explains nothing.
#[test]
fn differences_differ() {
    for Numbered { case, .. } in numbered() {
        for stage in &case.stages {
            for expectation in &stage.expectations {
                for (columns, why, observation) in &expectation.but {
                    assert_ne!(
                        *observation, expectation.observation,
                        "{}: {why:?}",
                        case.name
                    );
                    assert!(
                        COLUMNS.iter().any(columns) || without::columns().any(|c| columns(&c)),
                        "{}: {why:?} is for no column",
                        case.name
                    );
                }
            }
        }
    }
}
