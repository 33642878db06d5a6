//! Everything that a mode could change on a node, with the tables of nftables mode.

use std::collections::BTreeMap;

use serde_json::Value;

use super::super::probe::kernel;
use super::super::stale_state::state::State;
use crate::lab::Host;

/// What two nodes that converged have in common.
pub struct Seen {
    state: State,
    /// What the tables of nftables mode have, and how often.
    tables: BTreeMap<String, usize>,
}

impl Seen {
    pub fn of(node: &Host) -> Seen {
        let mut tables = BTreeMap::new();
        let mut rules = BTreeMap::<String, usize>::new();
        for object in ruleset(node, &["tripod"]) {
            let mut object = without(object, &["handle"]);
            // The order of rules counts within their chain.
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

    /// What is different in `other`, a line each.
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

/// Returns what shows whether something was written, even if it is the same as before:
/// objects of nf_tables with their handles, which are those of iptables, too.
pub fn written(node: &Host) -> Vec<String> {
    let all = ruleset(node, &[]).into_iter();
    all.map(|object| without(object, &["packets", "bytes"]).to_string())
        .collect()
}

/// Returns the objects of nf_tables in tables with one of these names; without names
/// in all of them. Elements of sets and maps are sorted.
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

/// Returns a value without what has these names, at any depth.
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
