//! The names of the modes.

use std::fmt;

/// The modes, by kube-proxy's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ModeName {
    /// Virtual servers in the kernel's IPVS.
    Ipvs,
    /// Maps of nf_tables.
    Nftables,
    /// The KUBE-SVC chains.
    Iptables,
    /// Connections accepted and spliced by Tripod itself.
    Userspace,
}

impl ModeName {
    /// All of them, in the order in which one falls back to the next.
    pub const ALL: [ModeName; 4] = [
        ModeName::Ipvs,
        ModeName::Nftables,
        ModeName::Iptables,
        ModeName::Userspace,
    ];

    /// Returns the mode of that name.
    pub fn named(name: &str) -> Option<ModeName> {
        ModeName::ALL.into_iter().find(|mode| mode.name() == name)
    }

    /// Returns the name.
    pub const fn name(self) -> &'static str {
        match self {
            ModeName::Ipvs => "ipvs",
            ModeName::Nftables => "nftables",
            ModeName::Iptables => "iptables",
            ModeName::Userspace => "userspace",
        }
    }
}

impl fmt::Display for ModeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
