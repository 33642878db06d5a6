//! The two ways of capture as one: each family goes its own.

use std::sync::Arc;

use super::{Choice, Desired, Error, Extent, Local, Method, Outcomes, Redirect, Scopes};
use crate::{
    kernel::{
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
    /// An earlier run may have captured the other way; that goes once this
    /// one is in force.
    other_way_cleaned: PerFamily<bool>,
}

impl Capture {
    /// Returns capture by the methods of `choice`, which was made for this `kernel`.
    ///
    /// # Errors
    /// When the sockets or programs for it are not to be had.
    pub fn new(choice: Choice, kernel: &Kernel) -> Result<Self, Error> {
        let redirected = choice.families(Method::Redirect);
        let routed = choice.families(Method::Local);
        Ok(Capture {
            redirect: (!redirected.is_empty())
                .then(|| Redirect::new(&redirected, kernel))
                .transpose()?,
            local: (!routed.is_empty())
                .then(|| Local::new(&routed, kernel))
                .transpose()?,
            choice,
            other_way_cleaned: PerFamily::default(),
        })
    }

    /// On which addresses node ports are to be served; in force with the next
    /// full sync.
    pub fn serve_node_ports(&mut self, served: &Arc<Served>) {
        if let Some(redirect) = &mut self.redirect {
            redirect.serve_node_ports(Arc::clone(served));
        }
    }

    /// Returns the engines that capture by rules uses.
    pub fn engines(&self) -> Vec<(Family, Engine)> {
        self.redirect
            .as_ref()
            .map_or_else(Vec::new, Redirect::engines)
    }

    /// Returns how `family` is captured.
    pub fn method(&self, family: Family) -> Method {
        self.choice.method(family)
    }

    /// Makes the kernel capture what is desired of the families that `scopes` names.
    pub async fn sync(&mut self, desired: &Desired, scopes: &Scopes) -> Outcomes {
        let mut outcomes = match &mut self.local {
            Some(local) => local.sync(desired, scopes),
            None => Outcomes::default(),
        };
        if let Some(redirect) = &mut self.redirect {
            for (family, outcome) in redirect.sync(desired, scopes).await {
                if outcome.is_some() {
                    *outcomes.get_mut(family) = outcome;
                }
            }
        }
        for (family, outcome) in outcomes.iter_mut() {
            let scope = scopes.get(family).as_ref();
            let due = scope.is_some_and(|scope| scope.extent >= Extent::Retry);
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
