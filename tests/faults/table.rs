//! docs/reliability.md: what stopped and what went on.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use super::{
    expected::{Answer, Why, answer},
    fault::{Fault, Mode},
    node,
    questions::Question,
    soak,
};
use crate::mutants;

const HEAD: &str = "\
# Reliability

A failure affects only what depends on it. In each mode, each access to the kernel or
to the API server fails in turn while Services and endpoints change, and the tests
observe what keeps working. `make reliability` generates this page by running every
case with the real program in network namespaces, ipvs mode in a guest kernel. The same
runs are part of `make test`, which fails if a cell does not hold. The cases are in
`tests/faults/`.

- **✓** keeps working.
- **waits 1** waits until the failure has passed, for reason 1, and is then applied.
- **–** does not apply.

";

/// What no fault of the table is; the tests are `userspace::{succession,gap,upgrades}`,
/// `modes::surge` and `modes::switching`.
const UPGRADES: &str = "
## Upgrades, restarts and crashes

In ipvs, nftables and iptables mode the kernel forwards the traffic: rules and virtual
servers stay while no process runs, and nothing is lost. In every mode, if a new process
starts next to a running one, the old process stops writing before the first sync of the new
one. The new process answers `/healthz`, metrics and health-check node ports when its first
sync is in force in both IP families (or in one of them, if the other one has failed for
15 s); until then the old process answers. If the new process ends, also by `kill -9`, the
old one takes everything back at once. `make lab T=modes::surge` tests this in each mode
(ipvs mode: `make guest T=modes::guest::guest_full_surge`) with continuous calls and probes:
no call is refused or reset, and every probe is answered with 200. In userspace mode:

| what happens | new TCP connections | open TCP connections | UDP |
|---|---|---|---|
| a new process starts next to the old one, which is asked to end (`maxSurge: 1`) | the new process accepts them | the old process relays them until they end, for `--userspace-drain-timeout` at most | clients keep their endpoints in the new process, which calls them from other source ports; with redirect capture an answer that is in transit at that moment can be lost |
| the old process ends, then the new one starts (`maxUnavailable: 1`), with a holder | wait for the new process | as above | datagrams wait for the new process; clients keep their endpoints, which are called from other source ports |
| the same without a holder | are refused in between | as above | datagrams are lost in between |
| the process is killed (`kill -9`), with a holder | wait for the next process; those that the killed process had accepted are reset | are reset | datagrams wait for the next process; flows begin anew |
| the same without a holder | are refused until the next process listens | are reset | datagrams are lost until then |
| the next process does not use the holder of the previous one, or has no version of its protocol in common | the share that the kernel assigned to the holder's sockets is reset, after 2 to 3 s, or at once if the versions differ; after that all reach the next process | as above | that share is lost |

[Settings](settings.md) describes how to run a holder. `make acceptance` makes 50 upgrades in
each way with 200 open connections and 1,000 new ones per second, every tenth over UDP. The open
connections are answered after the old process was asked to end, and are closed before it ends:

| | calls | failed |
|---|---|---|
| side by side, local capture | 84,140 | 0 |
| side by side, redirect capture | 130,163 | 1, over UDP |
| with a gap and a holder, local capture | 69,424 | 0 |
| with a gap and a holder, redirect capture | 56,038 | 0 |

(Unoptimised build on two cores that also ran other programs. The rows with a gap were measured
when that test had no open connections yet.)
";

/// What is measured by `userspace::overload`.
const OVERLOAD: &str = "
## Overload

One Service in userspace mode has thousands of clients while another one is called, in a
cgroup (version 1) with 64 MiB and a limit of 20,000 open files. `make lab
T=userspace::overload` checks that no call of the other Service fails, that the memory limit
is never reached, and that the first Service is served within a second after its load ended:

| load on one Service | memory limit | most memory in use | open files | p99 of the other Service's calls |
|---|---|---|---|---|
| 12,000 connections, limited by memory | 64 MiB | 34 MiB | 4,160 | 9 ms |
| 12,000 connections, limited by open files | 1 GiB | 98 MiB | 14,968 | 23 ms |
| 2,000 clients that request endless data and read none | 64 MiB | 31 MiB | 4,102 | 11 ms |
| 4,200 clients that send nothing, except 200 that sometimes send a byte | 64 MiB | 33 MiB | 4,160 | 4 ms |
| 2,000 clients that send as much as is accepted, to endpoints that read nothing | 64 MiB | 33 MiB | 4,104 | 4 ms |
| 10,000 successive UDP clients, each with an address and port of its own | 64 MiB | 21 MiB | 2,779 | 32 ms |

Each figure is the higher one of local and redirect capture. In cgroups version 1 this memory
does not include the kernel's socket buffers, up to 195 MiB for 2,000 connections that one side
does not read; version 2 includes them.

The next table shows how long calls of another Service take while 8 threads repeatedly connect
to one Service, send a request, and reset the connection. For *past Tripod*, the threads call
the endpoint directly, so that they and the endpoint use as much of the machine's time.
`TRIPOD_ACCEPTANCE=1 make lab T=userspace::overload::fairness`, 15 alternating rounds of 500
calls each, the median of the rounds:

| | local, p50 | local, p99 | redirect, p50 | redirect, p99 |
|---|---|---|---|---|
| no load | 0.3 ms | 10 ms | 0.4 ms | 30 ms |
| the load goes past Tripod | 1.2 ms | 7 ms | 1.2 ms | 15 ms |
| the load goes through Tripod | 1.5 ms | 16 ms | 1.7 ms | 27 ms |

(Unoptimised build on two cores that also ran other programs, which cause most of the p99.)
";

fn document() -> String {
    let mut text = String::from(HEAD);
    text.push_str("## What is observed\n\n");
    text.push_str("In the IP family that the fault affects, or in IPv4 if it affects both:\n\n");
    for question in Question::ALL {
        let _ = writeln!(text, "- *{}*: {}.", question.title(), question.text());
    }
    text.push_str("\n## Why something waits\n\n");
    for why in shown() {
        let _ = writeln!(text, "{}. {}.", number(why), why.text());
    }
    for mode in Mode::ALL {
        let titles = Question::ALL.map(Question::title);
        let _ = writeln!(text, "\n## {}\n", mode.title());
        let _ = writeln!(text, "| what fails | {} |", titles.join(" | "));
        let _ = writeln!(text, "|---|{}", "---|".repeat(titles.len()));
        for fault in Fault::of(mode) {
            let cells = Question::ALL.map(|question| match answer(mode, fault, question) {
                Answer::GoesOn => "✓".to_owned(),
                Answer::Waits(why) => format!("waits {}", number(why)),
                Answer::NotApplicable => "–".to_owned(),
            });
            let _ = writeln!(text, "| {} | {} |", fault.title(), cells.join(" | "));
        }
    }
    node::table::write(&mut text);
    text.push_str(UPGRADES);
    text.push_str(OVERLOAD);
    soak::report::write(&mut text);
    mutants::report::write(&mut text);
    text
}

/// Reasons that the table shows.
fn shown() -> impl Iterator<Item = Why> {
    let used = |why: &Why| {
        let mut modes = Mode::ALL.into_iter();
        modes.any(|mode| {
            Fault::of(mode).any(|fault| {
                let mut questions = Question::ALL.into_iter();
                questions.any(|question| answer(mode, fault, question) == Answer::Waits(*why))
            })
        })
    };
    Why::ALL.into_iter().filter(used)
}

fn number(why: Why) -> usize {
    let before = shown().take_while(|other| *other != why).count();
    before + 1
}

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reliability.md")
}

#[test]
fn the_document_is_current() {
    let committed = fs::read_to_string(path()).unwrap_or_default();
    for (at, (old, new)) in committed.lines().zip(document().lines()).enumerate() {
        assert_eq!(old, new, "line {}: run `make reliability`", at + 1);
    }
    assert_eq!(committed, document(), "run `make reliability`");
}

/// Writes the document; only after every case was seen to hold.
#[test]
#[ignore = "part of `make reliability`"]
fn write() {
    fs::write(path(), document()).expect("writing the document");
}
