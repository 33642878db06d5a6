//! `tripod test`: checks whether calls of Services reach the endpoints that the mode promises.
//! `tripod check`: whether a node of a cluster serves what it should.

mod agent;
mod call;
mod chance;
mod check;
mod cluster;
mod declared;
mod judge;
mod many;
mod print;
mod promise;
mod report;
mod sandbox;
mod server;

use std::process::ExitCode;

pub use self::{check::check, server::serve};

use crate::{
    ask,
    cli::{self, Test},
};

/// Exit status: nothing can be tested.
const UNABLE: u8 = 2;

/// Runs the requested test, and prints the report. Returns the exit status: 0; 1 if a promise is
/// not kept; 2 if nothing could be tested.
pub async fn test(asked: &Test) -> ExitCode {
    let report = match &asked.manifests {
        Some(folder) => sandbox::run(folder, asked).await,
        None => cluster::test(&asked.cluster, &asked.common.socket).await,
    };
    let printed = report.and_then(|report| {
        ask::show(&report, asked.common.format.output, |_| {
            print::text(&report)
        })?;
        Ok(report.status())
    });
    printed.unwrap_or_else(|error| cli::fail(&error, UNABLE))
}
