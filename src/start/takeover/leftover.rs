//! What an earlier proxy may have left, and removing it beside the mode that
//! runs.

use std::fmt;

use ipnet::IpNet;

use super::nftables;
use crate::{
    kernel::{
        conntrack::flows,
        netlink::{Protocol, Socket},
        xtables::{Engine, remove::Preserved},
    },
    modes::{SyncError, iptables, ipvs, userspace},
    net::{Family, ModeName},
};

/// Something that an earlier proxy may have left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leftover {
    /// What this mode installs; of the mode that runs, in the other engine.
    Of(ModeName),
    /// The tables of kube-proxy's nftables mode.
    Nftables,
}

impl Leftover {
    pub(super) const ALL: [Leftover; 4] = [
        Leftover::Of(ModeName::Ipvs),
        Leftover::Of(ModeName::Iptables),
        Leftover::Of(ModeName::Userspace),
        Leftover::Nftables,
    ];

    /// Has it take no new connections. Answers how many it still carries that
    /// would break if it went now.
    ///
    /// # Errors
    /// Why that is not known, in words.
    pub(super) async fn retire(
        self,
        running: &Running,
        exclude: &[IpNet],
    ) -> Result<usize, String> {
        let bare = running.without_rules();
        let said = |error: &dyn fmt::Display| error.to_string();
        let left = match self {
            Leftover::Of(ModeName::Ipvs) if !running.is(ModeName::Ipvs) => {
                let open = ipvs::retire(exclude).map_err(|error| said(&error))?;
                return Ok(open as usize);
            }
            Leftover::Of(ModeName::Iptables) if !bare.is_empty() => {
                let left = iptables::retire(&bare).await;
                left.map_err(|error| said(&error))?
            }
            Leftover::Nftables if !bare.is_empty() => {
                nftables::retire(&bare).map_err(|error| said(&error))?
            }
            _ => Vec::new(),
        };
        let mut open = 0;
        for family in left {
            let socket = Socket::open(Protocol::Netfilter);
            let counted = socket.and_then(|mut socket| flows::translated(&mut socket, family));
            open += counted.map_err(|error| said(&error))?;
        }
        Ok(open)
    }

    /// Returns whether the mode's stale state is there, apart from what
    /// `running` uses too. Cheap.
    pub(super) async fn is_there(self, running: &Running) -> bool {
        match self {
            Leftover::Of(mode) => {
                let preserved = running.preserved(mode);
                match mode {
                    ModeName::Ipvs => !running.is(mode) && ipvs::is_there(&preserved).await,
                    ModeName::Iptables => iptables::is_there(&preserved).await,
                    ModeName::Userspace => {
                        let routed = match running.is(mode) {
                            true => running.with_rules(),
                            false => vec![Family::V4, Family::V6],
                        };
                        userspace::is_present(&preserved, &routed).await
                    }
                }
            }
            Leftover::Nftables => nftables::is_there(),
        }
    }

    /// Removes it, but for what `running` uses too.
    ///
    /// # Errors
    /// What could not be removed, in words.
    pub(super) async fn clean(
        self,
        running: Option<&Running>,
        exclude: &[IpNet],
    ) -> Result<(), String> {
        match self {
            Leftover::Of(mode) => {
                let cleaned = clean(mode, running, exclude).await;
                cleaned.map_err(|error| error.to_string())
            }
            Leftover::Nftables => nftables::clean().map_err(|error| error.to_string()),
        }
    }
}

impl fmt::Display for Leftover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Leftover::Of(mode) => write!(f, "{mode} mode"),
            Leftover::Nftables => f.write_str("nftables mode"),
        }
    }
}

/// The mode beside which others' leftovers are removed.
#[derive(Clone, Debug)]
pub(super) struct Running {
    pub(super) mode: ModeName,
    pub(super) engines: Vec<(Family, Engine)>,
}

impl Running {
    fn is(&self, mode: ModeName) -> bool {
        self.mode == mode
    }

    /// Returns the families in which it has no rules: stale state may be the
    /// last there that asks for connection tracking.
    fn without_rules(&self) -> Vec<Family> {
        let without = |family: &Family| !self.has_rules(*family);
        Family::ALL.into_iter().filter(without).collect()
    }

    fn with_rules(&self) -> Vec<Family> {
        let with = |family: &Family| self.has_rules(*family);
        [Family::V4, Family::V6].into_iter().filter(with).collect()
    }

    fn has_rules(&self, family: Family) -> bool {
        self.engines.iter().any(|(of, _)| *of == family)
    }

    /// Returns which of the rules that `mode` installs are its own, too.
    fn preserved(&self, mode: ModeName) -> Preserved {
        let engines = self.engines.clone();
        match (mode, self.mode) {
            (mode, running) if mode == running => Preserved::all(engines),
            (ModeName::Iptables, ModeName::Ipvs) | (ModeName::Ipvs, ModeName::Iptables) => {
                Preserved::chains(engines, &ipvs::SHARED_CHAINS)
            }
            _ => Preserved::nothing(),
        }
    }
}

async fn clean(
    mode: ModeName,
    running: Option<&Running>,
    exclude: &[IpNet],
) -> Result<(), SyncError> {
    let preserved = running.map_or_else(Preserved::nothing, |running| running.preserved(mode));
    let runs = running.is_some_and(|running| running.is(mode));
    let redirected = running.map_or_else(Vec::new, Running::with_rules);
    match mode {
        ModeName::Userspace if runs => {
            Ok(userspace::cleanup_except(&preserved, &redirected).await?)
        }
        ModeName::Userspace => Ok(userspace::cleanup().await?),
        ModeName::Iptables => Ok(iptables::cleanup_except(&preserved).await?),
        ModeName::Ipvs if runs => Ok(ipvs::cleanup_rules(&preserved).await?),
        ModeName::Ipvs => Ok(ipvs::cleanup_except(exclude, &preserved).await?),
    }
}
