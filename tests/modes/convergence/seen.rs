//! Everything that a mode could change on a node, including the tables of nftables mode, and
//! signs of whether it wrote something.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use serde_json::Value;

use super::super::probe::kernel;
use super::super::stale_state::state::State;
use crate::lab::Host;

/// The state that two nodes have in common when they have converged.
pub struct Seen {
    state: State,
    /// The objects in the tables of nftables mode, and how often each occurs.
    tables: BTreeMap<String, usize>,
}

impl Seen {
    pub fn of(node: &Host) -> Seen {
        let mut tables = BTreeMap::new();
        let mut rules = BTreeMap::<String, usize>::new();
        for object in ruleset(node, &["tripod"]) {
            let mut object = without(object, &["handle"]);
            // The order of rules matters within their chain.
            if let Some(rule) = object.get_mut("rule") {
                let chain = format!("{} {}", rule["family"], rule["chain"]);
                let at = rules.entry(chain).or_default();
                *at += 1;
                rule["at"] = (*at).into();
            }
            *tables.entry(object.to_string()).or_default() += 1;
        }
        Seen {
            state: State::of(node),
            tables,
        }
    }

    /// Lists the differences from `other`, one per line.
    pub fn differences(&self, other: &Seen) -> Vec<String> {
        let mut found = self.state.differences(&other.state);
        for (sign, one, another) in [("missing", self, other), ("more", other, self)] {
            for (object, count) in &one.tables {
                if another.tables.get(object).is_none_or(|there| there < count) {
                    found.push(format!("{sign}: nft {object}"));
                }
            }
        }
        found
    }
}

/// Signs that something was written, even if it is the same as before: objects of nf_tables with
/// their handles, which those of iptables have as well; and, since the legacy tables have no such
/// sign, each run of a program by [`RecordedRestores`]. Netlink messages of ipvs mode are not
/// visible: virtual servers, sets and addresses have no handle; the simulation (`src/simulation/`)
/// sees the messages.
pub fn written(node: &Host) -> Vec<String> {
    let all = ruleset(node, &[]).into_iter();
    let objects = all.map(|object| without(object, &["packets", "bytes"]).to_string());
    let runs = fs::read_to_string(RecordedRestores::RUNS).unwrap_or_default();
    objects.chain(runs.lines().map(str::to_owned)).collect()
}

/// Programs that write rules, each called by a script that records the run, except runs
/// that only test what the kernel can do, which Tripod makes without the lock.
pub struct RecordedRestores;

impl RecordedRestores {
    const FOLDER: &str = "/run/recorded";
    const RUNS: &str = "/run/recorded/runs";

    pub fn new() -> RecordedRestores {
        fs::create_dir_all(Self::FOLDER).expect("a folder");
        for family in ["iptables", "ip6tables"] {
            for variant in ["", "-legacy", "-nft"] {
                RecordedRestores::write(&format!("{family}{variant}-restore"));
            }
        }
        RecordedRestores
    }

    fn write(program: &str) {
        let path = std::env::var("PATH").unwrap_or_default();
        let found = path.split(':').map(|folder| format!("{folder}/{program}"));
        let Some(found) = found
            .into_iter()
            .find(|path| fs::exists(path).is_ok_and(|is| is))
        else {
            return;
        };
        let script = format!(
            "#!/bin/sh\n\
             case \"$XTABLES_LOCKFILE $*\" in\n\
             ' '*--noflush*) echo \"$$ {program} $*\" >>{} ;;\n\
             esac\n\
             exec {found} \"$@\"\n",
            Self::RUNS
        );
        let path = format!("{}/{program}", Self::FOLDER);
        fs::write(&path, script).expect("a script");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its mode");
    }

    /// Makes `command` find these programs before the others.
    pub fn come_first(&self, command: &mut Command) {
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", Self::FOLDER));
    }
}

/// Lists the objects of nf_tables in tables with one of these names; without names, in all tables.
/// Elements of sets and maps are sorted.
fn ruleset(node: &Host, names: &[&str]) -> Vec<Value> {
    if kernel() == "full" {
        return Vec::new();
    }
    let text = node.show("nft -j list ruleset");
    let mut all: Value = serde_json::from_str(&text).expect("JSON of nft");
    let objects = all["nftables"].as_array_mut().expect("a list");
    let mut found = Vec::new();
    for mut object in objects.drain(..) {
        let (_, inner) = object
            .as_object_mut()
            .and_then(|object| object.iter_mut().next())
            .expect("an object");
        let table = inner.get("table").or(inner.get("name"));
        let table = table.and_then(Value::as_str).unwrap_or_default();
        if table.is_empty() || !names.is_empty() && !names.contains(&table) {
            continue;
        }
        if let Some(elements) = inner.get_mut("elem").and_then(Value::as_array_mut) {
            elements.sort_by_key(Value::to_string);
        }
        found.push(object);
    }
    found
}

/// The value without the fields of these names, at any depth.
fn without(value: Value, names: &[&str]) -> Value {
    match value {
        Value::Object(fields) => fields
            .into_iter()
            .filter(|(name, _)| !names.contains(&&**name))
            .map(|(name, value)| (name, without(value, names)))
            .collect(),
        Value::Array(items) => items.into_iter().map(|v| without(v, names)).collect(),
        other => other,
    }
}
