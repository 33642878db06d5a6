//! Results of long runs of the simulation of each mode; the simulation is `src/simulation/`.

use std::fmt::Write as _;

use super::{Figures, thousands};

const HEAD: &str = "
## Faults by the thousand

`make simulate STEPS=1000000` runs nftables mode, iptables mode, ipvs mode and userspace
mode with redirect capture (the last three with legacy tables and with nf_tables), and
userspace mode with local capture. The runner and the netlink clients are the real ones; the
kernel is simulated in memory, and the clock is simulated as well. (Random transactions in
both, and random routes and routing rules, test that this kernel and the simulated iptables
programs behave like the real ones. Real calls in the kernel of a namespace, for ipvs mode in
the kernel of a guest, test where both direct a call, which address the endpoint sees, and how
connections continue that are open while Services change.) Everything that
happens in 10,000 successive steps follows from one seed, so that `make simulate SEED=7
STEPS=10000` repeats what went wrong there:

- Services are added, changed and removed.
- Calls are refused (EPERM, ENOBUFS, EBUSY, EAGAIN, ENOENT, ENOMEM), their answers are lost,
  lists are interrupted, notifications are dropped.
- Programs do not get the lock, report an error in a line, end halfway or hang.
- Other processes delete the table, flush chains, and remove elements, rules, virtual servers,
  routes and addresses.
- The kernel refuses everything of one Service, or everything, for seconds or minutes.
- The process is killed at any call and started again, or is stopped for up to two hours and
  continued.

After each change, packets are traced through the rules, with every possible outcome of random
choices, and these properties are checked:

- No packet reaches an endpoint that its Service does not offer to this kind of caller, in its
  current version or in any version since it was last applied. (In iptables and ipvs mode,
  versions count as well of which a sync reported that it could not remove everything, until the
  Service is applied and nothing of them is left. In ipvs mode, while the rules of source
  ranges cannot be written, callers that were allowed before are directed to the current
  endpoints of the Service; and the virtual server of a Service stays after the Service was
  removed if other processes removed both its address and the members of sets that name it
  before a new process read them.) No caller that `loadBalancerSourceRanges` exclude reaches any
  endpoint.
- Packets to Services that were applied and still exist are never refused, dropped or sent
  past the Service. (In ipvs mode, callers in a source range that the kernel refuses are dropped
  until it takes the range.)
- Packets to endpoints are masqueraded if the Service, in its current or a previous version,
  requires it, and only then. (In ipvs mode, this is not checked for cluster IPs, and not while
  the last run of the program that writes rules has failed.)
- In userspace mode, while a change takes effect, a caller that is allowed before or after it
  may get any endpoint that the Service has before or after it. The sockets are real and end
  with the process. Clients with session affinity keep the endpoints that the process passed on
  to the next one.
- With local capture, no other port of a Service's address reaches a program of the node, and
  nothing is left for addresses that neither a Service nor an open connection uses.
- Packets of established connections pass. (In ipvs mode: those of connections to a virtual
  server that still exists, for TCP also if their endpoint was removed; new source ranges end
  the connections of callers that they exclude.) Clients with session affinity keep their
  endpoints.
- Tables, chains, routes and routing rules of other programs are not changed, not even when
  `tripod cleanup` removes everything else (which is tested in userspace mode).
- A failing sync reports a reason. A refused Service does not affect other Services (in iptables
  and userspace mode, the addresses that it keeps lead where they led before). The intervals of
  retries grow. `/healthz` fails if nothing takes effect for longer than its timeout.

When the faults stop, everything is in the desired state within 75 seconds, and no flow of a UDP
client leads elsewhere (after two more minutes if programs hang). `make test` runs a few
thousand steps. This is what a million steps of each mode did (one thread a mode, optimised
build):

| mode | minutes | changes of Services | calls of the kernel | of them failed | changes by other processes | kills | syncs | of them failed | packets traced | properties violated |
|---|---|---|---|---|---|---|---|---|---|---|
";

/// Modes by the names that `src/simulation/` gives them.
const MODES: [(&str, &str); 8] = [
    ("nftables", "nftables"),
    ("iptables legacy", "iptables, legacy tables"),
    ("iptables nf_tables", "iptables, nf_tables"),
    ("ipvs legacy", "ipvs, legacy tables"),
    ("ipvs nf_tables", "ipvs, nf_tables"),
    (
        "redirect legacy",
        "userspace, redirect capture, legacy tables",
    ),
    (
        "redirect nf_tables",
        "userspace, redirect capture, nf_tables",
    ),
    ("local", "userspace, local capture"),
];

/// Adds its part to the document. A run that violates a property ends there and has no figures, so
/// its mode has no row.
pub fn write(text: &mut String, figures: &Figures) {
    text.push_str(HEAD);
    let measured = MODES
        .iter()
        .filter(|(mode, _)| figures.has("simulation", mode));
    for (mode, title) in measured {
        let of = |figure| figures.get("simulation", mode, figure);
        let counts = [
            "changes",
            "calls",
            "faults",
            "edits",
            "kills",
            "syncs",
            "failed_syncs",
            "packets",
        ];
        let counts = counts.map(|figure| thousands(of(figure)));
        let minutes = of("seconds") / 60.0;
        let _ = writeln!(
            text,
            "| {title} | {minutes:.0} | {} | 0 |",
            counts.join(" | ")
        );
    }
}
