//! The table as input for `nft -f`.

use std::fmt::{self, Write};

use net::Family;

use super::{
    applied::Applied,
    diff::{Batch, Change},
    plan::{Options, Sets, features},
};
use crate::{
    modes::{localhost, render::choices::Choices},
    services::{ServiceMap, ServicePort},
};

/// Writes the table of each family, and the listeners on loopback addresses.
///
/// # Errors
/// When `text` cannot be written to.
pub fn render(map: &ServiceMap, choices: &Choices<'_>, text: &mut impl Write) -> fmt::Result {
    for family in Family::ALL {
        let options = Options::new(
            choices.configuration,
            choices.effective,
            family,
            map,
            choices.served,
            choices.counted,
            features(choices.kernel, family),
        );
        write_table(map, &options, text)?;
    }
    localhost::render(map, choices.loopback, text)
}

/// Writes the table of the options' family with all ServicePorts of that family.
fn write_table(map: &ServiceMap, options: &Options, text: &mut impl Write) -> fmt::Result {
    let of_family = map.iter().filter(|port| port.name.family == options.family);
    let mut ports: Vec<_> = of_family.collect();
    let name = |port: &ServicePort| port.name.clone();
    ports.sort_by_key(|port| name(port));
    let applied = Applied::new(options.clone());
    let change = Change::new(
        &applied,
        ports.into_iter().map(|port| (&port.name, Some(port))),
    );
    let sets = Sets::new(options.family);
    let batch = Batch::whole(change, &applied, &sets, None);
    write!(text, "{}", batch.transaction)
}
