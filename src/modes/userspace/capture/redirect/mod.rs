//! Capture by nat rules: [`plan`] shows how. All rules are in Tripod's own chains in table nat and
//! table filter: either few rules in one chain of each, or many in search trees of chains
//! ([`tree`]).
//!
//! Verified with namespaces on Linux 6.18, both families, from a pod's
//! namespace and from the node itself:
//! - a packet that our nat rules redirected to a listener has `--ctstate DNAT` in filter INPUT, for
//!   both TCP and UDP; a packet sent directly to the listener's port has not, and is refused at
//!   once;
//! - REDIRECT drops packets that arrive on an interface without an address;
//! - a UDP listener on the wildcard address must answer from the address to which the datagram was
//!   sent (`IP_PKTINFO`): otherwise the kernel chooses another one, conntrack does not recognise
//!   the answer, and the client waits;
//! - a UDP client that keeps its socket is sent where connection tracking sent it first, whatever
//!   the current rules say ([`stale`] helps);
//! - the node's own programs need some route to the service address, for example the default route:
//!   the kernel looks one up before nat. kube-proxy's modes need the same.

mod applied;
mod chains;
mod key;
mod plan;
mod previous_ports;
mod stale;
#[cfg(test)]
mod tests;
mod tree;

use std::{collections::BTreeSet, fmt, mem};

use net::{Family, Frontend};
use netlink::{
    Protocol, Socket,
    addresses::{self, Address},
};
use xtables::{
    Engine,
    chains::Count,
    desired::{Entry, FixedChain, RuleSet},
    difference::exact_difference,
    extension::Extension,
    features::Features,
    remove::{Owned, Preserved},
    rule::Table,
    run::Writer,
    sync_watch::{SyncWatch, Synced},
    transaction::{Action, Op, Transaction},
};

use self::{applied::Applied, plan::Environment, stale::Stale};
use super::{
    Desired, Differing, Error, Extent, Report, Scope, addresses_stay, choose::redirecting,
};
use crate::{
    kernel::probe::{Ability, Kernel},
    modes::{Difference, comparison, render::Choices},
    node::Served,
};

/// The chains of this capture method. Rules that redirect to listeners are removed before the rules
/// that guard them.
const OWNED: Owned = Owned {
    tables: &[Table::Nat, Table::Filter],
    interest: plan::interest,
    shared: None,
};

fn own_addresses() -> Result<Vec<Address>, Error> {
    Ok(addresses::list(&mut Socket::open(Protocol::Route)?)?)
}

/// Captures a family by nat rules. Owns its chains and the jumps to them.
pub struct Redirect {
    writer: Writer,
    features: Features,
    applied: Applied,
    /// The addresses of the node when last listed.
    own: Option<Vec<Address>>,
    /// Whether the recorded rules are applied; if not, the next sync compares everything.
    in_force: bool,
    /// Whether a process that gave way to this one is still running.
    has_predecessor: bool,
    stale: Stale,
    /// Changes to the rules by the last sync.
    synced: Synced,
    /// Notices changes by others.
    watch: SyncWatch,
}

impl Redirect {
    /// Capture of this `family` on `kernel`.
    ///
    /// # Errors
    /// When nat does not work for it: see [`super::choose()`].
    pub fn new(family: Family, kernel: &Kernel) -> Result<Redirect, Error> {
        let tools = redirecting(kernel, family)?;
        let features = match kernel.can(&Ability::Transparent(family)) {
            true => tools.features,
            false => tools.features - Extension::Socket,
        };
        Ok(Redirect::with(tools.writer, features))
    }

    /// Capture with this `writer`, by rules that use these `features`.
    fn with(writer: Writer, features: Features) -> Redirect {
        let (family, engine) = (writer.family(), writer.engine);
        Redirect {
            watch: SyncWatch::new(family, engine, &OWNED),
            synced: Synced::default(),
            features,
            writer,
            applied: Applied::default(),
            own: None,
            in_force: false,
            has_predecessor: false,
            stale: Stale::default(),
        }
    }

    /// The engine of its rules.
    pub fn engine(&self) -> Engine {
        self.writer.engine
    }

    /// Returns whether rules can match the node's addresses as such; otherwise they list its
    /// current addresses.
    pub fn matches_local_addresses(&self) -> bool {
        self.features.contains(Extension::Addrtype)
    }

    /// Returns whether rules let packets with our mark pass.
    pub fn matches_marks(&self) -> bool {
        self.features.contains(Extension::Mark)
    }

    /// Returns false if another process changed the applied rules, as far as that can be noticed
    /// without reading them.
    pub fn is_unmodified(&mut self) -> bool {
        !self.in_force || self.watch.is_unmodified()
    }

    /// Frontends captured by the rules of an earlier process, each with the local port to which
    /// they redirect.
    ///
    /// # Errors
    /// When the kernel cannot be queried.
    pub async fn previous_ports(&self) -> Result<Vec<(Frontend, u16)>, Error> {
        let family = self.writer.family();
        let mut found = Vec::new();
        let line = |_: Table, line: &str| found.extend(previous_ports::captured(line, family));
        let tables = &[Table::Nat];
        self.writer.observe(plan::interest, tables, line).await?;
        Ok(found)
    }

    /// State of the rules' transaction counter before a sync of any family.
    pub fn before(&mut self) -> Option<Count> {
        self.synced = Synced::default();
        self.watch.before()
    }

    /// Number of kernel transactions of the last sync.
    pub fn transactions(&self) -> u32 {
        self.synced.transactions
    }

    /// Records the state of the rules after a sync in which the kernel made `all` transactions for
    /// all families; `before` is the result of [`Self::before`].
    pub fn after(&mut self, before: Option<Count>, all: u32) {
        if self.in_force {
            self.watch.after(before, all, self.synced);
        }
    }

    /// Must be called `before` and after others in this process write rules.
    pub fn expect_changes(&mut self, before: bool) {
        self.watch.expect_changes(before);
    }

    /// Makes the kernel capture the desired frontends; those of other families are ignored. A full
    /// sync compares everything, repairs jumps, and replaces the addresses at which node ports are
    /// `served`. [`Self::before`] and [`Self::after`] must be called around it.
    ///
    /// A frontend's target must have another port than the frontend: conntrack sees no translation
    /// if nothing changes, and the guard would refuse it.
    ///
    /// # Errors
    /// When the kernel could not be queried or refused the whole sync.
    pub async fn sync(
        &mut self,
        desired: &Desired,
        scope: &Scope,
        served: &Served,
        report: &mut Report,
    ) -> Result<(), Error> {
        // If this fails or is cancelled, the recorded state differs from the kernel's.
        let in_force = mem::take(&mut self.in_force);
        if in_force && scope.extent < Extent::Full {
            self.update(desired, &scope.changed, report).await
        } else {
            if !in_force {
                self.watch.pause();
            }
            self.has_predecessor = scope.has_predecessor;
            self.compare(desired, served, report).await
        }
    }

    /// Removes everything that this method of capture ever installs in these families, including
    /// leftovers of an earlier process, in either engine of the kernel, except what is `preserved`.
    /// Idempotent; rules of other programs stay.
    ///
    /// # Errors
    /// When some of it could not be removed.
    pub async fn cleanup(families: &[Family], preserved: &Preserved) -> Result<(), Error> {
        Ok(OWNED.remove(families, preserved).await?)
    }

    /// Removes the rules that jump to its chains in these families. The chains stay, because
    /// without their rules the kernel would track no connections. Flows of UDP clients start again.
    /// Returns the families that have such chains.
    ///
    /// # Errors
    /// When a jump or a conntrack entry could not be removed in a family; they are removed in the
    /// others all the same.
    pub async fn retire(families: &[Family]) -> Result<Vec<Family>, Error> {
        let (remaining, unlinked) = OWNED.unlink(families).await;
        let deleted = remaining
            .iter()
            .map(|family| stale::delete_redirected(*family));
        let deleted = deleted.fold(Ok(()), Result::and);
        unlinked?;
        deleted?;
        Ok(remaining)
    }

    /// Returns whether there are rules in any family, other than what is `preserved`.
    ///
    /// # Errors
    /// When that is not known.
    pub async fn is_there(preserved: &Preserved) -> Result<bool, Error> {
        Ok(OWNED.is_there(preserved).await?)
    }

    /// Returns whether there may be rules, without running a program; see
    /// [`Owned::may_be_there`].
    pub fn may_be_there() -> bool {
        OWNED.may_be_there()
    }

    /// Differences between the current and the desired rules, rule by rule: the order of the rules
    /// of a chain is not compared. Changes nothing.
    ///
    /// # Errors
    /// When the kernel cannot be queried.
    pub async fn differences(
        &self,
        desired: &Desired,
        served: &Served,
    ) -> Result<Differing, Error> {
        let family = self.writer.family();
        let environment = self.environment(&own_addresses()?, desired, served);
        let tables = environment.tables();
        let applied = Applied::of(desired, environment, &mut Report::default());
        let nothing_else = |_: Table, _: &str| {};
        let interest = plan::by_rule;
        let observed = self.writer.observe(interest, tables, nothing_else).await?;
        let chains = observed.chains();
        let transaction = exact_difference(&observed, applied.rule_set(), family);
        let steps = transaction.groups.iter().flat_map(|group| &group.ops);
        let differences = steps.flat_map(|op| {
            let step = || Difference::of_step(None, op, &chains, family);
            let (table, chain) = (op.table, &*op.chain);
            match (&op.action, observed.rules(table, chain)) {
                (Action::Fill(rules), Some(there)) => {
                    comparison::of_rules(table, chain, rules, there, family)
                }
                (Action::Fill(rules), None) => {
                    let mut missing = comparison::of_rules(table, chain, rules, &[], family);
                    missing.push(step());
                    missing
                }
                _ => vec![step()],
            }
        });
        Ok(differences.map(|difference| (None, difference)).collect())
    }

    /// The rules that capture `frontend` and those that jump to them, in the notation of
    /// [`Redirect::differences`].
    pub fn objects(&self, frontend: &Frontend) -> Vec<String> {
        let way = self.applied.way(frontend);
        let named = way.iter().map(|Entry { table, chain, rule }| {
            comparison::rule(*table, chain, rule.words(frontend.family))
        });
        named.collect()
    }

    /// The environment of the rules. The node has the addresses `own`.
    fn environment(&self, own: &[Address], desired: &Desired, served: &Served) -> Environment {
        let family = self.writer.family();
        let services: BTreeSet<_> = desired.keys().filter_map(|f| f.address).collect();
        let before = self.applied.destination();
        Environment {
            family,
            features: self.features,
            destination: plan::destination(own, family, before, &services)
                .filter(|_| self.features.contains(Extension::Dnat)),
            node: plan::node(
                &self.features,
                served,
                own.iter().map(|a| a.address),
                family,
            ),
            // The sockets of an earlier process may lack the option, as those of other versions do.
            only_to_ours: self.features.contains(Extension::Socket) && !self.has_predecessor,
        }
    }

    /// Compares everything with the kernel.
    async fn compare(
        &mut self,
        desired: &Desired,
        served: &Served,
        report: &mut Report,
    ) -> Result<(), Error> {
        let family = self.writer.family();
        let (own, is_current) = match (own_addresses(), self.own.take()) {
            (Ok(listed), _) => (listed, true),
            // Addresses that cannot be listed are not gone.
            (Err(error), Some(known)) => {
                report.unfinished.push(addresses_stay(&error));
                (known, false)
            }
            (Err(error), None) => return Err(error),
        };
        let environment = self.environment(&own, desired, served);
        self.own = Some(own);
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
        self.synced.observed = true;
        // Not while the programs run, which need memory as well.
        let transaction = exact_difference(&observed, self.applied.rule_set(), family);
        if self.watch.take_suspect() || !transaction.is_empty() {
            // Clients that called while rules were missing were not redirected.
            self.stale.extend(self.applied.frontends());
        }
        let is_empty = |table, chain: &str| observed.is_empty(table, chain);
        self.run(transaction, is_empty, report).await?;
        report.is_of_all = true;
        self.in_force &= is_current;
        self.delete_stale_flows(report).await;
        Ok(())
    }

    /// Applies the differences of `changed`.
    async fn update(
        &mut self,
        desired: &Desired,
        changed: &[Frontend],
        report: &mut Report,
    ) -> Result<(), Error> {
        let difference = self.applied.update(desired, changed, report);
        self.stale.extend(difference.frontends);
        if self.watch.misses_changes() && !difference.ops.is_empty() {
            // Rewritten rules, including those of other frontends, may have been missing.
            self.stale.extend(self.applied.frontends());
        }
        let family = self.writer.family();
        let transaction = Transaction::common(family, difference.ops);
        let is_empty = |_, _: &str| false;
        self.run(transaction, is_empty, report).await?;
        self.delete_stale_flows(report).await;
        Ok(())
    }

    /// Makes the change. If the kernel refuses it and it would delete chains, chains that are not
    /// known to be empty are only emptied: a rule of another program may jump to one of them, and
    /// we must not remove that rule.
    async fn run(
        &mut self,
        transaction: Transaction<()>,
        is_empty: impl Fn(Table, &str) -> bool,
        report: &mut Report,
    ) -> Result<(), Error> {
        self.synced.transactions = match self.writer.run_in_parts(&transaction).await {
            Err(error @ xtables::Error::Failed { .. }) if transaction.deletes() => {
                let emptying = transaction.emptying(is_empty);
                let made = self.writer.run_in_parts(&emptying).await?;
                report.messages.push(format!(
                    "{}: chains that are no longer needed stay, empty, because a rule of another \
                     program jumps to one of them: {error}",
                    self.writer.family()
                ));
                made
            }
            done => done?,
        };
        self.in_force = true;
        Ok(())
    }

    /// Deletes the flows that go elsewhere than the applied rules would send them.
    async fn delete_stale_flows(&mut self, report: &mut Report) {
        let deleted = self.stale.delete(self.writer.family(), &self.applied).await;
        let failed = if self.stale.is_due() {
            &mut report.unfinished
        } else {
            &mut report.messages
        };
        failed.extend(deleted.err());
    }

    /// Messages for the operator about missing abilities.
    fn shortcomings(&self) -> Vec<String> {
        let family = self.writer.family();
        let mut missing = Vec::new();
        if !self.features.contains(Extension::Conntrack) {
            missing.push(format!(
                "{family}: the local ports of Tripod's listeners can be called from outside, \
                 because table filter with the conntrack match is missing here"
            ));
        }
        if !self.features.contains(Extension::Socket) {
            missing.push(format!(
                "{family}: if this process is killed, programs of other users can listen on its \
                 local ports and get what clients send, because -m socket or IP_TRANSPARENT is \
                 missing here; run tripod hold, which keeps the ports"
            ));
        }
        if !self.features.contains(Extension::Addrtype) {
            missing.push(format!(
                "{family}: node ports answer on the addresses that the node has at each full \
                 sync, because the addrtype match is missing here"
            ));
        }
        missing
    }
}

/// Writes the rules for all that is `desired`, which is of this `family`, on a node with the
/// addresses of `choices`.
pub(super) fn render(
    desired: &Desired,
    family: Family,
    choices: &Choices<'_>,
    report: &mut Report,
    text: &mut impl fmt::Write,
) -> fmt::Result {
    let features = choices.kernel.features(family);
    let own = || choices.addresses.iter().copied();
    let environment = Environment {
        family,
        features,
        destination: own()
            .find(|ip| Family::of(ip) == family)
            .filter(|_| features.contains(Extension::Dnat)),
        node: plan::node(&features, choices.served, own(), family),
        only_to_ours: features.contains(Extension::Socket),
    };
    let RuleSet { chains, jumps } = Applied::of(desired, environment, report).rule_set();
    let declared = chains.iter();
    let declared = declared.map(|chain| (chain, Action::Fill(Vec::new())));
    let rules = chains.iter().flat_map(|chain| {
        let rules = chain.contents.rules().iter().cloned();
        rules.map(move |rule| (chain, Action::Append(rule)))
    });
    let of_chain =
        |(chain, action): (&FixedChain, Action)| Op::new(chain.table, &*chain.name, action);
    let mut ops: Vec<Op> = declared.chain(rules).map(of_chain).collect();
    let jumps = jumps.into_iter();
    ops.extend(jumps.map(|jump| Op::new(jump.table, jump.from, Action::Insert(jump.rule))));
    writeln!(
        text,
        "# {}-restore --noflush",
        xtables::program_prefix(family)
    )?;
    write!(text, "{}", Transaction::common(family, ops))
}
