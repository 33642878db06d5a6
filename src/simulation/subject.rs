//! Differences between modes.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use net::Family;
use nix::errno::Errno;
use simulated::{
    Call, State,
    packet::{Outcomes, Packet, Update},
};
use testing::Random;

use super::{
    faults::Faults,
    world::{Called, ExternalPolicy, Flow, Open, Spec},
};
use crate::{kernel::probe, modes::Mode, runner::metrics::Metrics};

/// Whether a sync removed all rules that are not needed any more. That some could not be
/// removed is not reported for any Service; it is retried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Removals {
    #[default]
    Made,
    Left,
}

impl Removals {
    /// Evaluates the work that a sync reported as `unfinished`. Flows of UDP clients are no rules.
    pub(super) fn of(unfinished: &[String]) -> Removals {
        let is_of_rules = |text: &String| !text.contains("flows of UDP clients");
        if unfinished.iter().any(is_of_rules) {
            Removals::Left
        } else {
            Removals::Made
        }
    }
}

/// Report on a successful sync.
pub(super) struct Reported<'a> {
    /// The last change that has been applied, as all before it have.
    pub(super) version: u64,
    /// The Services that could not be applied nevertheless.
    pub(super) failed: &'a BTreeSet<usize>,
    pub(super) removals: Removals,
    /// Whether no work is left, apart from failures of single Services.
    pub(super) is_finished: bool,
}

/// Usual faults of modes whose syncs make few calls.
const FAULTS: Faults = Faults {
    calls: 60,
    edits: 15,
    once: false,
    kills: 8,
    outage: None,
};

/// How long a call may take if a program that hangs is given up after two minutes.
pub(super) const PROGRAM_HANGS: Duration = Duration::from_secs(125);

/// The endpoint on which a client stays that calls a Service in several ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StaysOn {
    /// For each way of calling, the endpoint that it got in that way.
    OfKind,
    /// Any of the endpoints that it got.
    Any,
    /// The endpoint that it got last, if that one may be reached in the same way.
    Last,
}

/// Which changes by others are repaired by a successful sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repairs {
    /// All that were made before it began.
    All,
    /// Those that were made before it read the rules.
    Read,
    /// The same, if it left out no Service. It compares object by object, so that meanwhile
    /// something may be removed that made up for another change.
    ReadOfAll,
    /// Those that were made before a full sync began, if nothing went wrong meanwhile.
    FullWithoutFault,
}

/// A mode that is simulated.
pub(super) trait Subject: Rules + Copy + 'static {
    /// The type of the mode, as users run it.
    type Mode: Mode + 'static;

    /// The usual faults.
    fn faults(&self) -> Faults {
        FAULTS
    }

    /// The abilities of the simulated kernel.
    fn kernel(&self) -> probe::Kernel;

    /// Creates the mode for such a kernel, as a process does when it starts.
    fn mode(&self, kernel: &probe::Kernel, metrics: &Metrics) -> Self::Mode;

    /// Removes everything that the mode ever installs, as `tripod cleanup` does. Fails with the
    /// reason.
    async fn cleanup(&self) -> Result<(), String> {
        Ok(())
    }
}

/// A mode's treatment of clients and changes, independent of its objects in the kernel.
pub(super) trait Promises: Send {
    /// Stores `update` in the kernel, as the packet that caused it would.
    fn remember(&self, state: &mut State, family: Family, update: &Update);

    /// Returns on which of its endpoints a client stays that calls a Service in several
    /// ways.
    fn stays_on(&self) -> StaysOn {
        StaysOn::OfKind
    }

    /// Returns whether a client stays on its endpoint when the traffic policy of its calls changes
    /// and still lets it.
    fn stays_across_policies(&self) -> bool {
        true
    }

    /// Returns whether a change of a Service takes effect step by step: meanwhile callers that the
    /// old or the new version lets in may reach any endpoint of either. `is_whole`: it was applied,
    /// and no earlier attempt to change it ended halfway.
    fn changes_by_steps(&self, _is_whole: bool) -> bool {
        false
    }

    /// Returns whether a Service of which a change is refused may be closed, and its clients may
    /// get other endpoints, until the change is applied.
    fn closes_what_is_left_out(&self) -> bool {
        true
    }

    /// Returns whether the applied state keeps working without the process.
    fn outlives_process(&self) -> bool {
        true
    }

    /// Makes the process leave its clients to the next one. Returns whether it did.
    fn leave(&self) -> bool {
        false
    }

    /// Returns whether the rules that masquerade callers, or do not, are applied before a Service
    /// is called in this way, although the program that writes them may have failed.
    fn has_source_rules(&self, _: Called, _program_failed: bool) -> bool {
        true
    }

    /// Returns whether a connection continues if its Service should become `spec`, or be removed
    /// (`None`).
    fn goes_on(&self, _: &Flow, _: Option<&Spec>) -> bool {
        true
    }

    /// Returns which callers reach only endpoints of this node, where the external policy
    /// is Local.
    fn external_policy(&self) -> ExternalPolicy {
        ExternalPolicy::OfOutside
    }

    /// Returns whether a node port may stay open permanently although its Service is gone: a new
    /// process leaves everything at the node's addresses to other programs unless a mark shows that
    /// it is ours, and another process removed that mark.
    fn loses_node_ports(&self) -> bool {
        false
    }

    /// Returns for how long after a fault a Service may fail to be applied because of it.
    fn recovers_within(&self) -> Duration {
        Duration::ZERO
    }

    /// Returns how long a call may take that gets no answer.
    fn patience(&self) -> Duration {
        Duration::ZERO
    }
}

/// A mode's objects in the kernel.
pub(super) trait Rules: Promises {
    /// Prepares the kernel before the first process begins.
    fn prepare(&self, _: &mut State) {}

    /// Returns all possible outcomes of a packet of `family` on a node with the addresses
    /// `own`.
    fn outcomes(&self, state: &State, family: Family, packet: &Packet, own: &[IpAddr]) -> Outcomes;

    /// Tells the kernel about a connection to an endpoint, where something other than connection
    /// tracking keeps it.
    fn connect(&self, _: &mut State, _: &Packet, _to: SocketAddr) {}

    /// Returns the destination that connection tracking has for a UDP flow whose first
    /// packet reached the endpoint `to`.
    fn tracked(&self, _: &State, _: Family, _: &Packet, to: SocketAddr) -> SocketAddr {
        to
    }

    /// Returns whether `at`, where connection tracking sends UDP flows, serves a Service.
    fn serves(&self, spec: &Spec, at: SocketAddr) -> bool {
        spec.serving().any(|to| to == at)
    }

    /// Returns a guard that keeps a connection open in the process, until it is dropped.
    fn accept(&self, _: &Packet) -> Option<Open> {
        None
    }

    /// Describes an address or port that is open in a family and must be closed at any time, apart
    /// from calls of Services.
    fn exposed(&self, _: &State, _: Family) -> Option<String> {
        None
    }

    /// Returns a difference from the desired state when everything has settled, apart from calls of
    /// Services and from [`Rules::exposed`].
    fn wrong(&self, _: &State, _own: &[IpAddr]) -> Option<String> {
        None
    }

    /// Describes an object of the mode for an address that is not in use.
    fn unneeded(&self, _: &State, _is_used: &dyn Fn(&IpAddr) -> bool) -> Option<String> {
        None
    }

    /// Returns anything that the mode has in the kernel; after a cleanup it must have nothing.
    fn remains(&self, _: &State) -> Option<String> {
        None
    }

    /// Returns whether another process may change something right before a call.
    fn may_edit_before(&self, _: Call) -> bool {
        true
    }

    /// Ends a connection.
    fn disconnect(&self, _: &mut State, _: &Packet, _to: SocketAddr) {}

    /// Returns which changes by others are repaired by a successful sync.
    fn repairs(&self) -> Repairs {
        Repairs::All
    }

    /// Returns whether a call is the first by which a sync reads the rules of `family`.
    fn reads(&self, call: Call, family: Family) -> bool {
        call == Call::Save(family)
    }

    /// Returns after how long a change by another process is noticed and repaired.
    fn noticed(&self) -> Duration {
        Duration::from_secs(2)
    }

    /// Returns the same for a change that another process made while a sync ran.
    fn noticed_after_a_sync(&self) -> Duration {
        self.noticed()
    }

    /// Returns whether all stale rules were removed, given the work that a sync reported as
    /// unfinished. A mode whose changes are one transaction leaves none.
    fn removals(&self, _unfinished: &[String]) -> Removals {
        Removals::Made
    }

    /// Changes an object as another process would. Returns the family of the change if it was ours
    /// and is different now. No such change breaks connections, but it may remove rules.
    fn edit(&self, state: &mut State, random: &mut Random) -> Option<Family>;

    /// Objects of other processes that must not be removed.
    fn foreign(&self, state: &State) -> BTreeSet<(Family, &'static str)>;

    /// Makes the kernel refuse everything of one Service, for this reason; `None`: it refuses
    /// nothing any more.
    fn refuse(&self, state: &mut State, refused: Option<(usize, Errno)>);
}
