//! The plan as text: the addresses on which this mode listens, as comments, and the rules and
//! routes that capture packets.

use std::fmt::{self, Write};

use net::Protocol;

use super::{
    capture::{self, Desired, OtherPorts},
    diff,
    plan::{self, GroupPlan, Target},
};
use crate::{modes::render::Choices, services::ServiceMap};

/// The local port of the first listener to which rules redirect, in the text.
const FIRST_PORT: u16 = 32_768;

/// Writes, as comments, the addresses on which this mode listens for Services and the destinations
/// of connections; then the rules and routes that direct packets to them.
///
/// # Errors
/// Only errors of `text`.
pub fn render(map: &ServiceMap, choices: &Choices<'_>, text: &mut impl Write) -> fmt::Result {
    let mut desired = Desired::new();
    let mut local_ports = (FIRST_PORT..=u16::MAX).cycle();
    for port in map.sorted() {
        for group in plan::plan(port, choices.effective.scheduler) {
            let local_port = local_ports.next().unwrap_or(FIRST_PORT);
            for frontend in &group.frontends {
                write!(text, "# listen {frontend} for {}:", port.name)?;
                write_targets(text, &group)?;
                if port.name.protocol != Protocol::Sctp {
                    let target = capture::Target {
                        port: local_port,
                        name: port.name.to_string().into(),
                        other_ports: if map.has_only_relayed() {
                            OtherPorts::PassOn
                        } else {
                            diff::other_ports(&group, frontend)
                        },
                    };
                    desired.insert(*frontend, target);
                }
            }
        }
    }
    writeln!(
        text,
        "# Rules redirect to local ports that the kernel chooses; here they are numbered from \
         {FIRST_PORT}."
    )?;
    capture::render(&desired, choices, text)
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
