//! Interruptions by upgrades, restarts and crashes; the tests are
//! `userspace::{succession,gap,upgrades}`, `modes::surge` and `modes::switching`. Failures by cause
//! are counted by `modes::surge::counted`.

use std::fmt::Write as _;

use super::{Figures, thousands};
use crate::lab::Capture;

const HEAD: &str = "
## Upgrades, restarts and crashes

In ipvs, nftables and iptables mode the kernel forwards the traffic: rules and virtual
servers stay while no process runs, and nothing is lost, except that health-check node ports are not
answered then, nor node ports on loopback addresses where the process relays them. In every mode, if a new process
starts next to a running one, the old process stops writing before the first sync of the new
one. The new process answers `/healthz`, metrics and health-check node ports when its first
sync is applied in both IP families (or in one of them, if the other one has failed for
15 s); until then the old process answers. If the new process ends, also by `kill -9`, the
old one takes everything back at once; in userspace mode, datagrams that arrive in the milliseconds
before may be lost. `make lab T=modes::surge` tests this in each mode
(ipvs mode: `make guest T=modes::guest::guest_full_surge`). With continuous calls and probes, while
processes replace each other in order, no call is refused or reset, and every probe is answered with
200. In userspace mode:

| what happens | new TCP connections | open TCP connections | UDP |
|---|---|---|---|
| a new process starts next to the old one, which is asked to end (`maxSurge: 1`) | the new process accepts them | the old process relays them until they end, for `--userspace-drain-timeout` at most | clients keep their endpoints, which see the same source ports; answers in transit arrive |
| the old process ends, then the new one starts (`maxUnavailable: 1`), with a holder | wait for the new process | as above | datagrams wait for the new process, and answers as well; endpoints see the same source ports |
| the same without a holder | are refused in between | as above | datagrams are lost in between |
| the process is killed (`kill -9`), with a holder | wait for the next process; those that the killed process had accepted are reset | are reset | datagrams wait for the next process, except those that the killed process had received; flows begin again, and clients with session affinity may get other endpoints |
| the same without a holder | are refused until the next process listens | are reset | datagrams are lost until then |
| the next process does not use the holder of the previous one, or has no version of its protocol in common | the share that the kernel assigned to the holder's sockets is reset, after 2 to 3 s, or at once if the versions differ; after that all reach the next process | as above | that share is lost |

[Upgrading](upgrading.md#with-a-gap) describes how to run a holder. `make acceptance` makes 50 upgrades in
each way with 200 open connections and 1,000 new ones per second, every tenth over UDP. Tripod runs
as the DaemonSet of `deploy/` has it: with its capabilities, confined to system calls and files, each
time after its init container. The open connections are answered after the old process was asked to
end, and are closed before it ends:

| | calls | per second | failed |
|---|---|---|---|
";

const COUNTED_HEAD: &str = "
`make acceptance` also makes 1,000 hand-overs in each mode under 2,000 new connections per second, half of
them to a Service with session affinity, and 200 UDP flows that stay open and send two datagrams per
second. A new process starts next to the old one, which is then asked to end. In one of ten
hand-overs, the old process is instead killed by `kill -9`, in turn: before the new one starts, when the new
one begins to take over, and when the new one serves. In userspace mode a holder runs. One in
100 connections stays open for 200 ms. (The guest kernel of ipvs mode is slow: fewer hand-overs, 100
connections per second, 20 flows.) Each failure is counted by its cause:

| | hand-overs | of them killed | connections | per second | datagrams | failed in order | failed when killed |
|---|---|---|---|---|---|---|---|
";

const FOOT: &str = "
The figures are in [reliability.csv](reliability.csv). (Two cores that also ran other programs.)
";

/// Adds its part to the document.
pub fn write(text: &mut String, figures: &Figures) {
    text.push_str(HEAD);
    for (test, title) in [
        ("side_by_side", "side by side"),
        ("with_a_gap", "with a gap and a holder"),
    ] {
        for capture in [Capture::Local, Capture::Redirect] {
            let of = |figure| figures.get(test, capture.name(), figure);
            let failed = match (of("failed"), of("failed_over_udp")) {
                (0.0, _) => "0".to_owned(),
                (failed, udp) if failed == udp => format!("{failed}, over UDP"),
                (failed, udp) => format!("{failed}, of them {udp} over UDP"),
            };
            let (calls, pace) = (of("calls"), of("calls") / of("seconds"));
            let (capture, calls, pace) = (capture.name(), thousands(calls), thousands(pace));
            let _ = writeln!(
                text,
                "| {title}, {capture} capture | {calls} | {pace} | {failed} |"
            );
        }
    }
    write_counted(text, figures);
    text.push_str(FOOT);
}

/// The test that counts failures by their causes.
const COUNTED: &str = "hand_overs";

/// The modes in the order of the table, as figures and as the document name them.
const MODES: [(&str, &str); 5] = [
    ("nftables", "nftables"),
    ("iptables", "iptables"),
    ("redirect", "userspace, redirect capture"),
    ("local", "userspace, local capture"),
    ("ipvs", "ipvs, in a guest kernel"),
];

/// Causes of failures, as figures and as the document name them.
const CAUSES: [(&str, &str); 8] = [
    ("refused", "connections refused"),
    ("reset", "connections reset"),
    ("timed_out", "connections timed out"),
    (
        "wrong_endpoint",
        "answers of an endpoint of another Service",
    ),
    (
        "affinity_lost",
        "changed endpoints of a client with affinity",
    ),
    ("datagram_lost", "datagrams lost"),
    ("flow_moved", "UDP flows begun again"),
    ("other", "others"),
];

/// Adds the table of failures by cause, with the modes that were measured.
fn write_counted(text: &mut String, figures: &Figures) {
    let measured = MODES.map(|mode| figures.has(COUNTED, mode.0).then_some(mode));
    if measured.iter().flatten().next().is_none() {
        return;
    }
    text.push_str(COUNTED_HEAD);
    for (mode, title) in measured.into_iter().flatten() {
        let of = |figure: &str| figures.get(COUNTED, mode, figure);
        let numbers = ["hand_overs", "killed", "connections", "datagrams"];
        let numbers = numbers.map(|figure| thousands(of(figure)));
        let pace = thousands(of("connections") / of("seconds"));
        let failed = |when: &str| {
            let counts = CAUSES.map(|(name, title)| (of(&format!("{when}_{name}")), title));
            let counts = counts.iter().filter(|(count, _)| *count > 0.0);
            let counts = counts.map(|(count, title)| format!("{} {title}", thousands(*count)));
            match counts.collect::<Vec<_>>() {
                none if none.is_empty() => "0".to_owned(),
                some => some.join(", "),
            }
        };
        let _ = writeln!(
            text,
            "| {title} | {} | {pace} | {} | {} |",
            numbers.join(" | "),
            failed("in_order"),
            failed("killed"),
        );
    }
}
