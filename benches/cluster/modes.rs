//! What is measured: modes with their flags.

/// The name of a mode in the figures.
pub type ModeName = &'static str;

/// A mode, as it is measured.
pub struct Mode {
    pub name: ModeName,
    /// What the documents call it.
    pub title: &'static str,
    pub flags: &'static [&'static str],
    /// The engine that the kubelet would have chosen, of modes that use iptables.
    pub engine: Option<&'static str>,
}

/// Full syncs that come with time alone would be among what changes cost.
pub const NO_PERIODIC_SYNC: [&str; 2] = ["--iptables-sync-period=1h", "--ipvs-sync-period=1h"];

pub const MODES: [Mode; 6] = [
    Mode {
        name: "nftables",
        title: "nftables",
        flags: &["--proxy-mode=nftables", "--strict-proxy-mode"],
        engine: None,
    },
    Mode {
        name: "iptables-nft",
        title: "iptables, nft program",
        flags: &["--proxy-mode=iptables", "--strict-proxy-mode"],
        engine: Some("nft"),
    },
    Mode {
        name: "iptables-legacy",
        title: "iptables, legacy program",
        flags: &["--proxy-mode=iptables", "--strict-proxy-mode"],
        engine: Some("legacy"),
    },
    Mode {
        name: "local",
        title: "userspace, local",
        flags: &["--proxy-mode=userspace", "--userspace-capture=local"],
        engine: None,
    },
    Mode {
        name: "redirect",
        title: "userspace, redirect",
        flags: &["--proxy-mode=userspace", "--userspace-capture=redirect"],
        engine: None,
    },
    Mode {
        name: IPVS,
        title: "ipvs (guest)",
        flags: &["--proxy-mode=ipvs", "--strict-proxy-mode"],
        engine: None,
    },
];

/// Measured in a guest kernel, as most machines that build have no IPVS.
pub const IPVS: ModeName = "ipvs";
