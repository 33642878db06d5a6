//! The objects that a mode would put into the kernel, as text: `tripod render`.

pub(super) mod choices;

use std::{fmt, sync::Arc};

pub use self::choices::Choices;
use super::{iptables, ipvs, nftables, userspace};
use crate::{
    config::ModeName,
    services::{Relayed, ServiceMap},
};

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
    let choosing = map.iter().filter(|port| port.is_relayed());
    let relayed: Relayed = Arc::new(choosing.map(|port| port.name.clone()).collect());
    // IPVS has them too, behind capture.
    let others = &map.without(&relayed);
    match mode {
        ModeName::Iptables => iptables::render::render(others, choices, &mut text)?,
        ModeName::Ipvs => ipvs::render::render(map, choices, &mut text)?,
        ModeName::Nftables => nftables::render::render(others, choices, &mut text)?,
        ModeName::Userspace => userspace::render::render(map, choices, &mut text)?,
    }
    if mode != ModeName::Userspace && !relayed.is_empty() {
        let capture = userspace::capture::next_to(mode);
        let choices = &Choices {
            capture,
            ..*choices
        };
        userspace::render::render(&map.only(&relayed), choices, &mut text)?;
    }
    Ok(text)
}
