//! Capture by nat rules: [`plan`] has the picture. Everything is in one chain
//! of Tripod's own name in table nat, and one in table filter.
//!
//! Verified with namespaces on Linux 6.18, both families, from a pod's
//! namespace and from the node itself:
//! - a packet that our nat rules led to a listener has `--ctstate DNAT` in
//!   filter INPUT, TCP and UDP alike; one that called the listener's port
//!   directly has not, and is refused at once;
//! - REDIRECT drops what comes in through an interface without an address;
//! - a UDP listener on the wildcard address must answer from the address that
//!   the datagram came to (`IP_PKTINFO`): left to itself the kernel chooses
//!   another one, conntrack does not know the answer, and the client waits;
//! - a UDP client that keeps its socket is led where connection tracking led
//!   it first, whatever the rules say by now ([`stale`] helps);
//! - a node's own program needs some route to the service address, be it the
//!   default route: the kernel looks for one before nat. kube-proxy's modes
//!   need the same.

mod applied;
mod plan;
mod stale;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeSet,
    hash::{DefaultHasher, Hash, Hasher},
    net::IpAddr,
    sync::Arc,
};

use self::{
    applied::Applied,
    plan::{Environment, Features, Jumps},
    stale::Stale,
};
use super::{Desired, Error, Extent, Frontend, Outcomes, Report, Scopes, choose::redirecting};
use crate::{
    kernel::{
        addresses,
        netlink::{Protocol, Socket},
        probe::Kernel,
        xtables::{
            Engine, Xtables,
            remove::{Owned, Preserved},
            rule::Table,
        },
    },
    log_once::LogOnce,
    net::Family,
    node::Served,
};

/// The chains of this capture. What leads to the listeners goes before what guards
/// them.
const OWNED: Owned = Owned {
    tables: &[Table::Nat, Table::Filter],
    is_ours: |_, chain| chain == plan::CHAIN,
    shared: None,
};

/// Captures by nat rules. Owns its chains and the jumps to them.
pub struct Redirect {
    families: Vec<FamilyState>,
    node_ports: Arc<Served>,
    logged: LogOnce,
}

/// What one family has in the kernel.
struct FamilyState {
    family: Family,
    xtables: Xtables,
    engine: Engine,
    features: Features,
    /// What is in force.
    applied: Applied,
    /// That of the last full sync; `None`: the next sync must be full.
    environment: Option<Environment>,
    /// Where nat rules led at the last full sync.
    destination: Option<IpAddr>,
    settled: Option<Settled>,
    stale: Stale,
}

/// What was desired and what the kernel then had, as hashes: while neither
/// differs, a full sync has nothing to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Settled {
    batch: u64,
    kernel: u64,
}

impl Redirect {
    /// Returns capture of these families of `kernel`. Node ports answer on all of the
    /// node's addresses.
    ///
    /// # Errors
    /// When nat does not work in one of them: see [`super::choose()`].
    pub fn new(families: &[Family], kernel: &Kernel) -> Result<Redirect, Error> {
        let mut states = Vec::new();
        for family in families {
            let tools = redirecting(kernel, *family)?;
            states.push(FamilyState {
                family: *family,
                engine: tools.engine,
                features: tools.features.into(),
                xtables: tools.xtables,
                applied: Applied::new(*family),
                environment: None,
                destination: None,
                settled: None,
                stale: Stale::default(),
            });
        }
        Ok(Redirect {
            families: states,
            node_ports: Arc::new(Served::All),
            logged: LogOnce::default(),
        })
    }

    /// Returns the engine of each family that its rules are in.
    pub fn engines(&self) -> Vec<(Family, Engine)> {
        let families = self.families.iter();
        families.map(|state| (state.family, state.engine)).collect()
    }

    /// Serves node ports on these addresses from the next full sync on.
    pub fn serve_node_ports(&mut self, node_ports: Arc<Served>) {
        self.node_ports = node_ports;
    }

    /// Makes the kernel capture what is desired; frontends of other families are
    /// left out. A full sync writes everything anew in one step, and repairs jumps.
    ///
    /// A frontend's target must be another port than its own: conntrack sees
    /// no translation where nothing changes, and the guard would refuse it.
    pub async fn sync(&mut self, desired: &Desired, scopes: &Scopes) -> Outcomes {
        let node_ports = &self.node_ports;
        let mut families = self.families.iter_mut();
        let sync = async |state: Option<&mut FamilyState>| {
            let state = state?;
            let scope = scopes.get(state.family).as_ref()?;
            let mut report = Report::default();
            let synced = match state.environment.take() {
                Some(environment) if scope.extent < Extent::Full => {
                    let changed = &scope.changed;
                    state
                        .update(desired, changed, environment, &mut report)
                        .await
                }
                _ => state.rewrite(desired, node_ports, &mut report).await,
            };
            Some((state.family, synced.map(|()| report)))
        };
        let (one, other) = tokio::join!(sync(families.next()), sync(families.next()));
        let mut outcomes = Outcomes::default();
        for (family, mut outcome) in [one, other].into_iter().flatten() {
            if let Ok(report) = &mut outcome {
                report
                    .messages
                    .retain(|message| self.logged.is_new(message));
            }
            *outcomes.get_mut(family) = Some(outcome);
        }
        outcomes
    }

    /// Removes everything that this way of capture ever installs in these
    /// families, also what an earlier process left, through whichever engine of
    /// the kernel, but for those that are `preserved`. Twice is harmless; nothing of
    /// others is touched.
    ///
    /// # Errors
    /// When something of it could not be removed.
    pub async fn cleanup(families: &[Family], preserved: &Preserved) -> Result<(), Error> {
        let mut outcome = Ok(());
        for family in families {
            outcome = outcome.and(OWNED.remove(*family, preserved).await);
        }
        Ok(outcome?)
    }

    /// Returns whether rules are in `family`, other than what is `preserved`.
    pub async fn is_present(family: Family, preserved: &Preserved) -> bool {
        OWNED.is_there(family, preserved).await
    }
}

impl FamilyState {
    /// Writes everything anew.
    async fn rewrite(
        &mut self,
        desired: &Desired,
        node_ports: &Served,
        report: &mut Report,
    ) -> Result<(), Error> {
        let family = self.family;
        let own = addresses::list(&mut Socket::open(Protocol::Route)?)?;
        let services: BTreeSet<_> = desired.keys().filter_map(|f| f.address).collect();
        let environment = Environment {
            features: self.features,
            destination: plan::destination(&own, family, self.destination, &services)
                .filter(|_| self.features.dnat),
            node: plan::node(&self.features, node_ports, &own, family),
        };
        self.destination = environment.destination;
        self.note(report);
        let changed = self.applied.replace(desired, &environment, report);
        self.stale.extend(changed);
        let (nat, filter) = self.saved().await?;
        let wanted = hash(&self.applied.batch(&self.features, &Jumps::default()));
        let settled = Settled {
            batch: wanted,
            kernel: hash(&plan::ours(&nat, &filter)),
        };
        if self.settled != Some(settled) {
            let jumps = Jumps::repair(&nat, &filter, &self.features);
            let batch = self.applied.batch(&self.features, &jumps);
            self.xtables.restore(&batch).await?;
            let (nat, filter) = self.saved().await?;
            self.settled = Some(Settled {
                batch: wanted,
                kernel: hash(&plan::ours(&nat, &filter)),
            });
        }
        self.environment = Some(environment);
        self.forget_stale(report).await;
        Ok(())
    }

    /// Deletes the flows that lead elsewhere than the rules in force.
    async fn forget_stale(&mut self, report: &mut Report) {
        let family = self.family;
        let forgotten = self
            .stale
            .forget(family, &self.applied, self.destination)
            .await;
        let failed = match self.stale.is_empty() {
            true => &mut report.messages,
            false => &mut report.unfinished,
        };
        failed.extend(forgotten.err());
    }

    /// Returns what concerns our chains in tables nat and filter, filter only if we use
    /// it.
    async fn saved(&self) -> Result<(String, String), Error> {
        let nat = self.xtables.lines_with("nat", plan::CHAIN).await?;
        let filter = match self.features.guard {
            true => self.xtables.lines_with("filter", plan::CHAIN).await?,
            false => String::new(),
        };
        Ok((nat, filter))
    }

    fn note(&self, report: &mut Report) {
        let family = self.family;
        if !self.features.guard {
            report.messages.push(format!(
                "{family}: the local ports of our listeners can be called from outside, because \
                 table filter with the conntrack match is missing here"
            ));
        }
        if !self.features.addrtype {
            report.messages.push(format!(
                "{family}: node ports answer on the addresses that the node has at each full \
                 sync, because the addrtype match is missing here"
            ));
        }
    }

    /// Applies what differs in `changed`.
    async fn update(
        &mut self,
        desired: &Desired,
        changed: &[Frontend],
        environment: Environment,
        report: &mut Report,
    ) -> Result<(), Error> {
        let delta = self.applied.update(desired, changed, &environment, report);
        let batch = delta.batch(&self.features);
        self.stale.extend(delta.frontends);
        if !batch.is_empty() {
            // While this fails or is cancelled the environment is unset: what we
            // hold is then not what the kernel has.
            self.settled = None;
            self.xtables.restore(&batch).await?;
        }
        self.environment = Some(environment);
        self.forget_stale(report).await;
        Ok(())
    }
}

fn hash(text: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}
