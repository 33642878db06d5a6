//! Capture by nat rules: [`plan`] has the picture. Everything is in chains of Tripod's
//! own in table nat and in table filter: few rules in one chain of each, many in search
//! trees of chains ([`tree`]).
//!
//! Verified with namespaces on Linux 6.18, both families, from a pod's
//! namespace and from the node itself:
//! - a packet that our nat rules redirected to a listener has `--ctstate DNAT` in
//!   filter INPUT, TCP and UDP alike; one that called the listener's port directly has
//!   not, and is refused at once;
//! - REDIRECT drops what comes in through an interface without an address;
//! - a UDP listener on the wildcard address must answer from the address that
//!   the datagram came to (`IP_PKTINFO`): left to itself the kernel chooses
//!   another one, conntrack does not know the answer, and the client waits;
//! - a UDP client that keeps its socket is sent where connection tracking sent it
//!   first, whatever the rules say by now ([`stale`] helps);
//! - a node's own program needs some route to the service address, be it the
//!   default route: the kernel asks for one before nat. kube-proxy's modes
//!   need the same.

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
    Desired, Differing, EarlierProcess, Error, Extent, Report, Scope, addresses_stay,
    choose::redirecting,
};
use crate::{
    kernel::probe::{Ability, Kernel},
    modes::{Difference, comparison, render::Choices},
    node::Served,
};

/// The chains of this capture. What redirects to the listeners is removed before what
/// guards them.
const OWNED: Owned = Owned {
    tables: &[Table::Nat, Table::Filter],
    interest: plan::interest,
    shared: None,
};

/// Returns the addresses of the node.
fn own_addresses() -> Result<Vec<Address>, Error> {
    Ok(addresses::list(&mut Socket::open(Protocol::Route)?)?)
}

/// Captures a family by nat rules. Owns its chains and the jumps to them.
pub struct Redirect {
    writer: Writer,
    features: Features,
    applied: Applied,
    /// The addresses of the node when they were listed last.
    own: Option<Vec<Address>>,
    /// What is applied is in force; if not, the next sync compares everything.
    in_force: bool,
    /// Whether a process that gave way to this one still runs.
    earlier: EarlierProcess,
    stale: Stale,
    /// What the last sync did with the rules.
    synced: Synced,
    /// Notices changes by others.
    watch: SyncWatch,
}

impl Redirect {
    /// Returns capture of this `family` on `kernel`.
    ///
    /// # Errors
    /// When nat does not work in it: see [`super::choose()`].
    pub fn new(family: Family, kernel: &Kernel) -> Result<Redirect, Error> {
        let tools = redirecting(kernel, family)?;
        let features = match kernel.can(&Ability::Transparent(family)) {
            true => tools.features,
            false => tools.features - Extension::Socket,
        };
        Ok(Redirect::with(tools.writer, features))
    }

    /// Returns capture with this `writer`, by rules that use these `features`.
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
            earlier: EarlierProcess::default(),
            stale: Stale::default(),
        }
    }

    /// Returns the engine that its rules are in.
    pub fn engine(&self) -> Engine {
        self.writer.engine
    }

    /// Returns whether rules can match the node's addresses as such; otherwise they name
    /// those that it has.
    pub fn matches_local_addresses(&self) -> bool {
        self.features.contains(Extension::Addrtype)
    }

    /// Returns false if another process changed the rules in force, as far as that shows
    /// without reading them.
    pub fn is_unmodified(&mut self) -> bool {
        !self.in_force || self.watch.is_unmodified()
    }

    /// Returns what the rules of an earlier process capture, each with the local port that they
    /// redirect to.
    ///
    /// # Errors
    /// When the kernel could not be asked.
    pub async fn previous_ports(&self) -> Result<Vec<(Frontend, u16)>, Error> {
        let family = self.writer.family();
        let mut found = Vec::new();
        let line = |_: Table, line: &str| found.extend(previous_ports::captured(line, family));
        let tables = &[Table::Nat];
        self.writer.observe(plan::interest, tables, line).await?;
        Ok(found)
    }

    /// Returns what is to be known of the rules before a sync of any family.
    pub fn before(&mut self) -> Option<Count> {
        self.synced = Synced::default();
        self.watch.before()
    }

    /// Returns how many transactions of the kernel's the sync took.
    pub fn transactions(&self) -> u32 {
        self.synced.transactions
    }

    /// Records how the rules are after a sync in which the kernel made `all` transactions
    /// for all families; `before` is what was to be known.
    pub fn after(&mut self, before: Option<Count>, all: u32) {
        if self.in_force {
            self.watch.after(before, all, self.synced);
        }
    }

    /// Makes the kernel capture what is desired; frontends of other families are
    /// left out. A full sync compares everything and repairs jumps; node ports are
    /// `served` as it found them. [`Self::before`] and [`Self::after`] are to be called around it.
    ///
    /// A frontend's target must be another port than its own: conntrack sees
    /// no translation where nothing changes, and the guard would refuse it.
    ///
    /// # Errors
    /// When the kernel could not be asked or refused as a whole.
    pub async fn sync(
        &mut self,
        desired: &Desired,
        scope: &Scope,
        served: &Served,
        report: &mut Report,
    ) -> Result<(), Error> {
        // While this fails or is cancelled, what is recorded is not what the kernel
        // has.
        let in_force = mem::take(&mut self.in_force);
        if in_force && scope.extent < Extent::Full {
            self.update(desired, &scope.changed, report).await
        } else {
            if !in_force {
                self.watch.pause();
            }
            self.earlier = scope.earlier;
            self.compare(desired, served, report).await
        }
    }

    /// Removes everything that this way of capture ever installs in these families,
    /// also what an earlier process left, through whichever engine of the kernel,
    /// except those that are `preserved`. Twice is harmless; nothing of others is
    /// changed.
    ///
    /// # Errors
    /// When something of it could not be removed.
    pub async fn cleanup(families: &[Family], preserved: &Preserved) -> Result<(), Error> {
        Ok(OWNED.remove(families, preserved).await?)
    }

    /// Removes the rules that jump to its chains in these families, and leaves the
    /// chains, without whose rules the kernel would track no connections. Flows of UDP
    /// clients begin anew. Returns the families that have some.
    ///
    /// # Errors
    /// When a rule that jumps there, or an entry of connection tracking, could not be removed in one
    /// of them; they are removed in the others all the same.
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

    /// Returns whether there are rules in some family, other than what is `preserved`.
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

    /// Returns how the rules differ from those for what is desired, rule by rule: the order of a
    /// chain's rules is not compared. Changes nothing.
    ///
    /// # Errors
    /// When the kernel could not be asked.
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

    /// Returns the rules that capture `frontend` and those that jump to them, in the words of
    /// [`Redirect::differences`].
    pub fn objects(&self, frontend: &Frontend) -> Vec<String> {
        let way = self.applied.way(frontend);
        let named = way.iter().map(|Entry { table, chain, rule }| {
            comparison::rule(*table, chain, rule.words(frontend.family))
        });
        named.collect()
    }

    /// Returns what the rules depend on besides what is captured. The node has the
    /// addresses `own`.
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
            // The sockets of an earlier process may be without it: those of other versions are.
            only_to_ours: self.features.contains(Extension::Socket)
                && self.earlier == EarlierProcess::Ended,
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

    /// Applies what differs in `changed`.
    async fn update(
        &mut self,
        desired: &Desired,
        changed: &[Frontend],
        report: &mut Report,
    ) -> Result<(), Error> {
        let difference = self.applied.update(desired, changed, report);
        self.stale.extend(difference.frontends);
        if self.watch.misses_changes() && !difference.ops.is_empty() {
            // What is written anew, rules of other frontends included, may have been missing.
            self.stale.extend(self.applied.frontends());
        }
        let family = self.writer.family();
        let transaction = Transaction::common(family, difference.ops);
        let is_empty = |_, _: &str| false;
        self.run(transaction, is_empty, report).await?;
        self.delete_stale_flows(report).await;
        Ok(())
    }

    /// Makes the change. Where the kernel refuses it and would delete chains, they are only
    /// emptied, unless they are known to be empty: another program's rule may jump to one of them,
    /// which is not ours to remove.
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

    /// Deletes the flows that go elsewhere than the rules in force would send them.
    async fn delete_stale_flows(&mut self, report: &mut Report) {
        let deleted = self.stale.delete(self.writer.family(), &self.applied).await;
        let failed = if self.stale.is_due() {
            &mut report.unfinished
        } else {
            &mut report.messages
        };
        failed.extend(deleted.err());
    }

    /// Returns what an operator should know of what is missing here.
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
