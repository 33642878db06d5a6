//! Prints how the kernel differs from the desired state.

use std::process::ExitCode;

use super::{
    UNREACHABLE,
    paint::{Tone, paint},
    status::number,
    table,
};
use crate::{
    cli,
    status_api::{Diff, Difference, Listed},
};

/// Most differences of a family that are printed, unless all are requested.
const MOST: usize = 50;

/// Returns the exit status: 0 if nothing differs; 1 if something does; 2 if a family
/// could not be compared, or if another process serves now and knows the differences.
pub(super) fn status(diff: &Diff) -> ExitCode {
    if diff.families.is_empty() || diff.families.iter().any(|family| family.error.is_some()) {
        return ExitCode::from(UNREACHABLE);
    }
    let mut families = diff.families.iter();
    let differ = diff.node.total > 0 || families.any(|family| family.differences.total > 0);
    cli::exit_status(!differ)
}

/// Returns the lines, for people; all differences in the answer if it is `wide`.
pub(super) fn table(diff: &Diff, wide: bool) -> String {
    let mut text = String::new();
    for family in &diff.families {
        let name = format!("{} mode, {}", diff.mode, family.family);
        text.push_str(&lines(
            &name,
            &family.differences,
            family.error.as_deref(),
            wide,
        ));
    }
    if diff.families.is_empty() {
        let why = "could not be compared: another Tripod process serves now; ask again when this one \
                   has ended";
        text.push_str(&format!("{} mode: {}\n", diff.mode, paint(Tone::Bad, why)));
    }
    text.push_str(&lines("the node", &diff.node, None, wide));
    text
}

fn lines(name: &str, differences: &Listed<Difference>, error: Option<&str>, wide: bool) -> String {
    let heading = match (error, differences.total) {
        (Some(error), _) => paint(Tone::Bad, &format!("could not be compared: {error}")),
        (None, 0) => paint(Tone::Good, "no difference"),
        (None, total) => paint(Tone::Bad, &number(total, "difference")),
    };
    let mut lines = vec![format!("{name}: {heading}")];
    let most = if wide { usize::MAX } else { MOST };
    let rows = table::lines(differences.items.iter().take(most).map(row));
    lines.extend(rows.iter().map(|line| format!("  {line}")));
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
