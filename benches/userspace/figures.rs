//! Figures of all rounds, their medians and ratios, and the page that shows them.

use std::time::Duration;

use super::{
    contender::Contender,
    document::{csv::Csv, machine::machine, table::table},
    load::{Load, Measured},
    processors,
};

/// The figures of one contender in one round under one load.
#[derive(Clone, Copy)]
struct Round {
    number: usize,
    load: Load,
    contender: usize,
    /// Bytes, requests or connections a second.
    rate: f64,
    /// Processor time for one of them in microseconds.
    cost: f64,
    p50: f64,
    p99: f64,
}

/// The memory of a contender's idle connections.
struct Idle {
    contender: usize,
    /// Memory in KiB.
    memory: u64,
    connections: usize,
}

impl Idle {
    fn each(&self) -> f64 {
        self.memory as f64 / self.connections.max(1) as f64
    }
}

/// All measurements.
pub struct Figures {
    /// The contenders' names, that of the direct connection first.
    pub names: Vec<String>,
    rounds: Vec<Round>,
    idle: Vec<Idle>,
}

/// A figure that is measured for one load in each round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Rate,
    Cost,
    P50,
    P99,
}

impl Round {
    fn get(&self, kind: Kind) -> f64 {
        match kind {
            Kind::Rate => self.rate,
            Kind::Cost => self.cost,
            Kind::P50 => self.p50,
            Kind::P99 => self.p99,
        }
    }
}

/// The median and the quartiles of several values.
pub struct Spread {
    low: f64,
    pub median: f64,
    high: f64,
}

impl Spread {
    /// Computes it from those values that are numbers, if there are any.
    fn of(values: impl Iterator<Item = f64>) -> Option<Spread> {
        let mut all: Vec<f64> = values.filter(|value| value.is_finite()).collect();
        all.sort_by(f64::total_cmp);
        let at = |quarters| all.get(all.len() * quarters / 4).copied();
        Some(Spread {
            low: at(1)?,
            median: at(2)?,
            high: at(3)?,
        })
    }

    /// Shows the median, with the middle half of the values in brackets.
    pub fn shown(&self) -> String {
        format!("{:.2} ({:.2}–{:.2})", self.median, self.low, self.high)
    }
}

/// The rows of the table: load and kind of figure. Rates are shown relative to those of the direct
/// connection, others as absolute values.
const ROWS: [(Load, Kind, &str); 7] = [
    (Load::Bulk, Kind::Rate, "bulk, one connection"),
    (Load::Requests, Kind::Rate, "requests on 32 connections"),
    (Load::Connections, Kind::Rate, "new connections, 32 at once"),
    (Load::Latency, Kind::P50, "p50 of a request alone, µs"),
    (Load::Latency, Kind::P99, "p99 of a request alone, µs"),
    (Load::Requests, Kind::Cost, "proxy's CPU a request, µs"),
    (
        Load::Connections,
        Kind::Cost,
        "proxy's CPU a connection, µs",
    ),
];

/// The columns of the file of raw figures, the first three of which are the keys.
const COLUMNS: [&str; 9] = [
    "round",
    "load",
    "contender",
    "rate",
    "cpu_us",
    "p50_us",
    "p99_us",
    "idle_connections",
    "idle_kib_each",
];
const KEYS: usize = 3;

impl Figures {
    /// Returns an empty table of `contenders`.
    pub fn new(contenders: &[Contender]) -> Figures {
        Figures {
            names: contenders.iter().map(|c| c.name.clone()).collect(),
            rounds: Vec::new(),
            idle: Vec::new(),
        }
    }

    /// Adds the figures of contender number `contender` in round `number`, with this number of
    /// `seconds` of processor time.
    pub fn add(
        &mut self,
        number: usize,
        load: Load,
        contender: usize,
        measured: &Measured,
        seconds: f64,
    ) {
        let count = measured.count.max(1) as f64;
        let at = |part: f64| {
            let place = (measured.latencies.len() as f64 * part) as usize;
            measured.latencies.get(place).copied().unwrap_or(f64::NAN)
        };
        self.rounds.push(Round {
            number,
            load,
            contender,
            rate: count / measured.seconds,
            cost: seconds * 1e6 / count,
            p50: at(0.5),
            p99: at(0.99),
        });
    }

    /// Adds the memory of `connections` idle ones, in KiB.
    pub fn add_idle(&mut self, contender: usize, memory: u64, connections: usize) {
        self.idle.push(Idle {
            contender,
            memory,
            connections,
        });
    }

    fn of(&self, load: Load, contender: usize) -> impl Iterator<Item = &Round> {
        let about = (load, contender);
        let rounds = self.rounds.iter();
        rounds.filter(move |round| (round.load, round.contender) == about)
    }

    /// The median of all rounds.
    pub fn median(&self, load: Load, kind: Kind, contender: usize) -> Option<f64> {
        let values = self.of(load, contender).map(|round| round.get(kind));
        Some(Spread::of(values)?.median)
    }

    /// Returns the ratios between two contenders, each taken within a round: other work of the
    /// machine then slows down both.
    pub fn ratios(&self, load: Load, kind: Kind, contender: usize, to: usize) -> Option<Spread> {
        let pairs = self.of(load, contender).filter_map(|round| {
            let other = self.of(load, to).find(|other| other.number == round.number);
            Some(round.get(kind) / other?.get(kind))
        });
        Spread::of(pairs)
    }

    /// Memory of an idle connection in KiB, and the number of connections.
    pub fn idle(&self, contender: usize) -> Option<(f64, usize)> {
        let idle = self.idle.iter().find(|idle| idle.contender == contender)?;
        Some((idle.each(), idle.connections))
    }

    /// Writes the file of raw figures.
    pub fn save(&self) {
        let mut csv = Csv::empty("data-path", &COLUMNS, KEYS);
        let name = |contender: usize| self.names[contender].replace(',', ";");
        let number = |value: f64, digits: usize| {
            let is_measured = value.is_finite() && value > 0.0;
            is_measured.then(|| format!("{value:.digits$}"))
        };
        let rounds = self.rounds.iter().map(|round| {
            let digits = match round.load {
                // Per byte.
                Load::Bulk => 6,
                _ => 3,
            };
            let figures = [
                number(round.rate, 0),
                number(round.cost, digits),
                number(round.p50, 1),
                number(round.p99, 1),
                None,
                None,
            ];
            let keys = [
                (round.number + 1).to_string(),
                round.load.name().to_owned(),
                name(round.contender),
            ];
            (keys, figures)
        });
        let idle = self.idle.iter().map(|idle| {
            let connections = Some(idle.connections.to_string());
            let figures = [None, None, None, None, connections, number(idle.each(), 3)];
            let keys = ["1".to_owned(), "idle".to_owned(), name(idle.contender)];
            (keys, figures)
        });
        for (keys, figures) in rounds.chain(idle) {
            let figures = figures.map(Option::unwrap_or_default);
            csv.put(keys.into_iter().chain(figures).collect());
        }
    }

    /// Builds the page.
    pub fn page(&self, rounds: usize, length: Duration) -> String {
        let head = [String::new()].into_iter().chain(self.names.clone());
        let mut rows: Vec<_> = ROWS
            .iter()
            // The load of the others was not requested.
            .filter(|(load, kind, _)| self.median(*load, *kind, 0).is_some())
            .map(|row| self.row(row))
            .collect();
        if !self.idle.is_empty() {
            rows.push(self.idle_row());
        }
        format!(
            "## The userspace data path\n\n\
             `cargo bench --bench userspace -- --write`: client, proxy and backend in network \
             namespaces of one machine, joined by veth(4); {}. {}. Medians of {rounds} interleaved \
             rounds, {} s each. Rates are parts of a direct connection's, taken within a round; the \
             middle half of the rounds is in brackets. Messages of 128 bytes. The figures are in \
             [data-path.csv](benchmarks/data-path.csv).\n\n{}",
            processors::described(),
            machine(&[("haproxy", "-v"), ("nginx", "-v")]),
            length.as_secs(),
            table(&head.collect::<Vec<_>>(), &rows),
        )
    }

    fn row(&self, (load, kind, title): &(Load, Kind, &str)) -> Vec<String> {
        let cells = (0..self.names.len()).map(|contender| {
            let median = self.median(*load, *kind, contender).unwrap_or(f64::NAN);
            let ratios = self.ratios(*load, *kind, contender, 0);
            match kind {
                Kind::Rate if contender == 0 => absolute(*load, median),
                Kind::Rate => ratios.map_or_else(String::new, |ratios| ratios.shown()),
                // The direct connection has no processor time.
                _ if median == 0.0 => String::new(),
                _ => format!("{median:.1}"),
            }
        });
        [(*title).to_owned()].into_iter().chain(cells).collect()
    }

    fn idle_row(&self) -> Vec<String> {
        let title = "KiB an idle connection (of so many)".to_owned();
        let cells = (0..self.names.len()).map(|contender| {
            let idle = self.idle(contender);
            idle.map_or_else(String::new, |(each, of)| format!("{each:.2} ({of})"))
        });
        [title].into_iter().chain(cells).collect()
    }
}

/// The rate of the direct connection.
fn absolute(load: Load, rate: f64) -> String {
    match load {
        Load::Bulk => format!("{:.0} MiB/s", rate / f64::from(1 << 20)),
        _ => format!("{rate:.0}/s"),
    }
}
