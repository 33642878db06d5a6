//! The part of docs/reliability.md about events of a node.

use std::fmt::Write as _;

use super::{
    event::Event,
    expected::{New, Open, loss},
};
use crate::faults::fault::Mode;

const MODES: [(Mode, &str); 5] = [
    (Mode::Nftables, "nftables"),
    (Mode::Iptables, "iptables"),
    (Mode::Ipvs, "ipvs"),
    (Mode::Redirect, "userspace, redirect"),
    (Mode::Local, "userspace, local"),
];

const HEAD: &str = "
## What happens to the node

Other programs, an administrator and the machine itself may change what Tripod needs. Tripod
notices such changes within a second, without waiting for the sync period, and reverts them.
If reading the kernel takes long, as in the slow guest kernel of ipvs mode, it checks less
often. For iptables rules in nf_tables the kernel sends notifications, regardless of the
number of rules. The tests are in `tests/faults/node/`: cluster IPs, load-balancer addresses
and node ports of both IP families are called all the time, and at the end `tripod diff` finds
no difference. A UDP client that keeps its socket and called while rules were missing is
answered afterwards as well.

- **✓**: every call is answered, and open connections continue.
- **1 s**: new calls may fail for about a second, until Tripod has noticed the change. Open
  connections continue; but the kernel translates nothing while no rule asks for it, so a
  connection on which data is sent in that second may be reset. If rules were removed in ipvs
  mode, only calls that rules masquerade or block are affected.
- **waits**: new calls are answered when the event is over, and open connections continue.
- **fails**: the kernel drops packets of new connections as long as the event lasts, which
  Tripod cannot change; open connections continue.
- **–**: not tested: it does not concern the mode, or the guest kernel in which such events are
  tested (also the clock and the table of connection tracking, which belong to the whole kernel)
  does not have what the mode needs.

";

const FOOT: &str = "
1. All connections are reset, because their entries are deleted with the virtual servers.
2. Connections to node ports at these addresses are reset, because their virtual servers are
   deleted with the address.
3. The kernel tracks no connections for local capture. If rules of other programs have it track
   them, it drops packets of new connections as in the other modes.

The kernel refuses `ipset destroy` while a rule names the set. If another program removes
members of a set, Tripod notices this by the number of members. If it replaces one member by
another, the next full sync repairs the set (`--ipvs-sync-period`).
";

/// Adds its part to the document.
pub fn write(text: &mut String) {
    text.push_str(HEAD);
    let names = MODES.map(|(_, name)| name);
    let _ = writeln!(text, "| what happens | {} |", names.join(" | "));
    let _ = writeln!(text, "|---|{}", "---|".repeat(names.len()));
    for event in Event::ALL {
        let cells = MODES.map(|(mode, _)| cell(mode, event));
        let _ = writeln!(text, "| {} | {} |", event.title(), cells.join(" | "));
    }
    text.push_str(FOOT);
}

fn cell(mode: Mode, event: Event) -> String {
    if !event.is_tried(mode) {
        return "–".to_owned();
    }
    let (new, open) = loss(mode, event);
    let new = match new {
        New::Answered => "✓",
        New::FailAtFirst => "1 s",
        New::Wait => "waits",
        New::Fail => "fails",
    };
    let note = match open {
        Open::GoOn if (mode, event) == (Mode::Local, Event::FullConntrack) => " (3)",
        Open::GoOn => "",
        Open::Reset => " (1)",
        Open::NodePortsReset => " (2)",
    };
    format!("{new}{note}")
}
