//! The faults.

use crate::lab::ProgramFault;

/// A way to run Tripod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Ipvs,
    Nftables,
    Iptables,
    Redirect,
    Local,
}

impl Mode {
    pub const ALL: [Mode; 5] = [
        Mode::Ipvs,
        Mode::Nftables,
        Mode::Iptables,
        Mode::Redirect,
        Mode::Local,
    ];

    pub fn title(self) -> &'static str {
        match self {
            Mode::Ipvs => "ipvs mode",
            Mode::Nftables => "nftables mode",
            Mode::Iptables => "iptables mode",
            Mode::Redirect => "Userspace mode, redirect capture",
            Mode::Local => "Userspace mode, local capture",
        }
    }

    pub fn flags(self) -> &'static [&'static str] {
        match self {
            Mode::Ipvs => &["--proxy-mode=ipvs"],
            Mode::Nftables => &[
                "--proxy-mode=nftables",
                // The Node has no address for a health-check node port.
                "--nodeport-addresses=0.0.0.0/0,::/0",
            ],
            Mode::Iptables => &["--proxy-mode=iptables"],
            Mode::Redirect => &["--proxy-mode=userspace", "--userspace-capture=redirect"],
            Mode::Local => &["--proxy-mode=userspace", "--userspace-capture=local"],
        }
    }
}

/// A fault while Tripod serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The programs that read and write rules.
    Programs(ProgramFault),
    /// Each netlink request: to nf_tables, IPVS, ipset, routing, connection tracking.
    Netlink,
    /// A set is full, and cannot be replaced by a larger one.
    FullSet,
    /// Each answer and each event of the API server takes long.
    ApiSlow,
    /// The API server closes every connection.
    ApiDown,
}

impl Fault {
    pub const ALL: [Fault; 12] = [
        Fault::Programs(ProgramFault::Locked),
        Fault::Programs(ProgramFault::SaveFails),
        Fault::Programs(ProgramFault::RestoreFails),
        Fault::Programs(ProgramFault::Hang),
        Fault::Programs(ProgramFault::Missing),
        Fault::Programs(ProgramFault::NotPermitted),
        Fault::Programs(ProgramFault::Family(0)),
        Fault::Programs(ProgramFault::Family(1)),
        Fault::Netlink,
        Fault::FullSet,
        Fault::ApiSlow,
        Fault::ApiDown,
    ];

    /// Returns the faults that can happen in `mode`.
    pub fn of(mode: Mode) -> impl Iterator<Item = Fault> {
        let can_happen = move |fault: &Fault| match fault {
            Fault::FullSet => mode == Mode::Ipvs,
            // nftables mode runs no programs: a test without them proves it.
            Fault::Programs(fault) => mode != Mode::Nftables || *fault == ProgramFault::Missing,
            _ => true,
        };
        Fault::ALL.into_iter().filter(can_happen)
    }

    pub fn title(self) -> &'static str {
        match self {
            Fault::Programs(ProgramFault::Locked) => "another process holds the xtables lock",
            Fault::Programs(ProgramFault::SaveFails) => "`iptables-save` fails",
            Fault::Programs(ProgramFault::RestoreFails) => "`iptables-restore` fails",
            Fault::Programs(ProgramFault::Hang) => "both programs hang",
            Fault::Programs(ProgramFault::Missing) => "both programs are missing",
            Fault::Programs(ProgramFault::NotPermitted) => {
                "both programs lack NET_ADMIN and NET_RAW (EPERM)"
            }
            Fault::Programs(ProgramFault::Family(0)) => "the programs of IPv4 fail",
            Fault::Programs(ProgramFault::Family(_)) => "the programs of IPv6 fail",
            Fault::Netlink => "the kernel takes no request by netlink (ENOBUFS)",
            Fault::FullSet => "the ipset of IPv4 source ranges is full and cannot grow",
            Fault::ApiSlow => "the API server takes 2 s for each answer and each event",
            Fault::ApiDown => "the API server closes every connection",
        }
    }

    /// Returns the family that it affects, if it is only one: 0 for IPv4, 1 for IPv6.
    pub fn family(self) -> Option<usize> {
        match self {
            Fault::Programs(ProgramFault::Family(family)) => Some(family),
            Fault::FullSet => Some(0),
            _ => None,
        }
    }

    pub fn is_of_api(self) -> bool {
        matches!(self, Fault::ApiSlow | Fault::ApiDown)
    }
}
