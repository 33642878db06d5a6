//! The whole plan as text that iptables-restore reads.

use std::fmt::{self, Write};

use net::Family;
use xtables::{observed::Observed, transaction::Transaction};

use super::{
    applied::Size,
    diff::Full,
    observe::interest,
    plan::{self, Options},
};
use crate::{modes::render::choices::Choices, services::ServiceMap};

/// Writes one input for each family's program, each after a line that names the program, and lines
/// for the objects that must exist before.
///
/// # Errors
/// Only those of `out`.
pub fn render(map: &ServiceMap, choices: &Choices<'_>, out: &mut impl Write) -> fmt::Result {
    for family in Family::ALL {
        let options = Options::new(
            choices.configuration,
            choices.effective,
            family,
            map.this_node(),
            choices.served,
            choices.kernel.features(family),
        );
        let options = options.of_size(Size::of(map, family), choices.dispatch, None);
        let program = xtables::program_prefix(family);
        writeln!(out, "# {program}-restore --noflush")?;
        for account in plan::accounts(&options) {
            writeln!(out, "# needs: nfacct add {account}")?;
        }
        write_rules(map, &options, out)?;
    }
    Ok(())
}

/// Writes the transactions of a sync of a kernel without rules, as one.
pub(super) fn write_rules(
    map: &ServiceMap,
    options: &Options,
    out: &mut impl Write,
) -> fmt::Result {
    let nothing = Observed::new(interest);
    let fixed = plan::fixed(options);
    let groups = Full::new(map, nothing, &fixed, options.clone(), usize::MAX).steps();
    let family = options.family;
    write!(out, "{}", Transaction { family, groups })
}
