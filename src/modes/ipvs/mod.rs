//! ipvs mode: virtual servers in the kernel's IPVS.

pub mod plan;
pub mod render;
mod ruleset;
mod wanted;
