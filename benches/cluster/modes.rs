//! The measured modes, with their flags.

/// The name of a mode in the figures.
pub type ModeName = &'static str;

/// A measured mode.
pub struct Mode {
    pub name: ModeName,
    /// The name in the documents.
    pub title: &'static str,
    pub flags: &'static [&'static str],
    /// The engine that the kubelet would have chosen, for modes that use iptables.
    pub engine: Option<&'static str>,
}

/// Periodic full syncs would be counted among the costs of changes.
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

/// Measured in a guest kernel, because most build machines have no IPVS.
pub const IPVS: ModeName = "ipvs";
