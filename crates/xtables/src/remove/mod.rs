//! Removing chains of ours from tables that others have rules in too: one driver
//! for every part of Tripod that has rules.

mod chains;
mod preserved;

use net::Family;

use self::chains::OwnedChains;
pub use self::preserved::Preserved;
use super::{
    Engine, Engines, Error, Xtables, engine::list_chains, observed::InterestIn, rule::Table,
    run::Writer,
};

/// Which chains belong to a part of Tripod, by their names.
#[derive(Debug)]
pub struct Owned {
    /// The tables that have some, in the order in which they are cleaned.
    pub tables: &'static [Table],
    /// Returns how a chain is compared. The kernel's own chains are of no interest.
    pub interest: InterestIn,
    /// A chain that Tripod owns unless another program uses it; `None`: there is none.
    pub shared: Option<SharedChain>,
}

/// A chain of ours, where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedChain {
    /// IP family of the chain; those of IPv4 and IPv6 are separate.
    pub family: Family,
    /// The engine that holds it.
    pub engine: Engine,
    /// The table that contains it.
    pub table: Table,
    /// The chain's name, as iptables-save prints it.
    pub name: String,
}

/// A chain that another program has under the same name.
#[derive(Debug)]
pub struct SharedChain {
    /// Its table, the last one of [`Owned::tables`].
    pub table: Table,
    /// The chain's name.
    pub name: &'static str,
    /// Chains that only the other program makes, in any of the tables.
    pub signs: &'static [&'static str],
    /// Returns true for a line of `iptables-save` that only the other program
    /// causes.
    pub is_others: fn(&str) -> bool,
}

impl Owned {
    /// Returns true if the chain is ours alone.
    fn is_ours(&self, table: Table, chain: &str) -> bool {
        (self.interest)(table, chain).is_ours()
    }

    /// Removes these chains of these families, and the rules that jump to them, from either engine,
    /// except the `preserved` ones. Nothing of others is changed; missing chains are no error.
    ///
    /// # Errors
    /// The first removal that failed, after everything else was removed.
    pub async fn remove(&self, families: &[Family], preserved: &Preserved) -> Result<(), Error> {
        let mut outcome = Ok(());
        for &family in families {
            let engines = Xtables::engines(family).await;
            outcome = outcome.and(self.within_reach(family, &engines, preserved));
            for writer in engines.writers() {
                if !preserved.has_all_of(family, writer.engine) {
                    outcome = outcome.and(self.remove_from(writer, preserved).await);
                }
            }
        }
        outcome
    }

    async fn remove_from(&self, writer: &Writer, preserved: &Preserved) -> Result<(), Error> {
        let (family, engine) = (writer.family(), writer.engine);
        let is_ours = self.without(preserved, family, engine);
        let shared = self.shared.as_ref();
        let is_shared = |table: Table, chain: &str| {
            shared.is_some_and(|shared| shared.table == table && shared.name == chain)
        };
        let is_sign = |chain: &str| shared.is_some_and(|shared| shared.signs.contains(&chain));
        let owned = |table, chain: &str| is_ours(table, chain) || is_shared(table, chain);
        let mut outcome = Ok(());
        let (mut first, mut later) = (Vec::new(), Vec::new());
        let mut is_others = false;
        for table in self.tables_with(family, engine, owned, is_sign) {
            let mut found = OwnedChains::new(family, table, |chain: &str| owned(table, chain));
            let read = writer.xtables.read(Some(table.name()), |line| {
                is_others |= shared.is_some_and(|shared| (shared.is_others)(line));
                found.line(line);
            });
            if let Err(error) = read.await {
                let of_table = |of, chain: &str| of == table && is_ours(of, chain);
                outcome = outcome.and(unread(error, family, engine, of_table));
                continue;
            }
            if let Some(shared) = shared.filter(|_| is_others) {
                found.leave(shared.name);
            }
            let mut steps = found.steps(engine).into_iter();
            first.extend(steps.next());
            later.extend(steps);
        }
        // Each table by itself: a table of another program fails alone.
        for step in first.iter().chain(&later) {
            outcome = outcome.and(writer.run(step).await.map(drop));
        }
        outcome
    }

    /// Returns those of the tables that are worth reading for chains that are `owned`, or a
    /// sign of the other program.
    fn tables_with(
        &self,
        family: Family,
        engine: Engine,
        owned: impl Fn(Table, &str) -> bool,
        is_sign: impl Fn(&str) -> bool,
    ) -> impl Iterator<Item = Table> {
        let there = engine.tables_with(family, |table, chain| {
            Table::named(table).is_some_and(|table| owned(table, chain)) || is_sign(chain)
        });
        let tables = self.tables.iter().copied();
        tables.filter(move |table| there.contains(&table.name()))
    }

    /// Removes the rules that jump to these chains of the `families`, in either engine, and leaves
    /// the chains. Returns the families that have some, as far as they are known, and the first
    /// error: when a table could not be read, a rule could not be removed, or, after all rules
    /// within reach were removed, there may be more where no program reaches.
    pub async fn unlink(&self, families: &[Family]) -> (Vec<Family>, Result<(), Error>) {
        let (mut there, mut outcome) = (Vec::new(), Ok(()));
        for &family in families {
            match self.unlink_in(family).await {
                Ok(any) => there.extend(any.then_some(family)),
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        (there, outcome)
    }

    async fn unlink_in(&self, family: Family) -> Result<bool, Error> {
        let mut any = false;
        let engines = Xtables::engines(family).await;
        let is_known = self.legacy_is_known(family, &engines, &Preserved::nothing());
        let is_ours = |table, chain: &str| self.is_ours(table, chain);
        for writer in engines.writers() {
            for table in self.tables_with(family, writer.engine, is_ours, |_| false) {
                let found = OwnedChains::new(family, table, |chain: &str| is_ours(table, chain));
                let found = found.read(&writer.xtables).await?;
                any |= !found.is_empty();
                writer.run(&found.unlinking()).await?;
            }
        }
        is_known.map(|()| any)
    }

    /// Returns true if the kernel's chains of `table` jump to `chain`, in either family and engine.
    ///
    /// # Errors
    /// When they do not where they can be read, and not everything could be: that is not known.
    pub async fn is_led_to(&self, table: Table, chain: &str) -> Result<bool, Error> {
        let is_it = |of: Table, name: &str| of == table && name == chain;
        let mut outcome = Ok(false);
        for family in Family::ALL {
            let engines = Xtables::engines(family).await;
            for writer in engines.writers() {
                for table in self.tables_with(family, writer.engine, is_it, |_| false) {
                    let found = OwnedChains::new(family, table, |name: &str| is_it(table, name));
                    match found.read(&writer.xtables).await {
                        Ok(found) if !found.unlinking().is_empty() => return Ok(true),
                        Ok(_) => {}
                        Err(error) => outcome = outcome.and(Err(error)),
                    }
                }
            }
            let is_known = self.legacy_is_known(family, &engines, &Preserved::nothing());
            outcome = outcome.and(is_known.map(|()| false));
        }
        outcome
    }

    /// Returns true if there are such chains other than the `preserved` ones.
    ///
    /// # Errors
    /// When none was found, and not everything could be read.
    pub async fn is_there(&self, preserved: &Preserved) -> Result<bool, Error> {
        let mut found = Vec::new();
        let read = self.find(preserved, &mut found).await;
        if found.is_empty() {
            read.map(|()| false)
        } else {
            Ok(true)
        }
    }

    /// Returns whether there may be such chains, without running a program: some are in nf_tables,
    /// that did not answer, or there is a legacy table that could have some, which its program
    /// alone can read.
    pub fn may_be_there(&self) -> bool {
        Family::ALL.into_iter().any(|family| {
            let mut tables = self.tables.iter();
            tables.any(|table| Engine::Legacy.has_table(family, table.name()))
                || holds(family, |table, chain| self.is_ours(table, chain)).unwrap_or(true)
        })
    }

    /// Lists such chains, of both families, other than the `preserved` ones. Cheap if the kernel
    /// lists chains without their rules.
    ///
    /// # Errors
    /// When some cannot be read.
    pub async fn list(&self, preserved: &Preserved) -> Result<Vec<OwnedChain>, Error> {
        let mut found = Vec::new();
        self.find(preserved, &mut found).await?;
        Ok(found)
    }

    /// Adds such chains to `found`.
    ///
    /// # Errors
    /// The first thing that could not be read, after everything else was.
    async fn find(&self, preserved: &Preserved, found: &mut Vec<OwnedChain>) -> Result<(), Error> {
        let mut outcome = Ok(());
        for family in Family::ALL {
            let engines = Xtables::engines(family).await;
            for writer in engines.writers() {
                if !preserved.has_all_of(family, writer.engine) {
                    let read = self.find_in(writer, preserved, found).await;
                    outcome = outcome.and(read);
                }
            }
            if engines.unknown(Engine::NfTables).is_some() {
                outcome = outcome.and(self.find_in_nf_tables(family, preserved, found));
            }
            outcome = outcome.and(self.legacy_is_known(family, &engines, preserved));
        }
        outcome
    }

    async fn find_in(
        &self,
        writer: &Writer,
        preserved: &Preserved,
        found: &mut Vec<OwnedChain>,
    ) -> Result<(), Error> {
        let (family, engine) = (writer.family(), writer.engine);
        if engine == Engine::NfTables {
            return self.find_in_nf_tables(family, preserved, found);
        }
        let is_ours = self.without(preserved, family, engine);
        let mut add = |table, name: &str| {
            found.push(OwnedChain {
                family,
                engine,
                table,
                name: name.to_owned(),
            });
        };
        let mut outcome = Ok(());
        for &table in self.tables {
            if engine.has_table(family, table.name()) {
                let read = OwnedChains::new(family, table, |chain: &str| is_ours(table, chain));
                match read.read(&writer.xtables).await {
                    Ok(read) => read.names().into_iter().for_each(|name| add(table, name)),
                    Err(error) => outcome = outcome.and(Err(error)),
                }
            }
        }
        outcome
    }

    /// Adds such chains of nf_tables to `found`, which takes no program.
    fn find_in_nf_tables(
        &self,
        family: Family,
        preserved: &Preserved,
        found: &mut Vec<OwnedChain>,
    ) -> Result<(), Error> {
        let engine = Engine::NfTables;
        let is_ours = self.without(preserved, family, engine);
        each_in_nf_tables(family, |table, chain| {
            if is_ours(table, chain) {
                found.push(OwnedChain {
                    family,
                    engine,
                    table,
                    name: chain.to_owned(),
                });
            }
        })
    }

    /// Fails if legacy tables may have such chains, other than the `preserved` ones, and it is not
    /// known whether there is a program for them.
    fn legacy_is_known(
        &self,
        family: Family,
        engines: &Engines,
        preserved: &Preserved,
    ) -> Result<(), Error> {
        let engine = Engine::Legacy;
        let mut tables = self.tables.iter();
        let may_have = !preserved.has_all_of(family, engine)
            && tables.any(|table| engine.has_table(family, table.name()));
        match engines.unknown(engine) {
            Some(unknown) if may_have => Err(unknown),
            _ => Ok(()),
        }
    }

    /// A function that finds out whether a chain in this engine is ours and not `preserved`.
    fn without(
        &self,
        preserved: &Preserved,
        family: Family,
        engine: Engine,
    ) -> impl Fn(Table, &str) -> bool {
        move |table, chain| {
            self.is_ours(table, chain) && !preserved.has(family, engine, (table, chain))
        }
    }

    /// Fails unless the programs of `family` reach all of these chains, other than the `preserved`
    /// ones. Those of the legacy engine cannot be listed without its program.
    fn within_reach(
        &self,
        family: Family,
        engines: &Engines,
        preserved: &Preserved,
    ) -> Result<(), Error> {
        let engine = Engine::NfTables;
        let is_ours = self.without(preserved, family, engine);
        if engines.writer(engine).is_none() && holds(family, is_ours)? {
            return Err(engines.unknown(engine).unwrap_or(Error::Absent { family }));
        }
        self.legacy_is_known(family, engines, preserved)
    }
}

/// Returns `error`, because of which chains that `is_ours` names could not be removed
/// from a table, unless the table holds nothing of ours: then it does not concern us.
fn unread(
    error: Error,
    family: Family,
    engine: Engine,
    is_ours: impl Fn(Table, &str) -> bool,
) -> Result<(), Error> {
    let concerns_us = match engine {
        Engine::NfTables => holds(family, is_ours).unwrap_or(true),
        // The kernel shows that the table is there, and no more.
        Engine::Legacy => true,
    };
    if concerns_us || error.is_permission() {
        Err(error)
    } else {
        Ok(())
    }
}

/// Returns whether nf_tables has such chains, even without any program for them.
///
/// # Errors
/// When that is not known.
fn holds(family: Family, is_ours: impl Fn(Table, &str) -> bool) -> Result<bool, Error> {
    let mut found = false;
    each_in_nf_tables(family, |table, chain| found |= is_ours(table, chain))?;
    Ok(found)
}

/// Calls `each` with the chains of nf_tables that are not the kernel's own; there is none if
/// nf_tables is missing, or may not be used.
///
/// # Errors
/// When it did not answer for a temporary reason: the chains are not known.
fn each_in_nf_tables(family: Family, mut each: impl FnMut(Table, &str)) -> Result<(), Error> {
    let listed = |listed: nftables::ListedChain| {
        if let Some(table) = Table::named(&listed.table).filter(|_| !listed.base) {
            each(table, &listed.chain.name);
        }
    };
    match list_chains(family, listed) {
        Err(source) if source.is_passing() => Err(Error::Unlisted { family, source }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use nix::errno::Errno;
    use simulated::{Call, Fault, Kernel, Observer, State};
    use testing::{block_on, in_namespace, sh};

    use super::*;
    use crate::observed::Interest;

    const OWNED: Owned = Owned {
        tables: &[Table::Nat],
        interest: |table, chain| match (table, chain) {
            (Table::Nat, "KUBE-SERVICES") => Interest::Whole,
            _ => Interest::Foreign,
        },
        shared: None,
    };

    /// The engines when no program is installed.
    fn nothing() -> Engines {
        block_on(Engines::of(Family::V4, std::iter::empty()))
    }

    /// Refuses all lists for lack of memory.
    struct Unlisting;

    impl Observer for Unlisting {
        fn before(&mut self, call: Call, _: &mut State) -> Fault {
            match call {
                Call::Dump(_) => Fault::Refused(Errno::ENOMEM, 0),
                _ => Fault::None,
            }
        }

        fn after(&mut self, _: Call, _: &mut State) {}
    }

    #[test]
    fn chains_that_cannot_be_listed_are_not_absent() {
        let kernel = Kernel::new(Unlisting);
        let _entered = kernel.enter();
        let unlisted = |error: Error| matches!(error, Error::Unlisted { .. });
        assert!(OWNED.may_be_there());
        let found = block_on(OWNED.is_there(&Preserved::nothing()));
        assert!(found.is_err_and(unlisted));
        let listed = block_on(OWNED.list(&Preserved::nothing()));
        assert!(listed.is_err_and(unlisted));
        let reached = OWNED.within_reach(Family::V4, &nothing(), &Preserved::nothing());
        assert!(reached.is_err_and(unlisted), "some may be left");
        let read = Error::Absent { family: Family::V4 };
        let is_ours = |table, chain: &str| OWNED.is_ours(table, chain);
        let removed = unread(read, Family::V4, Engine::NfTables, is_ours);
        assert!(removed.is_err(), "the table may have some");
    }

    #[test]
    fn chains_are_not_reported_as_removed_where_a_program_does_not_say_its_engine() {
        in_namespace(|| {
            let programs = [Xtables::in_folder(Family::V4, Path::new("/nowhere"))].into_iter();
            let engines = block_on(Engines::of(Family::V4, programs));
            let reached = |preserved| OWNED.within_reach(Family::V4, &engines, &preserved);
            assert!(reached(Preserved::nothing()).is_ok(), "there is no table");
            sh("iptables-legacy -w -t nat -N OTHER");
            let error = reached(Preserved::nothing()).unwrap_err();
            assert!(matches!(error, Error::Unidentified { .. }), "{error}");
            assert!(reached(Preserved::all(vec![(Family::V4, Engine::Legacy)])).is_ok());
        });
    }

    #[test]
    fn chains_that_no_program_reaches_are_not_reported_as_removed() {
        in_namespace(|| {
            let nft = |args: &str| {
                let mut command = std::process::Command::new("iptables-nft");
                let status = command.args(args.split(' ')).status();
                assert!(status.unwrap().success(), "{args}");
            };
            let reached = |preserved| OWNED.within_reach(Family::V4, &nothing(), &preserved);
            nft("-t filter -N KUBE-SERVICES");
            nft("-t nat -N KUBE-SERVICE");
            assert!(reached(Preserved::nothing()).is_ok());
            nft("-t nat -N KUBE-SERVICES");
            let error = reached(Preserved::nothing()).unwrap_err();
            assert!(matches!(error, Error::Absent { .. }), "{error}");
            let own = vec![(Family::V4, Engine::NfTables)];
            assert!(reached(Preserved::all(own.clone())).is_ok());
            let shared = Preserved::chains(own, &[(Table::Nat, "KUBE-SERVICES")]);
            assert!(reached(shared).is_ok());
        });
    }
}
