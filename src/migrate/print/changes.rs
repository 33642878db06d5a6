//! Prints the changes line by line.

use super::{super::report::Report, field, modes};
use crate::migrate::changes::PlaceChanges;

/// Maximum number of lines of one place that are printed; the rest is counted.
const LINES: usize = 8;

/// Writes the changes in the decisive mode. `wide`: all lines of each mode.
pub(super) fn write(text: &mut String, report: &Report, wide: bool) {
    let Some(changes) = &report.changes else {
        let hint = "\nFor changes line by line, give the cluster's objects with --manifests.\n";
        text.push_str(hint);
        return;
    };
    if let Some(why) = &report.incomplete {
        text.push('\n');
        field(text, "", "incomplete", why);
    }
    let decisive = report.decisive();
    for (mode, heading) in modes(decisive, wide) {
        let mut modes = changes.iter();
        let Some(of_mode) = modes.find(|of| of.mode == mode) else {
            continue;
        };
        text.push_str(&format!("\nWould change {heading}\n\n"));
        if let Some(why) = &of_mode.impossible {
            field(text, "  ", "cannot run", why);
            continue;
        }
        if of_mode.places.is_empty() {
            text.push_str("  nothing: there are no rules, and none are needed\n");
        }
        let lines = if wide { usize::MAX } else { LINES };
        for place in &of_mode.places {
            write_place(text, place, lines);
        }
    }
}

/// Writes one place with `shown` of its lines.
fn write_place(text: &mut String, changes: &PlaceChanges, shown: usize) {
    let PlaceChanges {
        place,
        comes,
        goes,
        stays,
    } = changes;
    let (come, go) = (comes.len(), goes.len());
    text.push_str(&format!(
        "  {place}: {stays} kept, {come} added, {go} removed\n"
    ));
    for (sign, lines) in [('-', goes), ('+', comes)] {
        for line in lines.iter().take(shown) {
            text.push_str(&format!("    {sign} {line}\n"));
        }
        if let more @ 1.. = lines.len().saturating_sub(shown) {
            text.push_str(&format!("    {sign} and {more} more: see --output=wide\n"));
        }
    }
}
