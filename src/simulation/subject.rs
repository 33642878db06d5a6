//! What differs from mode to mode.

use std::{collections::BTreeSet, net::IpAddr, time::Duration};

use nix::errno::Errno;

use super::random::Random;
use crate::{
    kernel::simulated::{
        State,
        packet::{Fates, Packet, Update},
    },
    modes::Mode,
    net::Family,
    runner::metrics::Metrics,
};

/// Whether a sync took away all rules that are not needed any more. That some could not be
/// is said of no Service, and tried again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Removals {
    #[default]
    Made,
    Left,
}

/// A mode that is simulated.
pub(super) trait Subject: Rules + Copy + 'static {
    /// The type of the mode, which is the one that users run.
    type Mode: Mode + 'static;

    /// Makes the mode, as a process does that begins.
    fn mode(&self, metrics: &Metrics) -> Self::Mode;
}

/// What of the kernel a mode changes.
pub(super) trait Rules: Send {
    /// Prepares the kernel before the first process begins.
    fn prepare(&self, _: &mut State) {}

    /// Returns all that may become of a packet of `family` on a node that has the addresses
    /// `own`.
    fn fates(&self, state: &State, family: Family, packet: &Packet, own: &[IpAddr]) -> Fates;

    /// Has the kernel remember what it does when a packet is led so.
    fn remember(&self, state: &mut State, family: Family, update: &Update);

    /// Returns whether a client of one kind of calls may be sent to the endpoint that it
    /// got by another kind.
    fn shares_affinity(&self) -> bool;

    /// Returns whether a sync that does not read the rules leaves what others changed.
    fn repairs_what_is_read(&self) -> bool {
        false
    }

    /// Returns whether all rules went that are not needed any more, by what a sync said is
    /// unfinished. A mode whose changes are one transaction leaves none.
    fn removals(&self, _unfinished: &[String]) -> Removals {
        Removals::Made
    }

    /// Changes something as another process would. Returns of which family it was, if it
    /// was ours and is different now; nothing that it does breaks connections, but it may
    /// leave rules out.
    fn edit(&self, state: &mut State, random: &mut Random) -> Option<Family>;

    /// Returns what is there of other processes that nobody may take away.
    fn foreign(&self, state: &State) -> BTreeSet<(Family, &'static str)>;

    /// Has the kernel take nothing of one Service, for this reason; `None`: it takes all
    /// again.
    fn refuse(&self, state: &mut State, refused: Option<(usize, Errno)>);

    /// Returns how long a call may take that is not answered.
    fn patience(&self) -> Duration {
        Duration::ZERO
    }
}
