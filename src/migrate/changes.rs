//! Changes in the kernel when a mode starts: lines that are added, removed and kept, in the format
//! of the programs that save rules and sets. Pure.
//!
//! The order of lines within a chain is ignored.

mod holdings;
#[cfg(test)]
mod tests;

use serde::Serialize;
use xtables::{multiset::Multiset, words::Words};

pub use self::holdings::{Holdings, Program};

/// The changes in one table, or in another place that has its own lines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlaceChanges {
    /// Name of the place, such as `IPv4, table nat`.
    pub place: String,
    /// Lines that are added.
    pub comes: Vec<String>,
    /// Lines that are removed. Those that open connections need are removed when these have ended,
    /// or after 15 minutes.
    pub goes: Vec<String>,
    /// Number of lines that exist and are kept.
    pub stays: usize,
}

/// The changes if one mode of Tripod starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ModeChanges {
    /// The name of the mode, as `--proxy-mode` takes it.
    pub mode: String,
    /// Why it cannot run here, or why this is not known; `None` if it can run.
    pub impossible: Option<String>,
    /// The changes by place; places without changes are left out.
    pub places: Vec<PlaceChanges>,
}

/// Compares the lines in `there` with those in `desired`, by place.
pub fn changes(there: &Holdings, desired: &Holdings) -> Vec<PlaceChanges> {
    let mut places: Vec<&String> = there.places().chain(desired.places()).collect();
    places.sort_unstable();
    places.dedup();
    let changes = places.into_iter().map(|place| {
        let lines = there.lines(place);
        let mut left: Multiset<&Words> = lines.iter().collect();
        let (mut comes, mut stays) = (Vec::new(), 0);
        for line in desired.lines(place) {
            if left.take(line) {
                stays += 1;
            } else {
                comes.push(line.to_string());
            }
        }
        let mut goes = Vec::new();
        for line in lines {
            if !left.take(line) {
                continue;
            }
            if there.is_kubelets(line) {
                stays += 1;
            } else {
                goes.push(line.to_string());
            }
        }
        PlaceChanges {
            place: place.clone(),
            comes,
            goes,
            stays,
        }
    });
    changes
        .filter(|of| of.stays > 0 || !of.comes.is_empty() || !of.goes.is_empty())
        .collect()
}
