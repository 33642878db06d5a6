//! Verdicts for people and for machines.

use std::fmt::Write;

use serde_json::{Value, json};

use super::{Lack, Verdict};

/// What `tripod probe` prints.
pub fn table(verdicts: &[Verdict]) -> String {
    let mut text = String::new();
    let chosen = verdicts.iter().find(|verdict| verdict.can_run());
    for verdict in verdicts {
        let judgement = match verdict.can_run() {
            true if chosen == Some(verdict) => "can run, and is what the default gives",
            true => "can run",
            false => "cannot run",
        };
        let _ = writeln!(text, "{:<10} {judgement}", verdict.mode.to_string());
        lacks(&mut text, "missing", &verdict.missing);
        // What a mode that cannot run would miss besides helps nobody.
        if verdict.can_run() {
            lacks(&mut text, "lost", &verdict.lost);
        }
    }
    if chosen.is_none() {
        text.push_str("No mode can run here.\n");
    }
    text
}

/// Those of the same kind and cause stand together.
fn lacks(text: &mut String, heading: &str, lacks: &[Lack]) {
    let alike = |a: &Lack, b: &Lack| a.why == b.why && a.effect == b.effect;
    for group in lacks.chunk_by(alike) {
        let Some(Lack { why, effect, .. }) = group.first() else {
            continue;
        };
        let join = |words: fn(&Lack) -> &str, between: &str| {
            let mut words: Vec<&str> = group.iter().map(words).collect();
            words.dedup();
            words.join(between)
        };
        let (whats, remedies) = (join(|l| &l.what, ", "), join(|l| &l.remedy, "; "));
        let _ = writeln!(text, "    {heading}: {whats} ({why})");
        let _ = writeln!(text, "        for:  {effect}");
        let _ = writeln!(text, "        get:  {remedies}");
    }
}

/// What `tripod probe --output=json` prints: an object with the mode that the
/// default gives (or null), and for each mode whether it can run and what it
/// lacks.
pub fn json(verdicts: &[Verdict]) -> Value {
    let chosen = verdicts.iter().find(|verdict| verdict.can_run());
    let modes: Vec<Value> = verdicts
        .iter()
        .map(|verdict| {
            json!({
                "mode": verdict.mode.to_string(),
                "canRun": verdict.can_run(),
                "missing": verdict.missing,
                "lost": verdict.lost,
            })
        })
        .collect();
    json!({
        "default": chosen.map(|verdict| verdict.mode.to_string()),
        "modes": modes,
    })
}
