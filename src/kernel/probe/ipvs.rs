//! IPVS and what ipvs mode needs beside it.

use super::{Ability, Kernel};

pub(super) fn dummy_link() -> Result<(), String> {
    Err("not tried".to_owned())
}

pub(super) fn ip_set(_kind: &str) -> Result<(), String> {
    Err("not tried".to_owned())
}

pub(super) fn virtual_servers(_schedulers: &[String], kernel: &mut Kernel) {
    kernel.record(Ability::Ipvs, Err("not tried".to_owned()));
}
