//! Targets for Tripod, and whether it reaches them.

use super::{
    document::table::table,
    figures::{Figures, Kind},
    load::Load,
};

/// The contender with which a figure of Tripod is compared.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Than {
    Direct,
    /// HAProxy or nginx, whichever has the better median.
    Better,
    Nginx,
}

/// The names of the other proxies in the tables.
const HAPROXY: &str = "HAProxy";
const NGINX: &str = "nginx stream";

struct Target {
    title: &'static str,
    load: Load,
    kind: Kind,
    than: Than,
    /// The minimum ratio of rates, and the maximum of all other figures.
    bar: f64,
}

const TARGETS: [Target; 7] = [
    Target {
        title: "bulk",
        load: Load::Bulk,
        kind: Kind::Rate,
        than: Than::Direct,
        bar: 0.95,
    },
    Target {
        title: "requests on 32 connections",
        load: Load::Requests,
        kind: Kind::Rate,
        than: Than::Better,
        bar: 1.1,
    },
    Target {
        title: "new connections, 32 at once",
        load: Load::Connections,
        kind: Kind::Rate,
        than: Than::Better,
        bar: 1.1,
    },
    Target {
        title: "p50 of a request alone",
        load: Load::Latency,
        kind: Kind::P50,
        than: Than::Better,
        bar: 1.0,
    },
    Target {
        title: "p99 of a request alone",
        load: Load::Latency,
        kind: Kind::P99,
        than: Than::Better,
        bar: 1.0,
    },
    // 12 µs where nginx takes 15.5, and 75 where it takes 85.
    Target {
        title: "proxy's CPU a request",
        load: Load::Requests,
        kind: Kind::Cost,
        than: Than::Nginx,
        bar: 0.77,
    },
    Target {
        title: "proxy's CPU a connection",
        load: Load::Connections,
        kind: Kind::Cost,
        than: Than::Nginx,
        bar: 0.88,
    },
];

/// Maximum memory of an idle connection in KiB.
const IDLE: f64 = 2.5;

/// Returns the table with a column for each Tripod; nothing if there is nothing to compare.
pub fn table_of(figures: &Figures) -> String {
    let names = figures.names.iter().enumerate();
    let ours: Vec<usize> = names
        .filter(|(_, name)| name.starts_with("Tripod"))
        .map(|(at, _)| at)
        .collect();
    let mut rows: Vec<_> = TARGETS
        .iter()
        .filter_map(|target| row(figures, target, &ours))
        .collect();
    rows.extend(idle(figures, &ours));
    if rows.is_empty() {
        return String::new();
    }
    let head = ["target", "bar"].map(str::to_owned).into_iter();
    let head = head.chain(ours.iter().map(|at| figures.names[*at].clone()));
    format!(
        "`cargo bench --bench userspace -- --write`: ratios within a round; the better of HAProxy \
         and nginx is the one with the better median.\n\n{}",
        table(&head.collect::<Vec<_>>(), &rows)
    )
}

fn row(figures: &Figures, target: &Target, ours: &[usize]) -> Option<Vec<String>> {
    let to = compared(figures, target)?;
    let bound = match target.kind {
        Kind::Rate => "at least",
        _ => "at most",
    };
    let title = match target.than {
        Than::Direct => format!("{}, of direct", target.title),
        _ => format!("{}, of {}'s", target.title, figures.names[to]),
    };
    let cells = ours.iter().map(|at| {
        let ratios = figures.ratios(target.load, target.kind, *at, to);
        let Some(ratios) = ratios else {
            return String::new();
        };
        let is_met = match target.kind {
            Kind::Rate => ratios.median >= target.bar,
            _ => ratios.median <= target.bar,
        };
        format!("{}: {}", ratios.shown(), met(is_met))
    });
    let first = [title, format!("{bound} {:.2}", target.bar)];
    Some(first.into_iter().chain(cells).collect())
}

/// Returns the contender with which a figure is compared, if it was measured.
fn compared(figures: &Figures, target: &Target) -> Option<usize> {
    let named = |name: &str| figures.names.iter().position(|known| known == name);
    let candidates = match target.than {
        Than::Direct => vec![Some(0)],
        Than::Better => vec![named(HAPROXY), named(NGINX)],
        Than::Nginx => vec![named(NGINX)],
    };
    let medians = candidates.into_iter().flatten().filter_map(|at| {
        let median = figures.median(target.load, target.kind, at)?;
        Some((median, at))
    });
    let by_median = |a: &(f64, usize), b: &(f64, usize)| a.0.total_cmp(&b.0);
    let best = match target.kind {
        Kind::Rate => medians.max_by(by_median),
        _ => medians.min_by(by_median),
    };
    best.map(|(_, at)| at)
}

fn idle(figures: &Figures, ours: &[usize]) -> Option<Vec<String>> {
    let cells = ours.iter().map(|at| {
        let idle = figures.idle(*at);
        idle.map_or_else(String::new, |(each, _)| {
            format!("{each:.2}: {}", met(each <= IDLE))
        })
    });
    let cells: Vec<_> = cells.collect();
    let is_measured = cells.iter().any(|cell| !cell.is_empty());
    let first = [
        "KiB an idle connection".to_owned(),
        format!("at most {IDLE:.2}"),
    ];
    is_measured.then(|| first.into_iter().chain(cells).collect())
}

fn met(is_met: bool) -> &'static str {
    if is_met { "met" } else { "not met" }
}
