//! docs/mutants.csv as a part of docs/reliability.md.

use std::{fmt::Write as _, fs};

use super::root;

const HEAD: &str = "
## Faults by the thousand

`make simulate SEED=7 STEPS=1000000` runs nftables mode, iptables mode, ipvs mode and userspace mode with
redirect capture (these three with legacy tables and with nf_tables) and with local capture, with the runner above them and the netlink clients below them, on a kernel in
memory, under a clock that stands still. (That this kernel, and the programs of iptables, do what
the real ones do is tested with random transactions in both, and with random routes and routing rules; and where both lead a call, which
address the endpoint sees, and where connections go on that are open while Services change, with
real calls in the kernel of a namespace, for ipvs mode in that of a guest.) Services come,
change and go; calls are refused (EPERM, ENOBUFS, EBUSY, EAGAIN, ENOENT, ENOMEM), their answers
are lost, lists are interrupted, notifications are dropped; programs do not get the lock, find fault
with a line, end halfway or hang; other processes delete the table, empty
chains, take elements, rules, virtual servers, routes and addresses away; the kernel takes nothing of one Service, or nothing at all, for
seconds or minutes; the process is killed at any call and begins anew, or is stopped for up to two
hours and goes on. All follows from the
seed. After each change packets are led through the rules, with all that chance may choose:

- none reaches an endpoint to which its Service, as it is or was since it was last in force,
  leads nobody of its kind (in iptables mode: or was while a sync said that rules are left which it
  could not take away; in ipvs mode: while the rules of source ranges could not be written, who was
  let in before is led to the endpoints that the Service has now), and none that
  `loadBalancerSourceRanges` keep out reaches any;
- what was in force and stays is never refused, dropped or led past;
- who is led to an endpoint is masqueraded where the Service, as it is or was, says so, and only
  there (in ipvs mode: but for cluster IPs, and while the program failed last that writes rules);
- (in userspace mode: while a change comes in force, who is let in before or after it may get any
  endpoint that the Service has before or after it; its sockets are real ones, and end with the
  process; clients with session affinity stay where the process leaves them to the next one);
- (with local capture: no other port of a Service's address gets to what listens on the node, and
  nothing is there for addresses that neither a Service has nor an open connection uses);
- established connections pass (in ipvs mode: those to a virtual server that stays, of TCP also when
  their endpoint left; source ranges that come end those of callers they keep out), and clients with session affinity stay on their endpoints;
- tables, chains, routes and routing rules of others stay as they are, also when `tripod cleanup`
  removes everything else (which is tried in userspace mode);
- a sync that fails has a reason, a Service that is refused costs no other one (in iptables and
  userspace mode the addresses that it keeps lead where they led), retries grow apart, and `/healthz`
  says so when nothing comes in force for longer than its time-out.

Whenever the faults stop, everything is as it is to be within 75 seconds, and no flow of a UDP
client is left that leads elsewhere (where programs hang, two minutes later). `make test` runs some thousand steps. To see whether that is
noticed at all, `make mutants` breaks one thing at a time:

";

/// Adds the part of docs/reliability.md.
pub fn write(text: &mut String) {
    text.push_str(HEAD);
    text.push_str("| file | what is broken | noticed |\n|---|---|---|\n");
    let csv = fs::read_to_string(root().join("docs/mutants.csv")).expect("docs/mutants.csv");
    for line in csv.lines().skip(1) {
        let (file, rest) = line.split_once(',').expect("a file");
        let (breaks, noticed) = rest.split_once("\",\"").expect("two texts");
        let (breaks, noticed) = (breaks.trim_matches('"'), noticed.trim_matches('"'));
        let _ = writeln!(text, "| `{file}` | {breaks} | {noticed} |");
    }
}
