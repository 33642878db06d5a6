//! How the outcomes of the model show to a caller.

use std::net::{IpAddr, SocketAddr};

use simulated::packet::{Disposition, Outcome, Packet};

use super::call::Seen;

/// The expected outcome for a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Expected {
    /// The server at this address answers, which sees an address of the node as the caller's,
    /// or the caller's own.
    Answer(SocketAddr, Masqueraded),
    /// The call is refused, also if it reaches the node itself, on which nothing listens.
    Refused,
    Silence,
}

type Masqueraded = bool;

impl Expected {
    /// Returns how an outcome shows on a node; `is_own` says which addresses the node has.
    pub(super) fn of(
        outcome: &Outcome,
        packet: &Packet,
        is_own: impl Fn(&IpAddr) -> bool,
    ) -> Expected {
        match outcome.disposition {
            Disposition::Dropped => Expected::Silence,
            Disposition::Refused => Expected::Refused,
            Disposition::Passes(to) if is_own(&to.ip()) => Expected::Refused,
            // No host accepts packets from outside that have its own address as their source.
            Disposition::Passes(to) if to.ip() == packet.source.ip() && !outcome.masqueraded => {
                Expected::Silence
            }
            Disposition::Passes(to) => Expected::Answer(to, outcome.masqueraded),
        }
    }

    /// Returns whether a call from `source` with the result `seen` shows it, on a node
    /// with the addresses `own`.
    pub(super) fn is(self, seen: &Seen, source: SocketAddr, own: &[IpAddr]) -> bool {
        match (self, seen) {
            (Expected::Answer(to, masqueraded), Seen::Answer(by, from)) => {
                let is_own = from.ip() != source.ip() && own.contains(&from.ip());
                let has_source = if masqueraded { is_own } else { *from == source };
                to == *by && has_source
            }
            (Expected::Refused, Seen::Refused) | (Expected::Silence, Seen::Silence) => true,
            _ => false,
        }
    }
}
