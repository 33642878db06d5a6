//! The rules and routes of capture, as text. Pure.

use std::{
    collections::BTreeSet,
    fmt::{self, Write},
};

use net::Family;

use super::{Desired, Method, Report, choose, local, redirect};
use crate::modes::render::Choices;

/// Writes the rules and routes that direct packets for all `desired` frontends to listeners: the
/// input of the program for each family that is captured by rules, and, as comments, the addresses,
/// routes and routing rules of each family that is captured by routes.
///
/// # Errors
/// Only errors of `text`.
pub fn render(desired: &Desired, choices: &Choices<'_>, text: &mut impl Write) -> fmt::Result {
    for family in Family::ALL {
        let of_family = desired.iter().filter(|(f, _)| f.family == family);
        let desired: Desired = of_family.map(|(f, target)| (*f, target.clone())).collect();
        // Frontends that cannot be captured are left out.
        let report = &mut Report::default();
        match choose::imagined(choices.capture, choices.kernel, family) {
            Method::Redirect => redirect::render(&desired, family, choices, report, text)?,
            Method::Local => {
                let objects: BTreeSet<_> = local::objects(&desired, family, choices, report);
                for object in objects {
                    writeln!(text, "# {object}")?;
                }
            }
        }
    }
    Ok(())
}
