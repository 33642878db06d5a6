//! The plan as comments: this mode uses sockets, which no program reads from a file.

use std::fmt::{self, Write};

use super::plan::{self, GroupPlan, Target};
use crate::{modes::render::choices::Choices, services::ServiceMap};

/// Writes, as comments, the addresses at which this mode listens for Services, and where
/// connections go. How packets are captured for the listeners is left out.
///
/// # Errors
/// Only those of `text`.
pub fn render(map: &ServiceMap, choices: &Choices<'_>, text: &mut impl Write) -> fmt::Result {
    for port in map.sorted() {
        for group in plan::plan(port, choices.effective.scheduler) {
            for frontend in &group.frontends {
                write!(text, "# listen {frontend} for {}:", port.name)?;
                write_targets(text, &group)?;
            }
        }
    }
    Ok(())
}

fn write_targets(text: &mut impl Write, group: &GroupPlan) -> fmt::Result {
    if group.has_no_endpoints() {
        return writeln!(text, " refused");
    }
    write_each(text, &group.targets)?;
    if let Some(targets) = &group.cluster_local {
        write!(text, "; from the cluster:")?;
        write_each(text, targets)?;
    }
    writeln!(text)
}

fn write_each(text: &mut impl Write, targets: &[Target]) -> fmt::Result {
    let mut taken = targets.iter().filter(|target| target.weight > 0);
    taken.try_for_each(|target| write!(text, " {}", target.address))
}
