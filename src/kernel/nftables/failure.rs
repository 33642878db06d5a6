//! Why a transaction was not carried out.

use nix::errno::Errno;

use super::transaction::Transaction;
use crate::kernel::netlink::{Error, Refusal};

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
    Unknown(Error),
}

/// A change that the kernel refused.
#[derive(Debug)]
pub struct Refused {
    /// Which step of the transaction, from 0 on; `None`: the transaction as a
    /// whole.
    pub step: Option<usize>,
    /// Which element of that step, where it adds or deletes some and the kernel
    /// says which (since Linux 5.15); others of the step may be at fault, too.
    pub element: Option<usize>,
    /// What was refused, by its name, and why.
    pub error: Error,
}

/// So many refusals are named in one text.
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
    /// The first reason as an error.
    pub fn first(self) -> Error {
        match self {
            Failure::Unknown(error) => error,
            Failure::Changed => Error::Unstable {
                operation: "change",
                object: "nf_tables".to_owned(),
                attempts: 1,
            },
            Failure::Refused(refused) => {
                let first = refused.into_iter().next().map(|refused| refused.error);
                first.unwrap_or_else(|| Error::Refused {
                    operation: "change",
                    object: "nf_tables".to_owned(),
                    errno: Errno::UnknownErrno,
                    hint: None,
                })
            }
        }
    }
}

impl Refused {
    /// What the kernel refused of `transaction`, by name.
    pub(super) fn named(transaction: &Transaction, refusals: Vec<Refusal>) -> Vec<Refused> {
        let each = |refusal: Refusal| {
            let Refusal {
                index,
                errno,
                hint,
                offset,
            } = refusal;
            // The first request begins the transaction, the last ends it.
            let part = index
                .checked_sub(1)
                .and_then(|at| transaction.parts().nth(at));
            let Some(part) = part else {
                let object = format!("table {} of nf_tables", transaction.table());
                return Refused {
                    step: None,
                    element: None,
                    error: Error::Refused {
                        operation: "change",
                        object,
                        errno,
                        hint,
                    },
                };
            };
            let request = transaction.request(&part, index as u32);
            let element = part.element(request.body(), offset);
            let (operation, object) = part.named(transaction.table(), element);
            Refused {
                step: Some(part.index),
                element: element.map(|at| part.first + at),
                error: Error::Refused {
                    operation,
                    object,
                    errno,
                    hint,
                },
            }
        };
        refusals.into_iter().map(each).collect()
    }
}
