//! Runs a batch, and returns the ServicePorts whose elements the kernel refused.

use std::collections::BTreeMap;

use netlink::Error;
use nftables::{Failure, Refused, Transaction};

use super::diff::Batch;
use crate::{modes::progress::SyncProgress, services::ServicePortName};

/// Why a batch was not applied.
#[derive(Debug)]
pub enum NotInForce {
    /// Another process changed something since the generation that it was made for.
    Changed(Error),
    /// Nothing but elements of these ServicePorts was refused, each with its reason;
    /// the error is the first.
    Elements(BTreeMap<ServicePortName, String>, Error),
    /// Something was refused that is not, or not known to be, an element of a
    /// ServicePort; the error is the first.
    Refused(Error),
    /// It is not known whether it was applied.
    Unknown(Error),
}

/// The objects that are counted. The kernel answers only when all of them are applied, or none.
const COUNTED: &str = "changes in one transaction";

/// Runs `batch` by `run`, and counts in `progress`.
///
/// # Errors
/// When nothing of it was applied, or that is not known.
pub fn execute(
    batch: &Batch,
    progress: &SyncProgress,
    run: impl FnOnce(&Transaction) -> Result<(), Failure>,
) -> Result<(), NotInForce> {
    let changes = batch.transaction.len();
    progress.begin(COUNTED, changes);
    progress.send(changes);
    let outcome = run(&batch.transaction);
    progress.confirm();
    outcome.map_err(|failure| {
        let kind = match &failure {
            Failure::Changed => NotInForce::Changed,
            Failure::Unknown(_) => NotInForce::Unknown,
            Failure::Refused(refused) => match by_owner(batch, refused) {
                Some(owners) => return NotInForce::Elements(owners, failure.first()),
                None => NotInForce::Refused,
            },
        };
        kind(failure.first())
    })
}

/// Returns the ServicePorts whose elements were refused, with the reasons; `None`
/// if something was refused that is not, or not known to be, an element of one.
fn by_owner(batch: &Batch, refused: &[Refused]) -> Option<BTreeMap<ServicePortName, String>> {
    let each = refused.iter().map(|refused| {
        let owner = batch.owner(refused.step?, refused.element?)?;
        Some((owner.clone(), refused.error.to_string()))
    });
    each.collect::<Option<BTreeMap<_, _>>>()
        .filter(|named| !named.is_empty())
}
