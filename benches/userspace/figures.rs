//! Figures of all rounds, their medians, and the page that shows them.

use std::{fmt::Write, time::Duration};

use super::{
    contender::Contender,
    document::machine::machine,
    load::{Load, Measured},
};

/// What one contender did in one round under one load.
#[derive(Clone, Copy)]
struct Round {
    load: Load,
    contender: usize,
    /// Bytes, requests or connections a second.
    rate: f64,
    /// Microseconds of processor time that one took of it.
    cost: f64,
    p50: f64,
    p99: f64,
}

/// All that was measured.
pub struct Figures {
    names: Vec<String>,
    rounds: Vec<Round>,
    /// Contender, KiB, connections.
    idle: Vec<(usize, u64, usize)>,
}

/// A row of the table: what it says of a round, and how.
struct Row {
    load: Load,
    title: &'static str,
    of: fn(&Round) -> f64,
    shown: Shown,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Shown {
    OfDirect,
    Microseconds,
}

const ROWS: [Row; 7] = [
    Row {
        load: Load::Bulk,
        title: "bulk, one connection",
        of: |round| round.rate,
        shown: Shown::OfDirect,
    },
    Row {
        load: Load::Requests,
        title: "requests on 32 connections",
        of: |round| round.rate,
        shown: Shown::OfDirect,
    },
    Row {
        load: Load::Connections,
        title: "new connections, 32 at once",
        of: |round| round.rate,
        shown: Shown::OfDirect,
    },
    Row {
        load: Load::Latency,
        title: "p50 of a request alone, µs",
        of: |round| round.p50,
        shown: Shown::Microseconds,
    },
    Row {
        load: Load::Latency,
        title: "p99 of a request alone, µs",
        of: |round| round.p99,
        shown: Shown::Microseconds,
    },
    Row {
        load: Load::Requests,
        title: "proxy's CPU a request, µs",
        of: |round| round.cost,
        shown: Shown::Microseconds,
    },
    Row {
        load: Load::Connections,
        title: "proxy's CPU a connection, µs",
        of: |round| round.cost,
        shown: Shown::Microseconds,
    },
];

impl Figures {
    /// Nothing yet.
    pub fn new(contenders: &[Contender]) -> Figures {
        Figures {
            names: contenders.iter().map(|c| c.name.clone()).collect(),
            rounds: Vec::new(),
            idle: Vec::new(),
        }
    }

    /// Adds what contender number `contender` did in one round, with so many `seconds` of
    /// processor time.
    pub fn add(&mut self, load: Load, contender: usize, measured: &Measured, seconds: f64) {
        let count = measured.count.max(1) as f64;
        let at = |part: f64| {
            let place = (measured.latencies.len() as f64 * part) as usize;
            measured.latencies.get(place).copied().unwrap_or(f64::NAN)
        };
        self.rounds.push(Round {
            load,
            contender,
            rate: count / measured.seconds,
            cost: seconds * 1e6 / count,
            p50: at(0.5),
            p99: at(0.99),
        });
    }

    /// Adds what `connections` idle ones took of its memory, in KiB.
    pub fn add_idle(&mut self, contender: usize, memory: u64, connections: usize) {
        self.idle.push((contender, memory, connections));
    }

    fn median(&self, row: &Row, contender: usize) -> f64 {
        let of_it = |round: &&Round| (round.load, round.contender) == (row.load, contender);
        let mut all: Vec<f64> = self.rounds.iter().filter(of_it).map(row.of).collect();
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
    }

    /// Returns the page.
    pub fn page(&self, rounds: usize, length: Duration) -> String {
        let mut page = format!(
            "## The userspace data path\n\n\
             `cargo bench --bench userspace -- --write`: client, proxy and backend share the machine, in network namespaces joined by \
             veth(4): {}. Medians of {rounds} interleaved rounds, {} s each; rates as parts of \
             a direct connection's. Messages of 128 bytes.\n\n",
            machine(&[("haproxy", "-v"), ("nginx", "-v")]),
            length.as_secs()
        );
        let _ = writeln!(page, "| | {} |", self.names.join(" | "));
        let _ = writeln!(page, "|---|{}", "---:|".repeat(self.names.len()));
        for row in &ROWS {
            let direct = self.median(row, 0);
            if direct.is_nan() {
                // Its load was not asked for.
                continue;
            }
            let cells = (0..self.names.len()).map(|contender| {
                let median = self.median(row, contender);
                match row.shown {
                    Shown::OfDirect if contender == 0 => absolute(row.load, median),
                    Shown::OfDirect => format!("{:.2}", median / direct),
                    Shown::Microseconds if median == 0.0 => String::new(),
                    Shown::Microseconds => format!("{median:.1}"),
                }
            });
            let cells: Vec<_> = cells.collect();
            let _ = writeln!(page, "| {} | {} |", row.title, cells.join(" | "));
        }
        let idle = (0..self.names.len()).map(|contender| {
            let of_it = self.idle.iter().find(|(of, ..)| *of == contender);
            of_it.map_or(String::new(), |(_, memory, connections)| {
                let each = *memory as f64 / (*connections).max(1) as f64;
                format!("{each:.2} ({connections})")
            })
        });
        let idle: Vec<_> = idle.collect();
        let _ = writeln!(
            page,
            "| KiB an idle connection (of so many) | {} |",
            idle.join(" | ")
        );
        page
    }
}

/// The rate of the direct connection.
fn absolute(load: Load, rate: f64) -> String {
    match load {
        Load::Bulk => format!("{:.0} MiB/s", rate / f64::from(1 << 20)),
        _ => format!("{rate:.0}/s"),
    }
}
