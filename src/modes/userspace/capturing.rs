//! The two ways of capture as one: each family goes its own.

use std::net::IpAddr;

use super::{
    capture::{Choice, Error, Local, Method, NodePortAddresses, Outcomes, Redirect, Scopes, Want},
    transparent,
};
use crate::{
    kernel::{
        addresses, netlink,
        probe::Kernel,
        xtables::{Engine, remove::Preserved},
    },
    net::{Family, PerFamily},
    node::Served,
};

/// Brings packets for service addresses to our listeners.
pub struct Capture {
    choice: Choice,
    redirect: Option<Redirect>,
    local: Option<Local>,
    route: netlink::Socket,
    /// An earlier run may have captured the other way; that goes once this
    /// one is in force.
    other_way_cleaned: PerFamily<bool>,
}

impl Capture {
    /// Capture by the methods of `choice`, which was made for this `kernel`.
    ///
    /// # Errors
    /// When the kernel's doors for it cannot be opened.
    pub fn new(choice: Choice, kernel: &Kernel) -> Result<Self, Error> {
        let redirected = choice.families(Method::Redirect);
        let routed = choice.families(Method::Local);
        Ok(Capture {
            redirect: match redirected.is_empty() {
                true => None,
                false => Some(Redirect::new(&redirected, kernel, NodePortAddresses::All)?),
            },
            local: match routed.is_empty() {
                true => None,
                false => Some(Local::new(&routed, kernel)?),
            },
            route: netlink::Socket::open(netlink::Protocol::Route)?,
            choice,
            other_way_cleaned: PerFamily::default(),
        })
    }

    /// On which addresses node ports are to be served; in force with the next
    /// full sync.
    pub fn serve_node_ports(&mut self, served: &Served) {
        if let Some(redirect) = &mut self.redirect {
            redirect.serve_node_ports(match served {
                Served::All => NodePortAddresses::All,
                Served::Within(networks) => NodePortAddresses::Within(networks.clone()),
            });
        }
    }

    /// The engines that capture by rules uses.
    pub fn engines(&self) -> Vec<(Family, Engine)> {
        self.redirect
            .as_ref()
            .map_or_else(Vec::new, Redirect::engines)
    }

    /// How `family` is captured.
    pub fn method(&self, family: Family) -> Method {
        self.choice.method(family)
    }

    /// The node's own addresses on which node ports can be served. Not those
    /// of one link only (RFC 4291 section 2.5.6), which mean nothing without it.
    ///
    /// # Errors
    /// When the kernel cannot list them.
    pub fn node_addresses(&mut self) -> Result<Vec<IpAddr>, Error> {
        let mut all: Vec<IpAddr> = addresses::list(&mut self.route)?
            .into_iter()
            .map(|a| a.address)
            .filter(|ip| !matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local()))
            .collect();
        all.sort_unstable();
        all.dedup();
        Ok(all)
    }

    /// Makes the kernel capture what is wanted of the families that `scopes` names.
    pub async fn sync(&mut self, want: &Want, scopes: &Scopes) -> Outcomes {
        let mut outcomes = match &mut self.local {
            Some(local) => local.sync(want, scopes),
            None => Outcomes::default(),
        };
        if let Some(redirect) = &mut self.redirect {
            for (family, outcome) in redirect.sync(want, scopes).await {
                if outcome.is_some() {
                    *outcomes.get_mut(family) = outcome;
                }
            }
        }
        for (family, outcome) in outcomes.iter_mut() {
            let due = scopes
                .get(family)
                .as_ref()
                .is_some_and(|s| s.full || s.retry);
            if let Some(Ok(report)) = outcome
                && due
                && !*self.other_way_cleaned.get(family)
            {
                match cleanup_other_way(family, self.choice.method(family)).await {
                    Ok(()) => *self.other_way_cleaned.get_mut(family) = true,
                    Err(error) => report.unfinished.push(format!(
                        "what another way of capture had installed is not removed: {error}"
                    )),
                }
            }
        }
        outcomes
    }
}

/// Removes what captures `family` in another way than `method`.
async fn cleanup_other_way(family: Family, method: Method) -> Result<(), Error> {
    match method {
        Method::Local => Redirect::cleanup(&[family], &Preserved::nothing()).await,
        Method::Redirect => Local::cleanup(&[family]),
    }
}

/// Removes what capture of any kind ever installed on this node.
///
/// # Errors
/// With the first thing that could not be removed; the others are removed all
/// the same.
pub async fn cleanup() -> Result<(), Error> {
    let both = [Family::V4, Family::V6];
    let redirect = cleanup_rules(&Preserved::nothing()).await;
    let local = Local::cleanup(&both);
    redirect.and(local).and(transparent::cleanup().await)
}

/// Removes what captures in other ways than this mode, which runs: rules in
/// engines other than what is `preserved`, and routes of the families that it has
/// rules for.
///
/// # Errors
/// With the first thing that could not be removed; the others are removed all
/// the same.
pub async fn cleanup_except(preserved: &Preserved, redirected: &[Family]) -> Result<(), Error> {
    let rules = cleanup_rules(preserved).await;
    rules.and(Local::cleanup(redirected))
}

async fn cleanup_rules(preserved: &Preserved) -> Result<(), Error> {
    Redirect::cleanup(&[Family::V4, Family::V6], preserved).await
}

/// Whether anything captures in these families, other than rules that are
/// `preserved`; `routed`: where routes are looked at.
pub async fn is_there(preserved: &Preserved, routed: &[Family]) -> bool {
    for family in [Family::V4, Family::V6] {
        if Redirect::is_there(family, preserved).await {
            return true;
        }
    }
    Local::is_there(routed)
}
