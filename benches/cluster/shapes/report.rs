//! The section about shapes.

use super::{SHAPES_FILE, Shape, shapes};
use crate::{
    document::{
        self,
        csv::Csv,
        machine::machine,
        table::{figure, table},
    },
    figures::{PROGRAMS, csv},
    modes::MODES,
};

/// Goals in nftables mode: the first sync of these shapes, in seconds ...
const FIRST_SYNC: [(&str, f64); 2] = [("44125x2", 2.0), ("5006x50", 5.0)];
/// ... and the longest wait of a call, in milliseconds.
const LONGEST_WAIT: f64 = 10.0;

/// A table: its title, and its columns with their names in the file.
type Part = (&'static str, &'static [(&'static str, &'static str)]);

const PARTS: [Part; 4] = [
    (
        "The first start: from the start of the process until everything is applied; of this, the \
         sync itself; the highest resident memory; the longest wait of a call straight to an \
         endpoint meanwhile; ports that were not applied:",
        &[
            ("first sync, s", "first_sync_s"),
            ("the sync, s", "first_sync_alone_s"),
            ("peak, MiB", "first_peak_mib"),
            ("direct call, ms", "first_direct_ms"),
            ("not applied", "failed"),
        ],
    ),
    (
        "A restart with nothing changed, and what it wrote into nf_tables:",
        &[
            ("restart, s", "restart_s"),
            ("written", "restart_written"),
            ("longest wait, ms", "restart_wait_ms"),
            ("direct call, ms", "restart_direct_ms"),
            ("calls failed", "restart_calls_failed"),
        ],
    ),
    (
        "A full sync, because another program changed the rules, and one endpoint more, from the \
         event until it is applied:",
        &[
            ("full sync, s", "resync_s"),
            ("longest wait, ms", "resync_wait_ms"),
            ("direct call, ms", "resync_direct_ms"),
            ("change p50, ms", "change_p50_ms"),
            ("change max, ms", "change_max_ms"),
            ("longest wait, ms", "change_wait_ms"),
            ("direct call, ms", "change_direct_ms"),
        ],
    ),
    (
        "A thousand changes a second for ten seconds; how long after the last one everything was \
         applied:",
        &[
            ("sent a second", "storm_a_second"),
            ("p50, ms", "storm_p50_ms"),
            ("p99, ms", "storm_p99_ms"),
            ("caught up, ms", "storm_caught_up_ms"),
            ("longest wait, ms", "storm_wait_ms"),
            ("peak, MiB", "storm_peak_mib"),
        ],
    ),
];

/// Writes the section, if there are figures.
pub fn report() {
    let csv = csv(&SHAPES_FILE);
    let is_measured = MODES
        .iter()
        .any(|mode| shapes().any(|shape| cell(&csv, mode.name, shape, "first_sync_s").is_some()));
    if !is_measured {
        return;
    }
    let mut text = format!(
        "## Shapes of clusters\n\n\
         `cargo bench --bench cluster -- shapes`: {}. `44125x2` are 44,125 Services of 2 endpoints, \
         `1000x1-1000ports` has 1,000 ports in each Service, `dual` means both IP families. ipvs \
         mode runs in a guest (User-Mode Linux 6.1, one processor). Start and restart read \
         manifests; changes come from an API server on the same machine. A wait is the time of a \
         new connection until the first byte of the endpoint; a Service that nothing changes is \
         called every millisecond, and so is an endpoint itself (direct call), whose longest wait \
         is that of the machine. The figures are in [shapes.csv](benchmarks/shapes.csv).\n",
        machine(&PROGRAMS)
    );
    for (title, columns) in PARTS {
        text += &format!("\n{title}\n\n{}", part(&csv, columns));
    }
    text += &format!("\nGoals in nftables mode:\n\n{}", goals(&csv));
    document::write("shapes", &text);
}

/// A figure as it is in the file, if it was measured.
fn cell<'a>(csv: &'a Csv, mode: &str, shape: Shape, column: &str) -> Option<&'a str> {
    let text = csv.text(&[mode, &shape.to_string()], column)?;
    (!text.is_empty()).then_some(text)
}

fn part(csv: &Csv, columns: &[(&str, &str)]) -> String {
    let names = columns.iter().map(|(name, _)| *name);
    let head: Vec<String> = std::iter::once("mode, shape")
        .chain(names)
        .map(str::to_owned)
        .collect();
    let mut rows = Vec::new();
    for mode in &MODES {
        for shape in shapes() {
            let cells = columns.iter().map(|(_, column)| {
                let text = cell(csv, mode.name, shape, column).unwrap_or_default();
                // Counts are shown as they are.
                let number = text.parse().ok().filter(|_| text.contains('.'));
                number.map_or_else(|| text.to_owned(), |number| figure(Some(number)))
            });
            let cells: Vec<_> = cells.collect();
            if cells.iter().any(|cell| !cell.is_empty()) {
                let title = format!("{}, {shape}", mode.title);
                rows.push(std::iter::once(title).chain(cells).collect());
            }
        }
    }
    table(&head, &rows)
}

fn goals(csv: &Csv) -> String {
    let number = |shape, column| cell(csv, "nftables", shape, column)?.parse::<f64>().ok();
    let mut rows = Vec::new();
    let mut row = |goal: String, measured: String, is_met: bool| {
        let met = if is_met { "met" } else { "not met" };
        rows.push(vec![goal, measured, met.to_owned()]);
    };
    let of_goals = FIRST_SYNC.map(|(word, most)| (Shape::parse(word), most));
    for (shape, most) in of_goals
        .into_iter()
        .filter_map(|(s, most)| Some((s?, most)))
    {
        if let Some(took) = number(shape, "first_sync_s") {
            let goal = format!("first sync of {shape} in {most} s");
            row(goal, format!("{} s", figure(Some(took))), took <= most);
        }
    }
    let columns = [
        "restart_wait_ms",
        "resync_wait_ms",
        "change_wait_ms",
        "storm_wait_ms",
    ];
    let waits = shapes()
        .flat_map(|shape| columns.map(|column| number(shape, column)))
        .flatten();
    if let Some(longest) = waits.reduce(f64::max) {
        let goal = format!("no call waits longer than {LONGEST_WAIT} ms");
        let measured = format!("{} ms", figure(Some(longest)));
        row(goal, measured, longest <= LONGEST_WAIT);
    }
    let written = shapes().filter_map(|shape| cell(csv, "nftables", shape, "restart_written"));
    let written: Vec<_> = written.collect();
    if let Some(worst) = written
        .iter()
        .find(|text| **text != "nothing")
        .or(written.first())
    {
        let goal = "a restart with nothing changed writes nothing".to_owned();
        row(goal, (*worst).to_owned(), *worst == "nothing");
    }
    let head = ["goal", "measured", ""].map(str::to_owned);
    table(&head, &rows)
}
