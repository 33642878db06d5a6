//! The present or desired state of kube-proxy's and Tripod's objects in a kernel, as lines.

use std::collections::BTreeMap;

use ::nftables as nf_tables;
use net::Family;
use xtables::{
    Engine,
    observed::Interest,
    rule::{BASE_CHAINS, Table},
    words::{Line, Words, target},
};

use crate::modes::{iptables, ipvs, nftables};

/// Lines, grouped by place.
#[derive(Clone, Debug, Default)]
pub struct Holdings {
    places: BTreeMap<String, Vec<Words>>,
    /// Whether the kubelet has its own rules in KUBE-FIREWALL.
    has_kubelets: bool,
}

/// The program that prints lines, or reads them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// `iptables-save` of a family; with the engine, if that is known.
    Iptables(Family, Option<Engine>),
    /// The output of `ipset save`.
    Ipset,
    /// The output of `ipvsadm -Sn`.
    Ipvsadm,
    /// `ip address show kube-ipvs0`.
    Ip,
}

const SETS: &str = "sets";
const SERVERS: &str = "virtual servers";
const LISTENERS: &str = "listeners";

impl Program {
    /// Returns the program that a line of `tripod render` names, with the engine for rules of a
    /// family.
    fn named(line: &str, engine: impl Fn(Family) -> Option<Engine>) -> Option<Program> {
        let of = |family| Program::Iptables(family, engine(family));
        Some(match line {
            "# iptables-restore --noflush" => of(Family::V4),
            "# ip6tables-restore --noflush" => of(Family::V6),
            "# ipset restore" => Program::Ipset,
            "# ipvsadm -R" => Program::Ipvsadm,
            "# ip -batch -" => Program::Ip,
            _ => return None,
        })
    }
}

impl Holdings {
    /// Returns the places that have lines.
    pub(super) fn places(&self) -> impl Iterator<Item = &String> {
        self.places.keys()
    }

    pub(super) fn lines(&self, place: &str) -> &[Words] {
        self.places.get(place).map_or(&[], Vec::as_slice)
    }

    /// Returns whether the kubelet needs the line as well: its chain, or a rule that jumps there.
    pub(super) fn is_kubelets(&self, line: &Words) -> bool {
        let text = line.to_string();
        let mut words = text.split_whitespace();
        self.has_kubelets && words.any(|word| is_joint(word.trim_start_matches(':')))
    }

    fn add(&mut self, place: &str, line: &str) {
        let lines = self.places.entry(place.to_owned()).or_default();
        lines.push(Words::new(line));
    }

    /// Adds a table of nf_tables, which is removed as a whole, or stays.
    pub fn table(&mut self, family: Family, name: &str) {
        let line = format!("table {}", nf_tables::Table::new(family, name));
        self.add(&line, &line);
    }

    /// Adds the output of `program`.
    pub fn saved(&mut self, program: Program, text: &str) {
        let mut table = None;
        for line in text.lines().map(str::trim) {
            self.line(program, &mut table, line);
        }
    }

    /// Adds the output of `tripod render`, or lines that ipvs mode saves. Rules go to the engine of
    /// their family.
    pub fn rendered(&mut self, text: &str, engine: impl Fn(Family) -> Option<Engine>) {
        let (mut program, mut table) = (None, None);
        for line in text.lines().map(str::trim) {
            if let Some(named) = Program::named(line, &engine) {
                program = Some(named);
            } else if let Some(listener) = line.strip_prefix("# listen ") {
                self.add(LISTENERS, listener);
            } else if let Some(place) = nft_table(line) {
                self.add(&place, line);
            } else if let Some(program) = program {
                self.line(program, &mut table, line);
            }
        }
    }

    fn line(&mut self, program: Program, table: &mut Option<Table>, line: &str) {
        match program {
            Program::Iptables(family, engine) => match line.strip_prefix('*') {
                Some(name) => *table = Table::named(name),
                None => {
                    if let Some(table) = *table {
                        self.rule(&of_table(family, table, engine), table, line);
                    }
                }
            },
            Program::Ipset => self.set(line),
            Program::Ipvsadm if line.starts_with('-') => self.add(SERVERS, line),
            Program::Ipvsadm => {}
            Program::Ip => self.address(line),
        }
    }

    /// Adds a chain of ours, a rule of one, or a rule that jumps to one.
    fn rule(&mut self, place: &str, table: Table, line: &str) {
        self.has_kubelets |= iptables::is_kubelets(line);
        let appended = line.strip_prefix("-I ").map(|rule| format!("-A {rule}"));
        match Line::parse(appended.as_deref().unwrap_or(line)) {
            Some(Line::Chain(name)) if is_ours(table, name) => self.add(place, &format!(":{name}")),
            Some(Line::Rule { chain, words }) => {
                let leads = || target(words).is_some_and(|to| is_ours(table, to));
                if is_ours(table, chain) || BASE_CHAINS.contains(&chain) && leads() {
                    self.add(place, &format!("-A {chain} {words}"));
                }
            }
            _ => {}
        }
    }

    /// Adds a set or a member, without storage options of the set.
    fn set(&mut self, line: &str) {
        let mut words = line.split_whitespace();
        match (words.next(), words.next(), words.next()) {
            (Some("create"), Some(set), Some(kind)) => {
                self.add(SETS, &format!("create {set} {kind}"));
            }
            (Some("add"), Some(set), Some(member)) => {
                self.add(SETS, &format!("add {set} {member}"));
            }
            _ => {}
        }
    }

    /// Adds an address of the dummy link, as it is listed or added.
    fn address(&mut self, line: &str) {
        let mut words = line.split_whitespace();
        let address = match (words.next(), words.next(), words.next()) {
            (Some("addr"), Some("add"), Some(address)) => address,
            (Some("inet" | "inet6"), Some(address), _) if !line.contains("scope link") => address,
            _ => return,
        };
        self.add(&format!("link {}", ipvs::plan::LINK), address);
    }
}

fn of_table(family: Family, table: Table, engine: Option<Engine>) -> String {
    let engine = match engine {
        Some(Engine::NfTables) => ", iptables-nft",
        Some(Engine::Legacy) => ", iptables-legacy",
        None => "",
    };
    format!("{family}, table {table}{engine}")
}

/// Finds the table in a line of `nft -f`, if it is ours.
fn nft_table(line: &str) -> Option<String> {
    let mut words = line.split_whitespace().skip(2);
    let family = words.next().filter(|family| ["ip", "ip6"].contains(family));
    let name = words.next().filter(|name| *name == nftables::TABLE);
    Some(format!("table {} {}", family?, name?))
}

fn is_joint(chain: &str) -> bool {
    iptables::interest(Table::Filter, chain) == Interest::Joint
}

fn is_ours(table: Table, chain: &str) -> bool {
    let of_iptables = iptables::interest(table, chain) != Interest::Foreign;
    of_iptables || ipvs::plan::interest(table, chain) != Interest::Foreign
}
