//! The table as input for `nft -f`.

use std::fmt::{self, Write};

use super::{
    applied::Applied,
    diff::{Batch, Change},
    plan::{Options, Sets},
};
use crate::services::{ServiceMap, ServicePort};

/// Writes the table of the options' family with all ServicePorts of that family.
///
/// # Errors
/// When `text` takes no more.
pub fn render(map: &ServiceMap, options: &Options, text: &mut impl Write) -> fmt::Result {
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
