//! Prints how the kernel differs from the desired state.

use std::process::ExitCode;

use super::{
    UNREACHABLE,
    paint::{Paint, Tone},
    table,
};
use crate::status_api::{Diff, Difference, FamilyDiff, Listed};

/// Most differences of a family that are printed, unless all are requested.
const MOST: usize = 50;

/// Returns the exit status: 0 if nothing differs; 1 if something does; 2 if a family
/// could not be compared, or if another process serves now and knows the differences.
pub(super) fn status(diff: &Diff) -> ExitCode {
    if diff.families.is_empty() || diff.families.iter().any(|family| family.error.is_some()) {
        return ExitCode::from(UNREACHABLE);
    }
    let mut families = diff.families.iter();
    if diff.node.total == 0 && families.all(|family| family.differences.total == 0) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Returns the lines, for people; all differences in the answer if it is `wide`.
pub(super) fn table(diff: &Diff, wide: bool, paint: Paint) -> String {
    let mut text = String::new();
    for family in &diff.families {
        text.push_str(&section(family, &diff.mode, wide, paint));
    }
    if diff.families.is_empty() {
        let why = "could not be compared: another Tripod process serves now; ask again when this one \
                   has ended";
        let why = paint.paint(Tone::Bad, why);
        text.push_str(&format!("{} mode: {why}\n", diff.mode));
    }
    text.push_str(&lines("the node", &diff.node, None, wide, paint));
    text
}

fn section(of: &FamilyDiff, mode: &str, wide: bool, paint: Paint) -> String {
    let name = format!("{mode} mode, {}", of.family);
    lines(&name, &of.differences, of.error.as_deref(), wide, paint)
}

fn lines(
    name: &str,
    differences: &Listed<Difference>,
    error: Option<&str>,
    wide: bool,
    paint: Paint,
) -> String {
    let heading = match (error, differences.total) {
        (Some(error), _) => {
            let why = format!("could not be compared: {error}");
            paint.paint(Tone::Bad, &why)
        }
        (None, 0) => paint.paint(Tone::Good, "no difference"),
        (None, 1) => paint.paint(Tone::Bad, "1 difference"),
        (None, total) => paint.paint(Tone::Bad, &format!("{total} differences")),
    };
    let mut lines = vec![format!("{name}: {heading}")];
    let most = if wide { usize::MAX } else { MOST };
    let rows: Vec<_> = differences.items.iter().take(most).map(row).collect();
    lines.extend(table::lines(&rows).iter().map(|line| format!("  {line}")));
    let more = differences.total.saturating_sub(rows.len());
    if more > 0 {
        lines.push(format!("  and {more} more"));
    }
    lines.join("\n") + "\n"
}

fn row(difference: &Difference) -> [String; 3] {
    let parts = [&difference.service_port, &difference.protocol];
    let parts: Vec<&str> = parts.into_iter().flatten().map(String::as_str).collect();
    [
        difference.found.clone(),
        difference.object.clone(),
        parts.join(" "),
    ]
}
