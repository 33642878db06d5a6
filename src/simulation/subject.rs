//! What differs from mode to mode.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use nix::errno::Errno;

use super::{
    faults::Faults,
    random::Random,
    world::{Called, ExternalPolicy, Flow, Open, Spec},
};
use crate::{
    kernel::{
        probe,
        simulated::{
            Call, State,
            packet::{Outcomes, Packet, Update},
        },
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

impl Removals {
    /// Returns what a sync said that names what is `unfinished`. Flows of UDP clients are no
    /// rules.
    pub(super) fn of(unfinished: &[String]) -> Removals {
        let is_of_rules = |text: &String| !text.contains("flows of UDP clients");
        if unfinished.iter().any(is_of_rules) {
            Removals::Left
        } else {
            Removals::Made
        }
    }
}

/// What is said of a sync that came in force.
pub(super) struct Reported<'a> {
    /// Everything up to this change is.
    pub(super) version: u64,
    /// But for these Services.
    pub(super) failed: &'a BTreeSet<usize>,
    pub(super) removals: Removals,
    /// Nothing is left to be done that is said of no Service.
    pub(super) is_finished: bool,
}

/// What goes wrong most of the time where a sync makes few calls.
const FAULTS: Faults = Faults {
    calls: 60,
    edits: 15,
    once: false,
    kills: 8,
    outage: None,
};

/// How long a call may take where a program that hangs is given up after two minutes.
pub(super) const PROGRAM_HANGS: Duration = Duration::from_secs(125);

/// On which endpoint a client stays that calls a Service in several ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StaysOn {
    /// In each way on the one that it got so.
    OfKind,
    /// On any of these.
    Any,
    /// On the one that it got last, where that may be called so.
    Last,
}

/// Which changes by others a sync repairs that comes in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repairs {
    /// All that were made before it began.
    All,
    /// Those that were made before it read the rules.
    Read,
    /// The same, if it left out no Service: object by object, so that meanwhile what one change
    /// left there may go that made up for another one.
    ReadOfAll,
    /// Those that were made before a full sync began, if nothing went wrong meanwhile.
    FullWithoutFault,
}

/// A mode that is simulated.
pub(super) trait Subject: Rules + Copy + 'static {
    /// The type of the mode, which is the one that users run.
    type Mode: Mode + 'static;

    /// What goes wrong most of the time.
    fn faults(&self) -> Faults {
        FAULTS
    }

    /// Returns what the simulated kernel can do.
    fn kernel(&self) -> probe::Kernel;

    /// Makes the mode for such a kernel, as a process does that begins.
    fn mode(&self, kernel: &probe::Kernel, metrics: &Metrics) -> Self::Mode;

    /// Removes what the mode ever installs, as `tripod cleanup` does. Fails with why it could
    /// not.
    async fn cleanup(&self) -> Result<(), String> {
        Ok(())
    }
}

/// How a mode treats clients and changes, whatever it has in the kernel.
pub(super) trait Promises: Send {
    /// Has the kernel remember what it does when a packet is led so.
    fn remember(&self, state: &mut State, family: Family, update: &Update);

    /// Returns which of the endpoints of a client that calls a Service in several ways it
    /// stays on.
    fn stays_on(&self) -> StaysOn {
        StaysOn::OfKind
    }

    /// Returns whether a change of a Service comes in force step by step: meanwhile those whom
    /// it lets in, as it is or was, may get any endpoint that it has, as it is or was. It
    /// `is_whole` where it was in force, and no earlier attempt to change it ended halfway.
    fn changes_by_steps(&self, _is_whole: bool) -> bool {
        false
    }

    /// Returns whether a Service of which a change is refused may be closed, and its clients may
    /// get other endpoints, until that is in force.
    fn closes_what_is_left_out(&self) -> bool {
        true
    }

    /// Returns whether what is in force goes on without the process.
    fn outlives_process(&self) -> bool {
        true
    }

    /// Has the process leave to the next one what it knows of its clients. Returns whether it
    /// did.
    fn leave(&self) -> bool {
        false
    }

    /// Returns whether callers are masqueraded, or not, by rules that are in force before a
    /// Service is called so, although the program that writes them may have failed.
    fn has_source_rules(&self, _: Called, _program_failed: bool) -> bool {
        true
    }

    /// Returns whether a connection goes on where its Service is to be so, or is to be gone.
    fn goes_on(&self, _: &Flow, _: Option<&Spec>) -> bool {
        true
    }

    /// Returns who is led to endpoints of this node alone, where the external policy is
    /// Local.
    fn external_policy(&self) -> ExternalPolicy {
        ExternalPolicy::OfOutside
    }

    /// Returns whether a node port may stay open for good whose Service is gone: a process that
    /// begins leaves what is at the node's addresses to other programs unless something says
    /// that it is ours, and that another process took away.
    fn loses_node_ports(&self) -> bool {
        false
    }

    /// Returns for how long after something went wrong a Service may not be in force for it.
    fn recovers_within(&self) -> Duration {
        Duration::ZERO
    }

    /// Returns how long a call may take that is not answered.
    fn patience(&self) -> Duration {
        Duration::ZERO
    }
}

/// What of the kernel a mode changes.
pub(super) trait Rules: Promises {
    /// Prepares the kernel before the first process begins.
    fn prepare(&self, _: &mut State) {}

    /// Returns all that may become of a packet of `family` on a node that has the addresses
    /// `own`.
    fn outcomes(&self, state: &State, family: Family, packet: &Packet, own: &[IpAddr]) -> Outcomes;

    /// Has the kernel know of a connection that was led to an endpoint, where that is not
    /// connection tracking alone.
    fn connect(&self, _: &mut State, _: &Packet, _to: SocketAddr) {}

    /// Returns where connection tracking leads a flow of UDP from which its first packet was
    /// led to the endpoint `to`.
    fn tracked(&self, _: &State, _: Family, _: &Packet, to: SocketAddr) -> SocketAddr {
        to
    }

    /// Returns whether a Service is served where connection tracking leads its flows of UDP.
    fn serves(&self, spec: &Spec, at: SocketAddr) -> bool {
        spec.serving().any(|to| to == at)
    }

    /// Returns what keeps a connection open in the process, until it is dropped.
    fn accept(&self, _: &Packet) -> Option<Open> {
        None
    }

    /// Returns what is open and must be closed at any time in a family, beside calls of
    /// Services.
    fn exposed(&self, _: &State, _: Family) -> Option<String> {
        None
    }

    /// Returns what is not as it is to be when everything has settled, beside calls of
    /// Services, and beside [`Rules::exposed`].
    fn wrong(&self, _: &State, _own: &[IpAddr]) -> Option<String> {
        None
    }

    /// Returns what is there of the mode for an address that is not in use.
    fn unneeded(&self, _: &State, _is_used: &dyn Fn(&IpAddr) -> bool) -> Option<String> {
        None
    }

    /// Returns what is there of the mode at all, which nothing may be after a cleanup.
    fn remains(&self, _: &State) -> Option<String> {
        None
    }

    /// Returns whether another process may change something right before a call.
    fn may_edit_before(&self, _: Call) -> bool {
        true
    }

    /// Has a connection end.
    fn disconnect(&self, _: &mut State, _: &Packet, _to: SocketAddr) {}

    /// Returns which changes by others a sync repairs that comes in force.
    fn repairs(&self) -> Repairs {
        Repairs::All
    }

    /// Returns whether a call is the first by which a sync reads the rules of `family`.
    fn reads(&self, call: Call, family: Family) -> bool {
        call == Call::Save(family)
    }

    /// Returns after how long it is noticed and repaired what another process changed.
    fn noticed(&self) -> Duration {
        Duration::from_secs(2)
    }

    /// Returns the same of what another process changed while a sync ran.
    fn noticed_after_a_sync(&self) -> Duration {
        self.noticed()
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
}
