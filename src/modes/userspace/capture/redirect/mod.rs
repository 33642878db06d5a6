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

mod diff;
mod plan;
mod stale;
#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, mem, sync::Arc};

use self::{diff::Applied, plan::Environment, stale::Stale};
use super::{Desired, Error, Extent, Frontend, Outcomes, Report, Scopes, choose::redirecting};
use crate::{
    kernel::{
        addresses,
        netlink::{Protocol, Socket},
        probe::Kernel,
        xtables::{
            Engine,
            difference::Comparison,
            features::Features,
            remove::{Owned, Preserved},
            rule::Table,
            run::Writer,
            transaction::{Group, Op, Transaction},
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
    families: Vec<FamilyRules>,
    node_ports: Arc<Served>,
    logged: LogOnce,
}

/// What one family has in the kernel.
struct FamilyRules {
    writer: Writer,
    features: Features,
    applied: Applied,
    /// What is applied is in force; if not, the next sync compares everything.
    in_force: bool,
    stale: Stale,
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
            states.push(FamilyRules {
                features: tools.features,
                writer: Writer {
                    xtables: tools.xtables,
                    engine: tools.engine,
                },
                applied: Applied::default(),
                in_force: false,
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
        let engines = families.map(|state| (state.writer.family(), state.writer.engine));
        engines.collect()
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
        let sync = async |state: Option<&mut FamilyRules>| {
            let state = state?;
            let family = state.writer.family();
            let scope = scopes.get(family).as_ref()?;
            let mut report = Report::default();
            // While this fails or is cancelled, what is recorded is not what the
            // kernel has.
            let in_force = mem::take(&mut state.in_force);
            let synced = if in_force && scope.extent < Extent::Full {
                state.update(desired, &scope.changed, &mut report).await
            } else {
                state.compare(desired, node_ports, &mut report).await
            };
            Some((family, synced.map(|()| report)))
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

impl FamilyRules {
    /// Compares everything with the kernel.
    async fn compare(
        &mut self,
        desired: &Desired,
        node_ports: &Served,
        report: &mut Report,
    ) -> Result<(), Error> {
        let family = self.writer.family();
        let own = addresses::list(&mut Socket::open(Protocol::Route)?)?;
        let services: BTreeSet<_> = desired.keys().filter_map(|f| f.address).collect();
        let before = self.applied.destination();
        let environment = Environment {
            family,
            features: self.features,
            destination: plan::destination(&own, family, before, &services)
                .filter(|_| self.features.dnat),
            node: plan::node(&self.features, node_ports, &own, family),
        };
        report.messages.extend(self.shortcomings());
        let tables = environment.tables();
        let applied = Applied::of(desired, environment, report);
        self.stale.extend(applied.changed_since(&self.applied));
        self.applied = applied;
        let nothing_else = |_: Table, _: &str| {};
        let observed = self
            .writer
            .observe(plan::interest, tables, nothing_else)
            .await?;
        let desired = self.applied.rule_set();
        let (mut comparison, mut ops) = Comparison::begin(observed, &desired, family);
        ops.extend(comparison.stale_jumps());
        self.run(ops).await?;
        self.forget_stale(report).await;
        Ok(())
    }

    /// Applies what differs in `changed`.
    async fn update(
        &mut self,
        desired: &Desired,
        changed: &[Frontend],
        report: &mut Report,
    ) -> Result<(), Error> {
        let difference = self.applied.update(desired, changed, report);
        self.stale.extend(difference.frontends);
        self.run(difference.ops).await?;
        self.forget_stale(report).await;
        Ok(())
    }

    async fn run(&mut self, ops: Vec<Op>) -> Result<(), Error> {
        let transaction: Transaction<Frontend> = Transaction {
            family: self.writer.family(),
            groups: vec![Group::common(ops)],
        };
        self.writer.run(&transaction).await?;
        self.in_force = true;
        Ok(())
    }

    /// Deletes the flows that lead elsewhere than the rules in force.
    async fn forget_stale(&mut self, report: &mut Report) {
        let forgotten = self.stale.forget(self.writer.family(), &self.applied).await;
        let failed = if self.stale.is_empty() {
            &mut report.messages
        } else {
            &mut report.unfinished
        };
        failed.extend(forgotten.err());
    }

    /// Returns what an operator should know of what is missing here.
    fn shortcomings(&self) -> Vec<String> {
        let family = self.writer.family();
        let mut missing = Vec::new();
        if !self.features.conntrack {
            missing.push(format!(
                "{family}: the local ports of our listeners can be called from outside, because \
                 table filter with the conntrack match is missing here"
            ));
        }
        if !self.features.addrtype {
            missing.push(format!(
                "{family}: node ports answer on the addresses that the node has at each full \
                 sync, because the addrtype match is missing here"
            ));
        }
        missing
    }
}
