//! Something of the kernel left out of the probe's view (`--without`), on a
//! kernel that has it: what adapts goes on as the table says, what cannot falls
//! back with words that help.

use std::fmt::Write as _;

use super::case::Case;
use super::columns::{Column, Kernel, Tools, column};
use super::differences::Why;
use super::run::{Run, run_in};
use super::world::World;
use super::{FAILED, cases, matrix};
use crate::lab::{self, Tripod, get, tripod_binary};

/// Something that can be left out.
#[derive(Debug)]
pub struct Thing {
    /// What `--without` calls it.
    pub word: &'static str,
    /// How the log names it, in the node's own family.
    what: &'static str,
    /// How to get it.
    get: &'static str,
    /// How rules that use it spell it, if rules do.
    rules: Option<&'static str>,
    /// Further cases that have to do with it, by parts of their names.
    cases: &'static [&'static str],
}

/// What becomes of a column without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// The mode gets along; the table says what is lost.
    Adapts,
    /// The mode gets along by another way, and says so.
    OtherWay(&'static str),
    /// Another mode runs.
    FallsBack(&'static str),
}

/// A column without something.
#[derive(Debug)]
pub struct Variant {
    pub thing: &'static Thing,
    pub column: &'static Column,
    then: Then,
    /// It is run every day; if not, with all of them only.
    everyday: bool,
}

const fn extension(
    word: &'static str,
    what: &'static str,
    get: &'static str,
    rules: &'static str,
    cases: &'static [&'static str],
) -> Thing {
    Thing {
        word,
        what,
        get,
        rules: Some(rules),
        cases,
    }
}

const fn object(word: &'static str, what: &'static str, get: &'static str) -> Thing {
    Thing {
        word,
        what,
        get,
        rules: None,
        cases: &[],
    }
}

const THINGS: [Thing; 21] = [
    extension(
        "comment",
        "IPv4 -m comment",
        "modprobe xt_comment, or a kernel with CONFIG_NETFILTER_XT_MATCH_COMMENT",
        "-m comment",
        &[],
    ),
    extension(
        "statistic",
        "IPv4 -m statistic",
        "modprobe xt_statistic, or a kernel with CONFIG_NETFILTER_XT_MATCH_STATISTIC",
        "-m statistic",
        &["equal share", "Weights of slices"],
    ),
    extension(
        "recent",
        "IPv4 -m recent",
        "modprobe xt_recent, or a kernel with CONFIG_NETFILTER_XT_MATCH_RECENT",
        "-m recent",
        &["Clients stick to", "endpoint goes sticks", "Affinity ends"],
    ),
    extension(
        "addrtype",
        "IPv4 -m addrtype",
        "modprobe xt_addrtype, or a kernel with CONFIG_NETFILTER_XT_MATCH_ADDRTYPE",
        "-m addrtype",
        &[
            "At every address",
            "From the node to its own",
            "from a pod and from the node",
        ],
    ),
    extension(
        "conntrack",
        "IPv4 -m conntrack",
        "modprobe xt_conntrack, or a kernel with CONFIG_NETFILTER_XT_MATCH_CONNTRACK",
        "-m conntrack",
        &["From the node at 127.0.0.1", "not in the ranges, is not"],
    ),
    extension(
        "nfacct",
        "IPv4 -m nfacct",
        "modprobe xt_nfacct, or a kernel with CONFIG_NETFILTER_XT_MATCH_NFACCT",
        "-m nfacct",
        &["From the node at 127.0.0.1"],
    ),
    extension(
        "random-fully",
        "IPv4 -j MASQUERADE --random-fully",
        "a kernel of 3.13 or later, and iptables of 1.6.2 or later",
        "--random-fully",
        &[],
    ),
    extension(
        "reject",
        "IPv4 -j REJECT",
        "modprobe ipt_REJECT, or a kernel with CONFIG_IP_NF_TARGET_REJECT",
        "-j REJECT",
        &["Without endpoints callers", "Other ports of a cluster IP"],
    ),
    extension(
        "mark",
        "IPv4 -m mark, -j MARK",
        "modprobe xt_mark, or a kernel with CONFIG_NETFILTER_XT_MARK",
        "-j MARK",
        &[],
    ),
    extension(
        "masquerade",
        "IPv4 -j MASQUERADE",
        "modprobe xt_MASQUERADE, or a kernel with CONFIG_NETFILTER_XT_TARGET_MASQUERADE",
        "-j MASQUERADE",
        &[],
    ),
    extension(
        "dnat",
        "IPv4 -j DNAT",
        "modprobe xt_nat, or a kernel with CONFIG_NETFILTER_XT_NAT",
        "-j DNAT",
        &[],
    ),
    extension(
        "redirect",
        "IPv4 -j REDIRECT",
        "modprobe xt_REDIRECT, or a kernel with CONFIG_NETFILTER_XT_TARGET_REDIRECT",
        "-j REDIRECT",
        &[],
    ),
    extension(
        "nat",
        "IPv4 nat",
        "package iptables, and iptable_nat (CONFIG_IP_NF_NAT) or nf_tables with nft_compat \
         (CONFIG_NF_TABLES, CONFIG_NFT_COMPAT, CONFIG_NFT_NAT)",
        "*nat",
        &[],
    ),
    extension(
        "set",
        "IPv4 -m set",
        "modprobe xt_set, or a kernel with CONFIG_NETFILTER_XT_SET",
        "-m set",
        &[],
    ),
    object(
        "ipvs",
        "IPVS",
        "modprobe ip_vs, or a kernel with CONFIG_IP_VS, CONFIG_IP_VS_PROTO_TCP and _UDP",
    ),
    object(
        "dummy",
        "dummy links",
        "modprobe dummy, or a kernel with CONFIG_DUMMY",
    ),
    object(
        "ipset-hash-ip",
        "ipset hash:ip",
        "modprobe ip_set_hash_ip, or a kernel with CONFIG_IP_SET_HASH_IP",
    ),
    object(
        "ipset-hash-ip-port",
        "ipset hash:ip,port",
        "modprobe ip_set_hash_ipport, or a kernel with CONFIG_IP_SET_HASH_IPPORT",
    ),
    object(
        "ipset-hash-ip-port-ip",
        "ipset hash:ip,port,ip",
        "modprobe ip_set_hash_ipportip, or a kernel with CONFIG_IP_SET_HASH_IPPORTIP",
    ),
    object(
        "ipset-hash-ip-port-net",
        "ipset hash:ip,port,net",
        "modprobe ip_set_hash_ipportnet, or a kernel with CONFIG_IP_SET_HASH_IPPORTNET",
    ),
    object(
        "ipset-bitmap-port",
        "ipset bitmap:port",
        "modprobe ip_set_bitmap_port, or a kernel with CONFIG_IP_SET_BITMAP_PORT",
    ),
];

const LOCAL: &str = "local capture";

/// Per column: the word, what becomes of it, and whether that is run every day.
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
];

/// Cases that every variant runs, by parts of their names; those that fall back
/// run the first alone.
const BASE: [&str; 4] = [
    "A pod reaches every endpoint and keeps",
    "Hairpin: the only endpoint",
    "Node port, from outside",
    "The same port number over TCP and UDP",
];

/// Names words to leave out alone, with commas; or `all`.
pub const ONLY: &str = "TRIPOD_CONFORMANCE_WITHOUT";

pub fn variants() -> impl Iterator<Item = Variant> {
    let columns = [
        ("host iptables-nft", IPTABLES),
        ("host userspace-redirect", USERSPACE),
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

/// The columns that variants run as.
pub fn columns() -> impl Iterator<Item = Column> {
    variants().map(|variant| variant.as_column())
}

/// Words to run without in `column` today.
pub fn words(column: &Column) -> impl Iterator<Item = &'static str> {
    let only = std::env::var(ONLY).unwrap_or_default();
    let today = move |variant: &Variant| match only.is_empty() {
        true => variant.everyday || lab::acceptance(),
        false if only == "all" => true,
        false => only.split(',').any(|word| word == variant.thing.word),
    };
    let of_column = variants().filter(|variant| variant.column.name == column.name);
    of_column
        .filter(today)
        .map(|variant| variant.thing.word)
        .collect::<Vec<_>>()
        .into_iter()
}

impl Variant {
    /// The column as it is without the thing.
    fn as_column(&self) -> Column {
        let mut column = Column {
            without: Some(self.thing.word),
            flags: match self.column.asks {
                // Redirect capture that is asked for by name has no other way.
                "userspace" => &["--userspace-capture=auto"],
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

    /// What shows without the thing that does not show in the column.
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

    /// What the document says of it.
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

/// One Tripod after another on this kernel; words and cells.
pub fn run_here(column: &Column) -> Vec<(String, String)> {
    let world = World::new();
    let mut cells = Vec::new();
    let today: Vec<_> = words(column).collect();
    let of_column = variants().filter(|variant| variant.column.name == column.name);
    for variant in of_column.filter(|variant| today.contains(&variant.thing.word)) {
        let word = variant.thing.word;
        let start = std::time::Instant::now();
        let as_column = variant.as_column();
        let seen = run_in(&world, &as_column, |case| variant.has_to_do_with(case));
        let mut fine = !seen.is_empty();
        for (case, verdict) in &seen {
            for line in verdict {
                println!("FAILED without {word}: {case}: {line}");
                fine = false;
            }
        }
        println!(
            "without {word}: {} cases in {:.1?}",
            seen.len(),
            start.elapsed()
        );
        let cell = if fine {
            variant.cell()
        } else {
            FAILED.to_owned()
        };
        cells.push((word.to_owned(), cell));
        let program = tripod_binary();
        world.node.show(&format!("{} cleanup", program.display()));
    }
    cells
}

impl Run<'_> {
    fn variant(&self) -> Option<Variant> {
        let column = self.column;
        variants().find(|variant| {
            variant.column.name == column.name && Some(variant.thing.word) == column.without
        })
    }

    /// It says what it does without, and how to get it.
    pub(super) fn check_words(&self, tripod: &Tripod) {
        let Some(Variant { thing, then, .. }) = self.variant() else {
            return;
        };
        let Thing {
            word,
            what,
            get: how,
            ..
        } = thing;
        let lack = format!("{what} (left out by --without; {how})");
        let at = ([127, 0, 0, 1], 10249).into();
        let page = |path| get(&self.world.node, at, path).expect("an answer");
        let left_out = format!("left out by --without: {word}");
        assert_eq!(tripod.said(&["INFO", &left_out]), 1, "{left_out}");
        let (asked, runs) = (self.column.asks, self.column.mode);
        let passed_over: &[&str] = match (asked, runs) {
            ("ipvs", "userspace") => &["ipvs", "iptables"],
            (asked, runs) if asked != runs => &[asked],
            _ => &[],
        };
        for mode in passed_over {
            let sentence = format!("no {mode} mode here, for lack of {lack}");
            let line = format!("running in {runs} mode: {sentence}");
            assert_eq!(
                tripod.said(&["WARN", &line]),
                1,
                "{line}:\n{}",
                tripod.log()
            );
            assert!(page("/statusz").contains(&sentence), "{sentence}");
        }
        let (reason, value) = match passed_over.is_empty() {
            true => ("", 0),
            false => (*word, 1),
        };
        let metric = format!("tripod_mode_fallback{{reason=\"{reason}\"}} {value}");
        let metrics = page("/metrics");
        assert!(metrics.contains(&metric), "no {metric} in\n{metrics}");
        match then {
            Then::Adapts => {
                let said = tripod.said(&["WARN", &format!("goes without {lack}")]);
                assert_eq!(said, 1, "{lack}:\n{}", tripod.log());
            }
            Then::OtherWay(way) => {
                let said = tripod.said(&[&format!("IPv4: {way}, because "), "--without"]);
                assert_eq!(said, 1, "{way}:\n{}", tripod.log());
            }
            Then::FallsBack(_) => {}
        }
    }

    /// Rules have what was not left out, and nothing of what was.
    pub(super) fn check_rules(&self, all: bool) {
        let variant = self.variant();
        let saved = self.saved();
        let uses = |rules: &str| {
            let mut table = "";
            saved.lines().any(|line| {
                if line.starts_with('*') {
                    table = line;
                }
                line.starts_with("-A") && (line.contains(rules) || table == rules)
            })
        };
        if let Some(rules) = variant.as_ref().and_then(|variant| variant.thing.rules) {
            assert!(!uses(rules), "{rules} in\n{saved}");
        }
        // With all cases there is something to see of each.
        if self.column.without.is_none() && all {
            let adapting = variants().filter(|variant| {
                variant.column.name == self.column.name && matches!(variant.then, Then::Adapts)
            });
            for rules in adapting.filter_map(|variant| variant.thing.rules) {
                assert!(uses(rules), "no {rules} in\n{saved}");
            }
        }
    }

    /// All rules of the node.
    fn saved(&self) -> String {
        let mut saved = String::new();
        for tools in [Tools::Nft, Tools::Legacy] {
            // nf_tables cannot be asked in the guest.
            if self.column.kernel == Kernel::Host || tools == Tools::Legacy {
                for program in ["iptables-save", "ip6tables-save"] {
                    let line = format!("{} {program}", tools.program());
                    saved += &self.world.node.show(&line);
                }
            }
        }
        saved
    }
}

pub fn file(column: &Column) -> String {
    format!("{} without", column.name)
}

/// Keeps what was seen: word and cell. What was not run today stays.
pub fn keep_results(column: &Column, cells: &[(String, String)]) {
    let path = matrix::results(&file(column));
    let earlier = std::fs::read_to_string(&path).unwrap_or_default();
    let anew = |line: &&str| {
        let word = line.split('\t').next();
        !cells.iter().any(|(of, _)| Some(&**of) == word)
    };
    let kept = earlier.lines().filter(anew).map(|line| format!("{line}\n"));
    let lines = cells.iter().map(|(word, cell)| format!("{word}\t{cell}\n"));
    std::fs::write(path, kept.chain(lines).collect::<String>()).expect("writing results");
}

/// The cell of a variant in its latest run.
pub fn seen(variant: &Variant) -> Option<String> {
    let text = std::fs::read_to_string(matrix::results(&file(variant.column))).ok()?;
    let mut lines = text.lines().filter_map(|line| line.split_once('\t'));
    let found = lines.find(|(word, _)| *word == variant.thing.word);
    found.map(|(_, cell)| cell.to_owned())
}

const HEAD: &str = "
## Without

What becomes of a mode on a kernel that lacks something, or where the operator
has it left out (`--without=WORD`). Each is run with the real program on a kernel
that has the thing, so that it would be seen if rules used it all the same; then
the cases that have to do with it are called. With `TRIPOD_ACCEPTANCE=1` all
cases are called.

- **✓** the mode gets along, and every case holds as above; **✓ 14** but for
  the difference 14.
- **→ userspace** that mode runs instead, with a warning that names what is
  missing and how to get it, in the log, as an Event on the Node and in
  `/statusz`; `tripod_mode_fallback` has the word as its reason.
- **·** the mode does not use it.

";

/// The part of the document, with `cell` for its cells.
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
