//! What a kernel's lack of features costs.

use crate::kernel::xtables::features::Features;

/// Something that works less well without a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// What is missing, as iptables names it: `-m recent`.
    pub what: &'static str,
    /// What follows from that, for people.
    pub effect: &'static str,
}

/// Something without which the mode cannot run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Impossible {
    /// What is missing, as iptables names it: `-j DNAT`.
    pub what: &'static str,
    /// What it is needed for and which kernel module has it.
    pub remedy: &'static str,
}

/// What is lost with these features, each thing once.
pub fn lost(_features: &Features) -> Vec<Loss> {
    Vec::new()
}

/// What keeps the mode from running at all.
pub fn impossible(_features: &Features) -> Vec<Impossible> {
    Vec::new()
}
