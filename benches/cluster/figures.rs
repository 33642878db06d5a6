//! The files of raw figures, and the sections and plots generated from them.

use crate::{
    document::{
        self,
        csv::Csv,
        machine::machine,
        plot::{self, Panel, Series},
        table::{figure, table, thousands},
    },
    guest,
    modes::{MODES, Mode},
    shapes,
};

/// A file: its name, its columns, and the number of key columns.
pub struct File(pub &'static str, pub &'static [&'static str]);

impl File {
    /// Returns its name without the ending.
    pub fn name(&self) -> &'static str {
        self.0
    }

    /// Adds a row, which is printed in a guest.
    pub fn put(&self, row: Vec<String>) {
        if !guest::prints(self, &row) {
            csv(self).put(row);
        }
    }
}

/// All begin with the mode and the number of Services.
const KEYS: usize = 2;

pub const SCALE: File = File(
    "scale",
    &[
        "mode",
        "services",
        "endpoints_each",
        "kernel",
        "first_sync_s",
        "first_sync_cpu_s",
        "first_sync_cpu_of_programs_s",
        "resident_mib",
        "peak_mib",
        "failed",
        "descriptors",
        "change_p50_ms",
        "change_p90_ms",
        "change_cpu_ms",
        "change_cpu_of_programs_ms",
    ],
);

pub const CHURN: File = File(
    "churn",
    &[
        "mode",
        "services",
        "changes_a_second",
        "seconds",
        "seen",
        "lost",
        "p50_ms",
        "p99_ms",
        "cpu_percent",
        "cpu_percent_of_programs",
        "peak_mib",
    ],
);

pub const CONNECTING: File = File(
    "connecting",
    &["mode", "services", "calls", "p50_us", "p99_us"],
);

/// Opens a file as it is now.
pub fn csv(file: &File) -> Csv {
    Csv::open(file.0, file.1, KEYS)
}

/// The cell of a figure that was not measured.
pub fn blank() -> String {
    String::new()
}

pub fn decimal(value: f64, digits: usize) -> String {
    format!("{value:.digits$}")
}

/// The target for one change with 20,000 Services relative to 1,000.
const BAR: f64 = 1.3;

/// Figures of a file by mode and number of Services.
struct Figures {
    csv: Csv,
    sizes: &'static [u32],
}

impl Figures {
    fn get(&self, mode: &Mode, services: u32, column: &str) -> Option<f64> {
        self.csv.number(&[mode.name, &services.to_string()], column)
    }

    /// A table of modes by numbers of Services. Modes that have no figure are left out.
    fn table(&self, what: &str, cell: impl Fn(&Mode, u32) -> String) -> String {
        let sizes = self.sizes.iter();
        let head = sizes.map(|size| thousands(u64::from(*size)));
        let head: Vec<String> = std::iter::once(what.to_owned()).chain(head).collect();
        let rows = MODES.iter().filter_map(|mode| {
            let cells = self.sizes.iter().map(|size| cell(mode, *size));
            let cells: Vec<_> = cells.collect();
            let is_measured = cells.iter().any(|cell| !cell.is_empty());
            let title = std::iter::once(mode.title.to_owned());
            is_measured.then(|| title.chain(cells).collect())
        });
        table(&head, &rows.collect::<Vec<_>>())
    }

    fn panel(&self, title: &'static str, column: &str) -> Panel {
        let line = |mode: &Mode| -> Series {
            let points = self.sizes.iter().filter_map(|size| {
                let y = self.get(mode, *size, column)?;
                (y > 0.0).then_some((f64::from(*size), y))
            });
            (mode.title.to_owned(), points.collect())
        };
        let lines = MODES.iter().map(line);
        (
            title,
            lines.filter(|(_, points)| !points.is_empty()).collect(),
        )
    }
}

pub const PROGRAMS: [(&str, &str); 2] = [
    ("iptables-nft", "--version"),
    ("iptables-legacy", "--version"),
];

/// Generates the sections of these parts from their files.
pub fn report(is_asked: impl Fn(&str) -> bool) {
    let parts: [(&str, fn()); 4] = [
        ("scale", scale),
        ("churn", churn),
        ("connecting", connecting),
        ("shapes", shapes::report),
    ];
    for (_, write) in parts.iter().filter(|(part, _)| is_asked(part)) {
        write();
    }
}

fn scale() {
    let figures = Figures {
        csv: csv(&SCALE),
        sizes: &[10, 100, 1000, 5000, 20_000],
    };
    let show = |column: &'static str| {
        let figures = &figures;
        move |mode: &Mode, size| figure(figures.get(mode, size, column))
    };
    let mut text = format!(
        "## The number of Services\n\n\
         `cargo bench --bench cluster -- scale`: {}. ipvs mode runs in a guest (User-Mode \
         Linux 6.1, one processor), where a system call takes several times as long as on the \
         machine itself: its column stands for itself. Each Service has 5 endpoints; Tripod is \
         a client of an API server on the same machine. The machine was shared with other \
         programs. The figures are in [scale.csv](benchmarks/scale.csv), with the processor time \
         of each.\n\n\
         ![First sync, memory and one changed endpoint against the number of \
         Services](images/benchmark-scale.svg)\n\n",
        machine(&PROGRAMS)
    );
    text += "First sync, seconds from the start of the process until everything is applied:\n\n";
    text += &figures.table("s", show("first_sync_s"));
    text += "\nResident memory after it, MiB (at its highest):\n\n";
    text += &figures.table("MiB", |mode, size| {
        let get = |column| figures.get(mode, size, column);
        match (get("resident_mib"), get("peak_mib")) {
            (Some(now), Some(peak)) => format!("{now:.0} ({peak:.0})"),
            _ => blank(),
        }
    });
    text +=
        "\nOne changed endpoint, milliseconds from the event until a call reaches the new one:\n\n";
    text += &figures.table("ms", show("change_p50_ms"));
    text += &failed(&figures);
    document::write("scale", &text);
    document::write("change-targets", &bar(&figures));
    let panels = [
        figures.panel("first sync, s", "first_sync_s"),
        figures.panel("resident memory, MiB", "resident_mib"),
        figures.panel("one changed endpoint, ms", "change_p50_ms"),
        figures.panel("own processor time of one change, ms", "change_cpu_ms"),
    ];
    plot::draw("benchmark-scale", &panels).expect("a plot");
}

/// The program's own processor time for one change with the most Services relative to 1,000.
fn bar(figures: &Figures) -> String {
    let head = ["own processor time of one change", "of 1,000", "bar", ""].map(str::to_owned);
    let rows = MODES.iter().filter_map(|mode| {
        let of = |services| figures.get(mode, services, "change_cpu_ms");
        let most = [20_000, 5000]
            .into_iter()
            .find(|size| of(*size).is_some())?;
        let ratio = of(most)? / of(1000)?;
        let met = if ratio <= BAR { "met" } else { "not met" };
        Some(vec![
            format!("{}, {} Services", mode.title, thousands(u64::from(most))),
            format!("{ratio:.2}"),
            format!("{BAR}"),
            met.to_owned(),
        ])
    });
    let rows: Vec<_> = rows.collect();
    format!(
        "`cargo bench --bench cluster -- scale`:\n\n{}",
        table(&head, &rows)
    )
}

/// Lists the ServicePorts that were not served.
fn failed(figures: &Figures) -> String {
    let mut text = String::new();
    for mode in &MODES {
        for size in figures.sizes {
            if let Some(failed) = figures.get(mode, *size, "failed").filter(|n| *n > 0.0) {
                text += &format!(
                    "\n{} with {} Services: {failed} ServicePorts were not applied, because \
                     descriptors ran out (the limit was {}).\n",
                    mode.title,
                    thousands(u64::from(*size)),
                    limit()
                );
            }
        }
    }
    text
}

/// The limit of open files.
fn limit() -> u64 {
    let limit = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE);
    limit.map_or(0, |(_, most)| most)
}

fn churn() {
    let figures = Figures {
        csv: csv(&CHURN),
        sizes: &[1000, 5000, 20_000],
    };
    let head = [
        "mode, Services",
        "changes a second",
        "p50, ms",
        "p99, ms",
        "not seen",
        "CPU, %",
        "CPU of its programs, %",
        "peak, MiB",
    ];
    let mut rows = Vec::new();
    for mode in &MODES {
        for &size in figures.sizes {
            let get = |column| figures.get(mode, size, column);
            if get("p50_ms").is_none() && get("cpu_percent").is_none() {
                continue;
            }
            let mut row = vec![format!("{}, {}", mode.title, thousands(u64::from(size)))];
            let columns = ["changes_a_second", "p50_ms", "p99_ms"];
            row.extend(columns.map(|column| figure(get(column))));
            let count = |column| get(column).unwrap_or(0.0);
            let (seen, lost) = (count("seen"), count("lost"));
            row.push(format!("{lost} of {}", seen + lost));
            row.push(figure(get("cpu_percent")));
            row.push(figure(get("cpu_percent_of_programs").filter(|n| *n > 0.0)));
            row.push(figure(get("peak_mib")));
            rows.push(row);
        }
    }
    let text = format!(
        "## A thousand changes a second\n\n\
         `cargo bench --bench cluster -- churn`: for a minute an endpoint of another Service \
         changes 1,000 times a second, and so does, whenever the last change was seen, that of a \
         Service that is called every 2 ms: p50 and p99 are from the event until a call reaches \
         the new endpoint. Changes of this Service that no call saw within 30 s are not seen: they \
         are in neither. In userspace mode the calls are part of the processor time. The \
         figures are in [churn.csv](benchmarks/churn.csv).\n\n{}",
        table(&head.map(str::to_owned), &rows)
    );
    document::write("churn", &text);
}

fn connecting() {
    let figures = Figures {
        csv: csv(&CONNECTING),
        sizes: &[1, 10, 100, 1000, 5000, 10_000, 20_000],
    };
    let p50 = |mode: &Mode, size| figures.get(mode, size, "p50_us");
    let table = figures.table("p50, µs (of 1 Service)", |mode, size| {
        match (p50(mode, size), p50(mode, 1)) {
            (Some(time), Some(only)) => format!("{time:.0} ({:.2})", time / only),
            (time, _) => figure(time),
        }
    });
    let text = format!(
        "## New connections against the number of Services\n\n\
         `cargo bench --bench cluster -- connecting`: from the beginning of a connection to the \
         first byte of the endpoint, over 16 of the Services, client and endpoint on the node \
         itself. ipvs mode runs in a guest, with at most 5,000 Services. All numbers of Services \
         run at once, each in a network namespace, and are called in turns. The figures are in \
         [connecting.csv](benchmarks/connecting.csv), with those of the endpoint itself as 0 \
         Services.\n\n\
         ![The median against the number of Services](images/benchmark-connecting.svg)\n\n{table}"
    );
    document::write("connecting", &text);
    let panels = [
        figures.panel("p50 of a new connection, µs", "p50_us"),
        figures.panel("p99 of a new connection, µs", "p99_us"),
    ];
    plot::draw("benchmark-connecting", &panels).expect("a plot");
}
