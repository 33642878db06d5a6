//! The objects that a mode would put into the kernel, as text: `tripod render`.

pub(super) mod choices;

use std::fmt;

pub use self::choices::Choices;
use super::{iptables, ipvs, nftables, userspace};
use crate::{config::ModeName, services::ServiceMap};

/// Renders the objects that `mode` would put into the kernel, each program's input after a line
/// that names the program.
///
/// # Errors
/// When the text could not be written.
pub fn render(
    mode: ModeName,
    map: &ServiceMap,
    choices: &Choices<'_>,
) -> Result<String, fmt::Error> {
    let mut text = String::new();
    match mode {
        ModeName::Iptables => iptables::render::render(map, choices, &mut text)?,
        ModeName::Ipvs => ipvs::render::render(map, choices, &mut text)?,
        ModeName::Nftables => nftables::render::render(map, choices, &mut text)?,
        ModeName::Userspace => userspace::render::render(map, choices, &mut text)?,
    }
    Ok(text)
}
