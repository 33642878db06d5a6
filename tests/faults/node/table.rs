//! The part of docs/reliability.md about what happens to a node.

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

Other programs, an administrator and the machine itself change what Tripod needs. It notices
within a second, without waiting for the sync period, and puts all back. Where it takes long
to read what the kernel holds, as in the slow guest kernel of ipvs mode, that is checked less
often; changes of the rules of iptables in nf_tables are notified of, however many rules there
are. The tests are `tests/faults/node/`: cluster IPs,
load-balancer addresses and node ports of both IP families are called all the time, and at
the end `tripod diff` finds nothing. A UDP client that keeps its socket and called while rules
were missing is answered afterwards, too.

- **✓** every call is answered, and open connections go on.
- **1 s**: new calls may fail for about a second, until that is noticed. Open connections go
  on; but the kernel translates nothing while no rule asks for it, so that one on which
  something is sent in that second may be reset. In ipvs mode only what rules masquerade or
  keep out is concerned where rules went.
- **waits**: new calls are answered when it is over, and open connections go on.
- **fails**: the kernel drops packets of new connections as long as it lasts, which Tripod
  cannot change; open connections go on.
- **–** is not tried there.

";

const FOOT: &str = "
1. All connections are reset: with the virtual servers their entries are gone.
2. Connections to node ports at these addresses are reset: their virtual servers go with the
   address.

`ipset destroy` is refused by the kernel while a rule names the set. What another program
takes out of a set is noticed by the number of its members: one that is exchanged for another
is put right at the next full sync (`--ipvs-sync-period`).
";

/// Adds it to the document.
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
        Open::GoOn => "",
        Open::Reset => " (1)",
        Open::NodePortsReset => " (2)",
    };
    format!("{new}{note}")
}
