//! Features of the kernel are hidden from the probe (`--without`), on a kernel that has them: a
//! mode that can adapt works as the table says; one that cannot falls back with a helpful message.

mod check;
mod things;

use std::fmt::Write as _;

pub use self::check::run_here;
use self::things::{THINGS, Thing};

use super::case::Case;
use super::columns::{Column, column};
use super::differences::Why;
use super::{cases, matrix};
use crate::lab;

/// The effect on a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// The mode works; the table lists the losses.
    Adapts,
    /// The mode works in another way, and says so.
    OtherWay(&'static str),
    /// Another mode runs.
    FallsBack(&'static str),
}

/// A column without a feature.
#[derive(Debug)]
pub struct Variant {
    pub thing: &'static Thing,
    pub column: &'static Column,
    then: Then,
    /// Whether it is run every day, and not only when all are.
    everyday: bool,
}

const LOCAL: &str = "local capture";

/// For a column: the word, the effect, and whether that is run every day.
type Row = (&'static str, Then, bool);

const IPTABLES: &[Row] = &[
    ("comment", Then::Adapts, true),
    ("statistic", Then::Adapts, true),
    ("recent", Then::Adapts, true),
    ("addrtype", Then::Adapts, true),
    ("conntrack", Then::Adapts, true),
    ("nfacct", Then::Adapts, true),
    ("random-fully", Then::Adapts, true),
    ("reject", Then::Adapts, true),
    ("mark", Then::FallsBack("userspace"), true),
    ("masquerade", Then::FallsBack("userspace"), true),
    ("dnat", Then::FallsBack("userspace"), true),
    ("nat", Then::FallsBack("userspace"), true),
];

const USERSPACE: &[Row] = &[
    ("comment", Then::Adapts, true),
    ("addrtype", Then::Adapts, true),
    ("conntrack", Then::Adapts, true),
    ("reject", Then::Adapts, true),
    ("dnat", Then::OtherWay(LOCAL), true),
    ("redirect", Then::OtherWay(LOCAL), true),
    ("nat", Then::OtherWay(LOCAL), true),
];

const IPVS: &[Row] = &[
    ("comment", Then::Adapts, true),
    ("addrtype", Then::FallsBack("iptables"), true),
    ("conntrack", Then::FallsBack("iptables"), false),
    ("random-fully", Then::Adapts, false),
    ("reject", Then::Adapts, true),
    ("mark", Then::FallsBack("userspace"), true),
    ("masquerade", Then::FallsBack("userspace"), false),
    ("nat", Then::FallsBack("userspace"), true),
    ("set", Then::FallsBack("iptables"), true),
    ("ipvs", Then::FallsBack("iptables"), true),
    ("dummy", Then::FallsBack("iptables"), false),
    ("ipset-hash-ip", Then::FallsBack("iptables"), false),
    ("ipset-hash-ip-port", Then::FallsBack("iptables"), true),
    ("ipset-hash-ip-port-ip", Then::FallsBack("iptables"), false),
    ("ipset-hash-ip-port-net", Then::FallsBack("iptables"), false),
    ("ipset-bitmap-port", Then::FallsBack("iptables"), false),
    ("ipvs-wrr", Then::Adapts, false),
];

const NFTABLES: &[Row] = &[
    ("nft", Then::FallsBack("iptables"), true),
    ("nft-ct", Then::FallsBack("iptables"), false),
    ("nft-nat", Then::FallsBack("iptables"), true),
    ("nft-masquerade", Then::FallsBack("iptables"), false),
    ("nft-ranges", Then::FallsBack("iptables"), false),
    ("nft-numgen", Then::Adapts, true),
    ("nft-hash", Then::Adapts, true),
    ("nft-fib", Then::Adapts, true),
    ("nft-reject", Then::Adapts, true),
    ("nft-dynset", Then::Adapts, true),
    ("nft-counters", Then::Adapts, false),
    ("nft-connlimit", Then::Adapts, false),
];

/// Cases that every variant runs, by parts of their names; variants that fall back run only the
/// first.
const BASE: [&str; 4] = [
    "A pod reaches every endpoint and keeps",
    "Hairpin: the only endpoint",
    "Node port, from outside",
    "The same port number over TCP and UDP",
];

/// Names the words to test, separated by commas; or `all`.
pub const ONLY: &str = "TRIPOD_CONFORMANCE_WITHOUT";

pub fn variants() -> impl Iterator<Item = Variant> {
    let columns = [
        ("host iptables-nft", IPTABLES),
        ("host userspace-redirect", USERSPACE),
        ("host nftables", NFTABLES),
        ("full ipvs", IPVS),
    ];
    columns.into_iter().flat_map(|(name, rows)| {
        rows.iter().map(move |(word, then, everyday)| Variant {
            thing: THINGS
                .iter()
                .find(|thing| thing.word == *word)
                .unwrap_or_else(|| panic!("no thing {word:?}")),
            column: column(name),
            then: *then,
            everyday: *everyday,
        })
    })
}

/// The columns of the variants.
pub fn columns() -> impl Iterator<Item = Column> {
    variants().map(|variant| variant.as_column())
}

/// Words to leave out in `column` today.
pub fn words(column: &Column) -> impl Iterator<Item = &'static str> {
    let only = std::env::var(ONLY).unwrap_or_default();
    let today = move |variant: &Variant| match &*only {
        "" => variant.everyday || lab::acceptance(),
        "all" => true,
        only => only.split(',').any(|word| word == variant.thing.word),
    };
    let of_column = variants().filter(|variant| variant.column.name == column.name);
    of_column
        .filter(today)
        .map(|variant| variant.thing.word)
        .collect::<Vec<_>>()
        .into_iter()
}

impl Variant {
    /// The column without the feature.
    fn as_column(&self) -> Column {
        let mut column = Column {
            without: Some(self.thing.word),
            flags: match self.column.asked {
                // Redirect capture that is requested by name has no alternative.
                "userspace" => &["--userspace-capture=auto"],
                "nftables" => self.column.flags,
                _ => &["--ipvs-min-sync-period=0s", "--iptables-min-sync-period=0s"],
            },
            ..self.column.clone()
        };
        match self.then {
            Then::Adapts => {}
            Then::OtherWay(_) => column.chain = None,
            Then::FallsBack(mode) => {
                column.mode = mode;
                column.chain = match (mode, self.thing.word) {
                    ("userspace", "nat" | "dnat") => None,
                    ("userspace", _) => Some("TRIPOD-USERSPACE"),
                    _ => Some("KUBE-SERVICES"),
                };
            }
        }
        column
    }

    fn has_to_do_with(&self, case: &Case) -> bool {
        if lab::acceptance() {
            return true;
        }
        let base = match self.then {
            Then::FallsBack(_) => &BASE[..1],
            _ => &BASE[..],
        };
        let adapts = matches!(self.then, Then::Adapts);
        let further = self.thing.cases.iter().filter(|_| adapts);
        base.iter()
            .chain(further)
            .any(|part| case.name.contains(part))
    }

    /// The differences that show without the feature but not in the column.
    pub fn losses(&self) -> Vec<Why> {
        let usual = Column {
            without: None,
            ..self.as_column()
        };
        let without = self.as_column();
        let mut losses = Vec::new();
        for cases::Numbered { case, .. } in cases::numbered() {
            if case.obstacle(&without).is_none() {
                let before = case.differences(&usual);
                let after = case.differences(&without);
                losses.extend(after.into_iter().filter(|why| !before.contains(why)));
            }
        }
        losses.sort_unstable();
        losses.dedup();
        losses
    }

    /// The cell in the document.
    pub fn cell(&self) -> String {
        let mut cell = match self.then {
            Then::Adapts => "✓".to_owned(),
            Then::OtherWay(way) => format!("✓ {way}"),
            Then::FallsBack(mode) => format!("→ {mode}"),
        };
        let numbers: Vec<_> = self.losses().into_iter().map(matrix::number).collect();
        let numbers: Vec<_> = numbers.iter().map(usize::to_string).collect();
        if !numbers.is_empty() {
            let _ = write!(cell, " {}", numbers.join(", "));
        }
        cell
    }
}

pub fn file(column: &Column) -> String {
    format!("{} without", column.name)
}

/// Stores the results: word and cell. Words that were not run today stay unchanged.
pub fn keep_results(column: &Column, cells: &[(String, String)]) {
    let path = matrix::results(&file(column));
    let earlier = std::fs::read_to_string(&path).unwrap_or_default();
    let kept_line = |line: &&str| {
        let word = line.split('\t').next();
        !cells.iter().any(|(of, _)| Some(&**of) == word)
    };
    let kept = earlier
        .lines()
        .filter(kept_line)
        .map(|line| format!("{line}\n"));
    let lines = cells.iter().map(|(word, cell)| format!("{word}\t{cell}\n"));
    std::fs::write(path, kept.chain(lines).collect::<String>()).expect("writing results");
}

/// Reads the cell of a variant from its latest run.
pub fn seen(variant: &Variant) -> Option<String> {
    let text = std::fs::read_to_string(matrix::results(&file(variant.column))).ok()?;
    let mut lines = text.lines().filter_map(|line| line.split_once('\t'));
    let found = lines.find(|(word, _)| *word == variant.thing.word);
    found.map(|(_, cell)| cell.to_owned())
}

const HEAD: &str = "
## Without

This table shows what happens to a mode if the kernel lacks a feature, or if the
operator excludes it (`--without=WORD`). Each row is tested with the real program on a
kernel that has the feature, so that the test detects rules that use it in spite of the
flag. Then the cases that depend on the feature are run; with `TRIPOD_ACCEPTANCE=1` all
cases are run.

- **✓** the mode runs without the feature, and every case holds as above; **✓ 14** the
  same, except for difference 14.
- **→ userspace** that mode runs instead. A warning in the log, in an Event on the Node
  and in `/statusz` names what is missing and how to get it; the label of
  `tripod_mode_fallback` contains the word.
- **·** the mode does not use the feature.

";

/// Writes the part of the document, with `cell` for its cells.
pub fn section(cell: impl Fn(&Variant) -> String) -> String {
    let mut text = String::from(HEAD);
    let mut heads: Vec<_> = variants().map(|variant| variant.column.name).collect();
    heads.dedup();
    let _ = writeln!(text, "| without | {} | how to get it |", heads.join(" | "));
    let _ = writeln!(text, "|---|{}---|", "---|".repeat(heads.len()));
    for thing in &THINGS {
        let cells: Vec<_> = heads
            .iter()
            .map(|name| {
                let found = variants().find(|variant| {
                    variant.column.name == *name && variant.thing.word == thing.word
                });
                found.map_or("·".to_owned(), |variant| cell(&variant))
            })
            .collect();
        let (word, how) = (thing.word, thing.get);
        let _ = writeln!(text, "| `{word}` | {} | {how} |", cells.join(" | "));
    }
    text
}
