//! `tripod migrate`: the differences when Tripod replaces kube-proxy.
//!
//! [`origin`] reads kube-proxy's configuration. `settings`, `modes` and `input` list what Tripod
//! does differently with it; [`state`] tells what happens to kube-proxy's rules in the kernel, and
//! [`changes`](changes()) does so line by line; these are pure. [`state::observe`] and
//! [`node_lines`] read the existing objects.

mod changes;
mod input;
mod modes;
pub mod node_lines;
pub mod origin;
mod print;
mod report;
mod saved_servers;
mod settings;
pub mod state;
#[cfg(test)]
mod tests;

use self::report::Rows;
pub use self::{
    changes::{Holdings, ModeChanges, changes},
    origin::Given,
    print::table,
    report::{Chosen, Importance, Report, Row},
};
use crate::config::ModeName;

/// Returns the differences in each mode of Tripod, without duplicates. `chosen` is the mode that
/// this node would get, and `dropping` the chains that drop packets at its hook INPUT, if these are
/// known.
pub fn differences(
    given: &Given,
    chosen: Option<&Chosen>,
    dropping: Option<&[String]>,
) -> Vec<Row> {
    let mut rows = Rows::default();
    for mode in ModeName::ALL {
        rows.mode = mode.to_string();
        modes::chosen(given, mode, chosen, &mut rows);
    }
    for mode in ModeName::ALL {
        rows.mode = mode.to_string();
        settings::rows(given, mode, &mut rows);
        modes::rows(given.kube_proxy_mode(), mode, &mut rows);
        input::rows(given.kube_proxy_mode(), mode, dropping, &mut rows);
    }
    rows.all
}
