//! Verdicts for people and for machines.

use std::fmt::Write;

use serde_json::{Value, json};

use super::{MissingCapability, Verdict};

/// The heading of unknown capabilities: they are not known to be missing, so there is nothing to
/// install.
const UNKNOWN: &str = "unknown";

/// The output of `tripod probe`.
pub fn table(verdicts: &[Verdict]) -> String {
    let mut text = String::new();
    let chosen = default(verdicts);
    for verdict in verdicts {
        let judgement = if chosen == Some(verdict) {
            "can run, and is the default"
        } else if verdict.can_run() {
            "can run"
        } else if verdict.is_open() {
            "not known whether it can run: try again"
        } else {
            "cannot run"
        };
        let _ = writeln!(text, "{:<10} {judgement}", verdict.mode.to_string());
        section(&mut text, "missing", &verdict.missing);
        // If a mode cannot run, its other missing capabilities do not matter.
        if verdict.missing.is_empty() {
            section(&mut text, UNKNOWN, &verdict.unknown);
            section(&mut text, "lost", &verdict.lost);
        }
    }
    if verdicts.iter().all(|verdict| !verdict.missing.is_empty()) {
        text.push_str("No mode can run here.\n");
    }
    text
}

/// The mode that the default gives: the best mode that can run, if all better ones are known to be
/// unable to.
fn default(verdicts: &[Verdict]) -> Option<&Verdict> {
    let best = verdicts.iter().find(|verdict| verdict.missing.is_empty());
    best.filter(|verdict| verdict.can_run())
}

/// Adds a line or more for each thing; those of the same kind and cause stand
/// together.
fn section(text: &mut String, heading: &str, missing: &[MissingCapability]) {
    let alike =
        |a: &MissingCapability, b: &MissingCapability| a.why == b.why && a.effect == b.effect;
    for group in missing.chunk_by(alike) {
        let Some(MissingCapability { why, effect, .. }) = group.first() else {
            continue;
        };
        let join = |words: fn(&MissingCapability) -> &str, between: &str| {
            let mut words: Vec<&str> = group.iter().map(words).collect();
            words.dedup();
            words.join(between)
        };
        let (whats, remedies) = (join(|l| &l.what, ", "), join(|l| &l.remedy, "; "));
        let _ = writeln!(text, "    {heading}: {whats} ({why})");
        let _ = writeln!(text, "        for:  {effect}");
        if heading != UNKNOWN {
            let _ = writeln!(text, "        get:  {remedies}");
        }
    }
}

/// The output of `tripod probe --output=json`: an object with the mode that the default gives (or
/// null), and for each mode whether it can run (null: not known), the capabilities that it lacks,
/// and those that are unknown.
pub fn json(verdicts: &[Verdict]) -> Value {
    let chosen = default(verdicts);
    let modes: Vec<Value> = verdicts
        .iter()
        .map(|verdict| {
            json!({
                "mode": verdict.mode.to_string(),
                "canRun": (!verdict.is_open()).then(|| verdict.can_run()),
                "missing": verdict.missing,
                "lost": verdict.lost,
                "unknown": verdict.unknown,
            })
        })
        .collect();
    json!({
        "default": chosen.map(|verdict| verdict.mode.to_string()),
        "modes": modes,
    })
}
