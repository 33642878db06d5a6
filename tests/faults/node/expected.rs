//! The expected losses, mode by mode.

use super::event::Event;
use crate::faults::fault::Mode;

/// The expected effect on new calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum New {
    /// All are answered.
    Answered,
    /// They may fail until the event is noticed, within a second.
    FailAtFirst,
    /// They are answered when the event is over.
    Wait,
    /// They fail for as long as the event lasts: the kernel drops their packets.
    Fail,
}

/// The expected effect on open connections that are idle meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Open {
    GoOn,
    /// Connections to node ports at the address are reset.
    NodePortsReset,
    /// All connections are reset.
    Reset,
}

/// Returns the loss that is asserted, and documented.
pub fn loss(mode: Mode, event: Event) -> (New, Open) {
    (new(mode, event), open(mode, event))
}

fn new(mode: Mode, event: Event) -> New {
    let userspace = matches!(mode, Mode::Redirect | Mode::Local);
    match event {
        Event::FlushRuleset if mode != Mode::Local => New::FailAtFirst,
        Event::FlushNat | Event::RestoreTables
            if matches!(mode, Mode::Iptables | Mode::Redirect | Mode::Ipvs) =>
        {
            New::FailAtFirst
        }
        Event::FlushRoutes if mode == Mode::Local => New::FailAtFirst,
        // The kernel removes the IPv6 routes with the link (`addrconf_ifdown`): until they are
        // back, some milliseconds later, callers are told that there is no route.
        Event::LoopbackDown if mode == Mode::Local => New::FailAtFirst,
        Event::ClearServers | Event::FlushSets | Event::ServiceLinkDeleted => New::FailAtFirst,
        // Until the address is noticed again, nothing listens there.
        Event::AddressAgain if matches!(mode, Mode::Ipvs | Mode::Local) => New::FailAtFirst,
        // Neighbours are resolved again, which takes a second if the first solicitation is lost
        // (RETRANS_TIMER, RFC 4861 section 10).
        Event::ReplaceLink => New::FailAtFirst,
        Event::Suspend if userspace => New::Wait,
        // Local capture does not need connection tracking.
        Event::FullConntrack if mode == Mode::Local => New::Answered,
        Event::FullConntrack => New::Fail,
        _ => New::Answered,
    }
}

fn open(mode: Mode, event: Event) -> Open {
    match event {
        Event::ClearServers => Open::Reset,
        // The virtual servers of the address are removed with it, and so their connections.
        Event::AddressAgain | Event::ReplaceLink if mode == Mode::Ipvs => Open::NodePortsReset,
        _ => Open::GoOn,
    }
}
