//! Why a transaction was not carried out.

use netlink::{Error, Reason, Refusal};
use nix::errno::Errno;

use super::transaction::{Grouping, Part, Transaction};

/// Why a transaction was not carried out, or is not known to have been.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Something was changed since the generation that it was made for.
    /// Nothing was carried out.
    #[error("another process changed nf_tables meanwhile")]
    Changed,
    /// The kernel refused these changes; nothing was carried out, of the others
    /// either.
    #[error("{}", all(.0))]
    Refused(Vec<Refused>),
    /// It is not known whether it was carried out.
    #[error(transparent)]
    Unknown(#[from] Error),
}

/// A change that the kernel refused.
#[derive(Debug)]
pub struct Refused {
    /// Which step of the transaction, from 0 on; `None`: the transaction as a
    /// whole.
    pub step: Option<usize>,
    /// Index of the refused element of that step; `None`: the step adds or deletes no elements, or
    /// the element is not known.
    pub element: Option<usize>,
    /// The kernel's error, with the name of the refused object.
    pub error: Error,
}

/// How many refusals are named in one text.
const NAMED: usize = 5;

fn all(refused: &[Refused]) -> String {
    let named = refused.iter().take(NAMED).map(|r| r.error.to_string());
    let mut text = named.collect::<Vec<_>>().join("; ");
    if refused.len() > NAMED {
        text.push_str(&format!("; and {} more", refused.len() - NAMED));
    }
    text
}

impl Failure {
    /// Returns the first reason as an error.
    pub fn first(self) -> Error {
        match self {
            Failure::Unknown(error) => error,
            Failure::Changed => Error::new("change", "nf_tables", Reason::Unstable(1)),
            Failure::Refused(refused) => {
                let first = refused.into_iter().next().map(|refused| refused.error);
                first.unwrap_or_else(|| Error::new("change", "nf_tables", Errno::UnknownErrno))
            }
        }
    }
}

impl Refused {
    /// Names the objects of `transaction`, which was sent in this `grouping`, that the kernel
    /// refused.
    pub(super) fn named(
        transaction: &Transaction,
        grouping: Grouping,
        refusals: Vec<Refusal>,
    ) -> Vec<Refused> {
        let mut named = Vec::new();
        // The first request begins the transaction, the last ends it. The kernel names refused
        // objects in the order of requests, except for the frame.
        let mut parts = (1..).zip(transaction.parts(grouping)).peekable();
        for refusal in refusals {
            while parts.next_if(|(index, _)| *index < refusal.index).is_some() {}
            let part = parts.peek().filter(|(index, _)| *index == refusal.index);
            named.push(Refused::new(
                transaction,
                part.map(|(_, part)| part),
                refusal,
            ));
        }
        named
    }

    fn new(transaction: &Transaction, part: Option<&Part<'_>>, refusal: Refusal) -> Refused {
        let table = transaction.table();
        let (operation, object) = match part {
            Some(part) => part.named(table),
            None => ("change", format!("table {table} of nf_tables")),
        };
        let Refusal { errno, hint, .. } = refusal;
        Refused {
            step: part.map(|part| part.index),
            element: part.and_then(Part::element),
            error: Error::new(operation, object, Reason::Refused { errno, hint }),
        }
    }
}
