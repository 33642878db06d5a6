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

/// How much is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Detail {
    /// The first differences of each family.
    First,
    /// All differences in the answer.
    All,
}

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

/// Returns the lines, for people.
pub(super) fn table(diff: &Diff, detail: Detail, paint: Paint) -> String {
    let mut text = String::new();
    for family in &diff.families {
        text.push_str(&section(family, &diff.mode, detail, paint));
    }
    if diff.families.is_empty() {
        let why = "could not be compared: another Tripod process serves now; ask again when this one \
                   has ended";
        let why = paint.paint(Tone::Bad, why);
        text.push_str(&format!("{} mode: {why}\n", diff.mode));
    }
    text.push_str(&lines("the node", &diff.node, None, detail, paint));
    text
}

fn section(of: &FamilyDiff, mode: &str, detail: Detail, paint: Paint) -> String {
    let name = format!("{mode} mode, {}", of.family);
    lines(&name, &of.differences, of.error.as_deref(), detail, paint)
}

fn lines(
    name: &str,
    differences: &Listed<Difference>,
    error: Option<&str>,
    detail: Detail,
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
    let shown = match detail {
        Detail::First => MOST.min(differences.items.len()),
        Detail::All => differences.items.len(),
    };
    let rows: Vec<_> = differences.items[..shown].iter().map(row).collect();
    lines.extend(table::lines(&rows).iter().map(|line| format!("  {line}")));
    if differences.total > shown {
        let more = differences.total - shown;
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
