//! Choosing a mode: the one asked for, or the next that can run here.

use super::ModeName;

/// Something that a mode needs and that is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// What it is.
    pub what: String,
    /// How to get it.
    pub remedy: String,
}

/// What `mode` misses here; empty if it can run.
pub fn probe(mode: ModeName) -> Vec<Missing> {
    match mode {
        ModeName::Ipvs | ModeName::Iptables => vec![Missing {
            what: format!("{mode} mode is not part of this version of Tripod"),
            remedy: "use --proxy-mode=userspace, or a later version".to_owned(),
        }],
        ModeName::Userspace => Vec::new(),
    }
}

/// The mode to run, and for each better one that was passed over what it misses.
pub fn choose(wanted: ModeName) -> (ModeName, Vec<(ModeName, Vec<Missing>)>) {
    let mut passed_over = Vec::new();
    let order = [ModeName::Ipvs, ModeName::Iptables, ModeName::Userspace];
    for mode in order.into_iter().skip_while(|mode| *mode != wanted) {
        let missing = probe(mode);
        if missing.is_empty() {
            return (mode, passed_over);
        }
        passed_over.push((mode, missing));
    }
    (ModeName::Userspace, passed_over)
}
