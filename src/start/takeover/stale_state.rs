//! The stale state that an earlier proxy may have left, and its removal while another mode runs.

use std::fmt;

use ipnet::IpNet;

use crate::{
    kernel::{
        conntrack::flows,
        netlink::{Protocol, Socket},
        xtables::{Engine, remove::Preserved},
    },
    modes::{SyncError, iptables, ipvs, nftables, userspace},
    net::{Family, ModeName},
};

/// Stale state that an earlier proxy may have left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StaleState {
    /// What this mode installs; for the mode that runs, only what is in the other engine.
    Of(ModeName),
    /// The tables of kube-proxy's nftables mode.
    Nftables,
}

impl StaleState {
    pub(super) const ALL: [StaleState; 5] = [
        StaleState::Of(ModeName::Ipvs),
        StaleState::Of(ModeName::Nftables),
        StaleState::Of(ModeName::Iptables),
        StaleState::Of(ModeName::Userspace),
        StaleState::Nftables,
    ];

    /// Returns true if a kube-proxy neither takes it over nor removes it.
    pub(super) fn is_only_of_tripod(self) -> bool {
        let modes = [ModeName::Nftables, ModeName::Userspace];
        modes.map(StaleState::Of).contains(&self)
    }

    /// Has it take no new connections. Returns the number of those that still depend on it, which
    /// would break if it were removed now.
    ///
    /// # Errors
    /// When that cannot be done or counted; the error is in words.
    pub(super) async fn retire(
        self,
        running: &Running,
        exclude: &[IpNet],
    ) -> Result<usize, String> {
        let bare = running.without_rules();
        let words = |error: &dyn fmt::Display| error.to_string();
        let mut open = 0;
        let families = match self {
            StaleState::Of(ModeName::Ipvs) if !running.is(ModeName::Ipvs) => {
                let preceded = running.with_local_capture();
                let open = ipvs::retire(exclude, &preceded).map_err(|error| words(&error))?;
                return Ok(open as usize);
            }
            StaleState::Of(ModeName::Iptables) if !bare.is_empty() => {
                let retired = iptables::retire(&bare).await;
                retired.map_err(|error| words(&error))?
            }
            StaleState::Of(ModeName::Nftables)
                if !running.is(ModeName::Nftables) && !bare.is_empty() =>
            {
                nftables::retire(nftables::TABLE, &bare).map_err(|error| words(&error))?
            }
            StaleState::Of(ModeName::Userspace) => {
                let routed = running.without_local_capture();
                let retired = userspace::retire(&routed, &bare).await;
                let (routed, redirected) = retired.map_err(|error| words(&error))?;
                open = routed;
                redirected
            }
            StaleState::Nftables if !bare.is_empty() => {
                nftables::retire(nftables::KUBE_PROXY, &bare).map_err(|error| words(&error))?
            }
            _ => Vec::new(),
        };
        for family in families {
            let socket = Socket::open(Protocol::Netfilter);
            let counted = socket.and_then(|mut socket| flows::translated(&mut socket, family));
            open += counted.map_err(|error| words(&error))?;
        }
        Ok(open)
    }

    /// Returns true if the mode's stale state is there, apart from what `running` uses too, or if
    /// that is not known. Cheap.
    pub(super) async fn may_be_there(self, running: &Running) -> bool {
        let mode = match self {
            StaleState::Of(mode @ (ModeName::Ipvs | ModeName::Nftables)) if running.is(mode) => {
                return false;
            }
            StaleState::Of(mode) => mode,
            StaleState::Nftables => return nftables::may_be_there(nftables::KUBE_PROXY),
        };
        let preserved = running.preserved(mode);
        let found: Result<bool, SyncError> = match mode {
            ModeName::Ipvs => ipvs::is_there(&preserved).await.map_err(Into::into),
            ModeName::Nftables => Ok(nftables::may_be_there(nftables::TABLE)),
            ModeName::Iptables => iptables::is_there(&preserved).await.map_err(Into::into),
            ModeName::Userspace => {
                let routed = if running.is(mode) {
                    running.with_rules()
                } else {
                    Family::ALL.to_vec()
                };
                let found = userspace::is_there(&preserved, &routed).await;
                found.map_err(Into::into)
            }
        };
        found.unwrap_or_else(|error| {
            tracing::debug!("it is not known whether something of {self} is there: {error}");
            true
        })
    }

    /// Removes it, except what `running` uses too.
    ///
    /// # Errors
    /// When something could not be removed; the error is in words.
    pub(super) async fn cleanup(
        self,
        running: Option<&Running>,
        exclude: &[IpNet],
    ) -> Result<(), String> {
        match self {
            StaleState::Of(mode) => {
                let cleaned = cleanup(mode, running, exclude).await;
                cleaned.map_err(|error| error.to_string())
            }
            StaleState::Nftables => {
                nftables::cleanup(nftables::KUBE_PROXY).map_err(|error| error.to_string())
            }
        }
    }
}

impl fmt::Display for StaleState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StaleState::Of(mode) => write!(f, "{mode} mode"),
            StaleState::Nftables => f.write_str("kube-proxy's nftables mode"),
        }
    }
}

/// The mode that runs while the stale state of others is removed.
#[derive(Clone, Debug)]
pub(super) struct Running {
    pub(super) mode: ModeName,
    pub(super) engines: Vec<(Family, Engine)>,
}

impl Running {
    fn is(&self, mode: ModeName) -> bool {
        self.mode == mode
    }

    /// Returns the families in which it has no rules: stale state may have the last rules there
    /// that need connection tracking.
    fn without_rules(&self) -> Vec<Family> {
        let without = |family: &Family| !self.has_rules(*family);
        Family::ALL.into_iter().filter(without).collect()
    }

    fn with_rules(&self) -> Vec<Family> {
        let with = |family: &Family| self.has_rules(*family);
        Family::ALL.into_iter().filter(with).collect()
    }

    /// Returns the families in which it neither captures by routes, as userspace mode does
    /// where it has no rules, nor has service addresses at this node, as ipvs mode does.
    /// There open connections of a process that captured by routes can be kept.
    pub(super) fn without_local_capture(&self) -> Vec<Family> {
        match self.mode {
            ModeName::Ipvs => Vec::new(),
            ModeName::Userspace => self.with_rules(),
            ModeName::Iptables | ModeName::Nftables => Family::ALL.to_vec(),
        }
    }

    /// Returns the families in which userspace mode captures by routes.
    fn with_local_capture(&self) -> Vec<Family> {
        match self.mode {
            ModeName::Userspace => self.without_rules(),
            _ => Vec::new(),
        }
    }

    fn has_rules(&self, family: Family) -> bool {
        self.engines.iter().any(|(of, _)| *of == family)
    }

    /// Returns which of the rules that `mode` installs belong to the running mode, too.
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

/// Returns whether there may be rules, of any mode or of a trace, that only programs can remove.
/// Lists chains by netlink alone.
pub(in crate::start) fn rules_of_programs_may_be_there() -> bool {
    let mut families = Family::ALL.into_iter();
    iptables::rules_may_be_there()
        || ipvs::rules_may_be_there()
        || userspace::rules_may_be_there()
        // A trace marks packets in this table.
        || families.any(|family| Engine::Legacy.has_table(family, "raw"))
}

async fn cleanup(
    mode: ModeName,
    running: Option<&Running>,
    exclude: &[IpNet],
) -> Result<(), SyncError> {
    let preserved = running.map_or_else(Preserved::nothing, |running| running.preserved(mode));
    let runs = running.is_some_and(|running| running.is(mode));
    let redirected = running.map_or_else(Vec::new, Running::with_rules);
    match mode {
        ModeName::Nftables if runs => Ok(()),
        ModeName::Nftables => {
            Ok(nftables::cleanup(nftables::TABLE).map_err(nftables::Error::from)?)
        }
        ModeName::Userspace if runs => {
            Ok(userspace::cleanup_except(&preserved, &redirected).await?)
        }
        ModeName::Userspace => Ok(userspace::cleanup().await?),
        ModeName::Iptables => Ok(iptables::cleanup_except(&preserved).await?),
        ModeName::Ipvs if runs => Ok(ipvs::cleanup_rules(&preserved).await?),
        ModeName::Ipvs => Ok(ipvs::cleanup_except(exclude, &preserved).await?),
    }
}
