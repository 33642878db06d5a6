//! Costs of floods of one Service, and the latency of calls of another one; the tests are
//! `userspace::overload`.

use std::fmt::Write as _;

use super::{Figures, milliseconds, thousands};
use crate::lab::Capture;

const HEAD: &str = "
## Overload

One Service in userspace mode (in one case several) has thousands of clients while another one is
called, in a cgroup (version 1) with the memory that the table says and a limit of 20,000 open files. `make lab
T=userspace::overload` checks that no call of the other Service fails, that the memory limit
is never reached, and that the first Service is served within a second after its load ended:

| load on one Service | memory limit | most memory in use | open files | p99 of the other Service's calls |
|---|---|---|---|---|
";

/// Tests with a description, and the memory limit of each.
const LOADS: [(&str, &str, &str); 7] = [
    (
        "a_flood_that_memory_ends",
        "12,000 connections, limited by memory",
        "64 MiB",
    ),
    (
        "a_flood_that_descriptors_end",
        "12,000 connections, limited by open files",
        "1 GiB",
    ),
    (
        "floods_of_several_services_that_descriptors_end",
        "13,200 connections to six ports of three Services, limited by open files",
        "1 GiB",
    ),
    (
        "clients_that_never_read",
        "2,000 clients that request endless data and read none",
        "64 MiB",
    ),
    (
        "clients_that_send_nothing_or_a_byte_now_and_then",
        "4,200 clients that send nothing, except 200 that sometimes send a byte",
        "64 MiB",
    ),
    (
        "backends_that_never_read",
        "2,000 clients that send as much as is accepted, to endpoints that read nothing",
        "64 MiB",
    ),
    (
        "datagrams_of_many_clients",
        "10,000 successive UDP clients, each with a port of its own",
        "64 MiB",
    ),
];

const FAIRNESS: &str = "
The next table shows how long calls of another Service take while 8 threads repeatedly connect
to one Service, send a request, and reset the connection. For *past Tripod*, the threads call
the endpoint directly, so that they and the endpoint use as much of the machine's time.
`TRIPOD_ACCEPTANCE=1 make lab T=userspace::overload::fairness`, 15 alternating rounds of 500
calls each, the median of the rounds:

| | local, p50 | local, p99 | redirect, p50 | redirect, p99 |
|---|---|---|---|---|
";

/// Loads by the names that `userspace::overload::fairness` gives them.
const BESIDE: [(&str, &str); 3] = [
    ("nothing", "no load"),
    ("past", "the load goes past Tripod"),
    ("flood", "the load goes through Tripod"),
];

const FOOT: &str = "
(Two cores that also ran other programs, which cause most of the p99. The figures are in
[reliability.csv](reliability.csv).)
";

/// Adds its part to the document.
pub fn write(text: &mut String, figures: &Figures) {
    text.push_str(HEAD);
    for (test, title, limit) in LOADS {
        let higher = |figure| figures.higher(test, figure);
        let _ = writeln!(
            text,
            "| {title} | {limit} | {:.0} MiB | {} | {} |",
            higher("memory_mib"),
            thousands(higher("descriptors")),
            milliseconds(higher("p99_ms")),
        );
    }
    let buffers = figures.higher("backends_that_never_read", "tcp_mib");
    let _ = write!(
        text,
        "\nEach figure is the higher one of local and redirect capture. In cgroups version 1 this \
         memory\ndoes not include the kernel's socket buffers, up to {buffers:.0} MiB for 2,000 \
         connections that one side\ndoes not read. Version 2 includes them: there, connections of a \
         Service that has many are reset\nwhen their receiver stops reading while memory is short \
         ([userspace](userspace.md)), so that\nother Services are served and the process is not \
         ended. `make guest\nT=userspace::guest::guest_full_overload` tests this in a guest kernel, \
         with 80 MiB: with clients\nand with endpoints that never read. (Recovery takes some seconds \
         there: a connection that found the\nqueue full asks again after 1, 3, 7, 15 and 31 s, and \
         the guest has one slow processor.)\n\nConnections that are never completed, 12,000 at once, \
         take no memory of Tripod: the kernel answers\nSYNs with cookies when the queue of the \
         listener is full (`net.ipv4.tcp_syncookies`), so that other\nclients of the same Service \
         are served as well.\n",
    );
    text.push_str(FAIRNESS);
    for (load, title) in BESIDE {
        let of = |capture: Capture, figure: &str| {
            let figure = format!("{load}_{figure}_ms");
            milliseconds(figures.get("calls_beside_a_flood", capture.name(), &figure))
        };
        let [local, redirect] = [Capture::Local, Capture::Redirect]
            .map(|capture| format!("{} | {}", of(capture, "p50"), of(capture, "p99")));
        let _ = writeln!(text, "| {title} | {local} | {redirect} |");
    }
    text.push_str(FOOT);
}
