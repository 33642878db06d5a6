//! The kernel's two engines for these rules, and the choice of one for this node.
//!
//! The kernel applies the rules of both at once, in an order that is hard to reason about; so every
//! component of a node must use the same engine. Components that run in containers cannot ask the
//! node's own programs. They follow a convention instead (Kubernetes' `iptables-wrappers`): the
//! kubelet leaves a chain whose name is a hint; without one, the engine with more rules is used.

use std::{ffi::OsStr, fs, path::Path};

use nix::libc::IPPROTO_RAW;
use socket2::{Domain, Protocol, Type};

use super::{
    Error, Family, Xtables,
    features::{self, Features},
    rule::Table,
    words::Line,
};

/// Which of the kernel's two engines a program speaks to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Engine {
    /// The kernel's nf_tables, by way of `iptables-nft`.
    NfTables,
    /// The kernel's x_tables, by way of `iptables-legacy`.
    Legacy,
}

/// Chains in table mangle that the kubelet makes in the engine that it uses.
pub const HINTS: [&str; 2] = ["KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"];
/// Tables that are searched for rules.
const TABLES: [&str; 4] = ["mangle", "filter", "nat", "raw"];
/// How many chains can be read in a moment.
const MANY: usize = 2_000;

/// Evidence that the node uses an engine. A hint counts more than any number of rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Signs {
    hint: bool,
    rules: usize,
}

/// Returns the legacy tables of `family` that exist.
pub fn legacy_tables(family: Family) -> Vec<String> {
    let list = match family {
        Family::V4 => "/proc/thread-self/net/ip_tables_names",
        Family::V6 => "/proc/thread-self/net/ip6_tables_names",
    };
    let names = fs::read_to_string(list).unwrap_or_default();
    names.lines().map(str::to_owned).collect()
}

impl Engine {
    /// Returns whether it holds `table` of `family` already. Reading a legacy table
    /// through its program would create it.
    pub fn has_table(self, family: Family, table: &str) -> bool {
        if self == Engine::Legacy {
            return legacy_tables(family).iter().any(|name| name == table);
        }
        let tables = nftables::Rules::open().and_then(|mut rules| rules.tables(family));
        // If the kernel cannot be asked here, the program may still see the table; if the program
        // fails, too, its message explains best why.
        tables.map_or(true, |tables| {
            tables.iter().any(|known| known.name == table)
        })
    }

    /// Lists the tables of `family` that are worth reading for chains that `concern` the caller, by
    /// table and name. For nf_tables the chains are listed first, because its program reads all
    /// rules of all tables to print one; for legacy, all present tables are returned.
    pub fn tables_with(
        self,
        family: Family,
        concern: impl Fn(&str, &str) -> bool,
    ) -> Vec<&'static str> {
        let mut found = Vec::new();
        if self == Engine::NfTables {
            let each = |chain: nftables::ListedChain| {
                let table = TABLES.into_iter().find(|table| *table == chain.table);
                if let Some(table) = table
                    && !found.contains(&table)
                    && concern(table, &chain.chain.name)
                {
                    found.push(table);
                }
            };
            if list_chains(family, each).is_ok() {
                return found;
            }
        }
        let there = TABLES.into_iter();
        there
            .filter(|table| self.has_table(family, table))
            .collect()
    }
}

/// A search for programs, and the features known beforehand.
#[derive(Clone, Copy)]
pub struct Search<'a> {
    /// Programs of this family.
    pub family: Family,
    /// A program that works is taken although another one did not answer.
    pub settles: bool,
    /// Features by engine that were detected in a namespace of their own, for processes that cannot
    /// create one; `None`: there are none.
    pub known: Option<&'a dyn Fn(Family, Engine) -> Option<Features>>,
}

impl Search<'_> {
    /// Returns a search for programs of `family`, of which nothing is known.
    pub fn new(family: Family) -> Search<'static> {
        Search {
            family,
            settles: false,
            known: None,
        }
    }

    pub(super) fn known(&self, engine: Engine) -> Option<Features> {
        self.known.and_then(|known| known(self.family, engine))
    }
}

/// Hands the chains of `family` that nf_tables has to `each`, without their rules.
///
/// # Errors
/// When it cannot be asked.
pub(super) fn list_chains(
    family: Family,
    each: impl FnMut(nftables::ListedChain),
) -> Result<(), netlink::Error> {
    nftables::Rules::open()?.chains(family, each)
}

/// Whether this process may use `engine`, where it is known to work.
///
/// # Errors
/// Why it may not.
fn may_run(engine: Engine) -> Result<(), Error> {
    let tried = match engine {
        // Whether netlink may be used was tried before.
        Engine::NfTables => Ok(()),
        // The raw socket by which its program speaks to the kernel: CAP_NET_RAW.
        Engine::Legacy => {
            socket2::Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(IPPROTO_RAW)))
                .map(drop)
        }
    };
    tried.map_err(|source| Error::Run {
        program: "iptables-legacy".to_owned(),
        source,
    })
}

impl Xtables {
    /// Returns the programs for the engine that this node's other components use; if no
    /// sign shows it, the node owner's choice, as far as the kernel can do it; nothing is
    /// changed.
    ///
    /// # Errors
    /// When none works, or when some did not answer; with each one's message.
    pub async fn chosen(search: &Search<'_>) -> Result<(Xtables, Engine), Error> {
        Xtables::chosen_of(Xtables::installed(search.family), search).await
    }

    /// As [`chosen`](Self::chosen), of these `programs`.
    async fn chosen_of(
        programs: impl Iterator<Item = Xtables>,
        search: &Search<'_>,
    ) -> Result<(Xtables, Engine), Error> {
        let family = search.family;
        let (mut found, mut reasons, mut unanswered) = (Vec::new(), Vec::new(), false);
        // One that can read the tables of Services, but not mangle.
        let mut without_mangle = None;
        for xtables in programs {
            let engine = match xtables.engine().await {
                Ok(engine) if found.iter().any(|(_, seen)| *seen == engine) => continue,
                engine => engine,
            };
            let usable = async {
                let engine = engine?;
                match search.known(engine) {
                    Some(_) => may_run(engine)?,
                    None => works(&xtables, engine).await?,
                }
                xtables.is_readable(engine).await.map(|()| engine)
            };
            match usable.await {
                Ok(engine) => found.push((xtables, engine)),
                Err(error) => {
                    unanswered |= error.is_unanswered();
                    reasons.push(error.to_string());
                    if error.is_about_mangle() && xtables.reads_other_tables().await {
                        without_mangle = Some((xtables, Engine::NfTables));
                    }
                }
            }
        }
        if reasons.is_empty() {
            reasons.push("iptables-restore is not installed (Debian package iptables)".to_owned());
        }
        let reason = reasons.join("; ");
        // The program that did not answer may belong to the engine that the node uses.
        if unanswered && (found.is_empty() || !search.settles) {
            return Err(Error::Unknown { family, reason });
        }
        match found.len() {
            0 => without_mangle.ok_or(Error::Unusable { family, reason }),
            1 => Ok(found.swap_remove(0)),
            _ => {
                let signs = match signs(&found).await {
                    Err(error) if !search.settles => return Err(error),
                    signs => signs.unwrap_or_default(),
                };
                let best = preferred(&signs);
                Ok(found.swap_remove(best))
            }
        }
    }

    /// Returns the engine that its programs speak to.
    ///
    /// # Errors
    /// When the program cannot be run.
    pub async fn engine(&self) -> Result<Engine, Error> {
        // The name shows it, of upstream's programs; asking takes a process.
        let path = self.restore.path.canonicalize();
        match path
            .as_deref()
            .ok()
            .and_then(Path::file_name)
            .and_then(OsStr::to_str)
        {
            Some("xtables-nft-multi") => return Ok(Engine::NfTables),
            Some("xtables-legacy-multi") => return Ok(Engine::Legacy),
            _ => {}
        }
        let output = self.restore.run(&["--version"], "").await?;
        let text = self.restore.checked(output, "")?;
        Ok(if text.contains("nf_tables") {
            Engine::NfTables
        } else {
            Engine::Legacy
        })
    }

    /// Checks that iptables can read the tables that our rules go to. Tables with many chains are
    /// taken for iptables' own without being read, which takes seconds and is left to the first
    /// sync.
    ///
    /// # Errors
    /// With the error of the first table that it cannot read.
    async fn is_readable(&self, engine: Engine) -> Result<(), Error> {
        let mut chains = 0;
        let count = |chain: nftables::ListedChain| {
            chains += usize::from(Table::named(&chain.table).is_some());
        };
        if engine == Engine::NfTables {
            // If the kernel cannot be asked, the first sync reports that.
            let _ = list_chains(self.family, count);
        }
        if (1..MANY).contains(&chains)
            && let Err(error @ Error::Incompatible { .. }) = self.read(None, |_| {}).await
        {
            return Err(error);
        }
        Ok(())
    }

    /// Returns whether iptables-nft can read each table that all modes need.
    async fn reads_other_tables(&self) -> bool {
        for table in [Table::Filter, Table::Nat] {
            if self.read(Some(table.name()), |_| {}).await.is_err() {
                return false;
            }
        }
        true
    }

    /// # Errors
    /// When the rules could not be read, which is no sign.
    async fn signs(&self, engine: Engine) -> Result<Signs, Error> {
        let mut signs = Signs::default();
        for table in engine.tables_with(self.family, |_, _| true) {
            let each = |line: &str| match Line::parse(line) {
                Some(Line::Rule { .. }) => signs.rules += 1,
                Some(Line::Chain(chain)) => signs.hint |= HINTS.contains(&chain),
                None => {}
            };
            // A table that can never be read shows no sign.
            let read = self.read(Some(table), each).await;
            if let Err(error) = read
                && error.is_unanswered()
            {
                return Err(error);
            }
        }
        Ok(signs)
    }
}

/// Collects the evidence for each engine.
///
/// # Errors
/// When that is not known.
async fn signs(found: &[(Xtables, Engine)]) -> Result<Vec<Signs>, Error> {
    let mut signs = Vec::new();
    for (xtables, engine) in found {
        signs.push(match engine {
            Engine::NfTables => listed(xtables.family)?,
            Engine::Legacy => xtables.signs(*engine).await?,
        });
    }
    let hints = signs.iter().filter(|signs| signs.hint).count();
    let engines_with_rules = signs.iter().filter(|signs| signs.rules > 0).count();
    if hints != 1 && engines_with_rules > 1 {
        // Now numbers count.
        for (signs, (xtables, engine)) in signs.iter_mut().zip(found) {
            *signs = xtables.signs(*engine).await?;
        }
    }
    Ok(signs)
}

/// Collects the evidence for nf_tables, without reading its rules: there are some if chains are in
/// use.
fn listed(family: Family) -> Result<Signs, Error> {
    let mut signs = Signs::default();
    let each = |chain: nftables::ListedChain| {
        if TABLES.contains(&chain.table.as_str()) {
            signs.rules |= usize::from(chain.uses > 0);
            signs.hint |= HINTS.contains(&chain.chain.name.as_str());
        }
    };
    match list_chains(family, each) {
        Err(error) if error.is_passing() => Err(Error::Unknown {
            family,
            reason: error.to_string(),
        }),
        // Rules that can never be read show no sign.
        _ => Ok(signs),
    }
}

/// Index of the engine to use: of equal ones the first, which is the node owner's choice.
fn preferred(found: &[Signs]) -> usize {
    let best = found.iter().max();
    best.and_then(|best| found.iter().position(|signs| signs == best))
        .unwrap_or(0)
}

/// Tries the rules that every choice needs: rules in table nat, with one target or the other.
///
/// # Errors
/// Why the first does not work.
async fn works(xtables: &Xtables, engine: Engine) -> Result<(), Error> {
    if engine == Engine::Legacy {
        xtables.try_lock().await?;
    }
    let dnat = features::dnat(xtables.family);
    match xtables.try_rule(Table::Nat, &dnat).await {
        Ok(()) => Ok(()),
        // It did not run to its end, and would not with the other target either, at least not now.
        Err(error) if matches!(error, Error::Run { .. }) || error.is_unanswered() => Err(error),
        Err(error) => {
            let redirect = xtables.try_rule(Table::Nat, &features::redirect()).await;
            redirect.map_err(|other| if other.is_unanswered() { other } else { error })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nix::sched::{CloneFlags, unshare};
    use testing::{block_on, in_namespace, sh};

    use super::*;
    use crate::extension::Extension;

    #[test]
    fn a_hint_beats_rules_and_rules_beat_the_owners_choice() {
        let signs = |hint, rules| Signs { hint, rules };
        let cases = [
            ([signs(false, 0), signs(false, 0)], 0),
            ([signs(false, 3), signs(false, 3)], 0),
            ([signs(false, 3), signs(false, 4)], 1),
            ([signs(false, 900), signs(true, 0)], 1),
            ([signs(true, 0), signs(true, 9)], 1),
        ];
        for (found, best) in cases {
            assert_eq!(preferred(&found), best, "{found:?}");
        }
    }

    /// Runs `test` in a fresh namespace after `script`.
    fn after(script: &'static str, test: impl AsyncFnOnce() + Send + 'static) {
        in_namespace(move || {
            sh(script);
            block_on(test());
        });
    }

    /// The engine chosen in a fresh namespace after `script`.
    fn choice(script: &'static str, then: fn(Engine)) {
        after(script, async move || {
            let (_, engine) = Xtables::chosen(&Search::new(Family::V4)).await.unwrap();
            then(engine);
        });
    }

    #[test]
    fn the_engine_of_the_nodes_other_components_is_chosen() {
        choice("", |_| {
            let names = fs::read_to_string("/proc/thread-self/net/ip_tables_names");
            assert_eq!(names.unwrap_or_default(), "", "looking creates nothing");
        });
        choice(
            "iptables-nft -A INPUT -j ACCEPT; iptables-nft -A INPUT -j ACCEPT
             iptables-legacy -w -t mangle -N KUBE-IPTABLES-HINT",
            |engine| assert_eq!(engine, Engine::Legacy),
        );
        choice("iptables-legacy -w -A INPUT -j ACCEPT", |engine| {
            assert_eq!(engine, Engine::Legacy);
        });
        choice(
            "iptables-legacy -w -A INPUT -j ACCEPT; iptables-nft -t mangle -N KUBE-KUBELET-CANARY",
            |engine| assert_eq!(engine, Engine::NfTables),
        );
    }

    async fn of(engine: Engine) -> Xtables {
        let all = Xtables::engines(Family::V4).await;
        let writer = all.writer(engine).expect("both are installed");
        writer.xtables.clone()
    }

    /// A rule that iptables cannot express, in the chain that iptables would use.
    const OF_NFT: &str = "nft 'add table ip nat
        add chain ip nat PREROUTING { type nat hook prerouting priority -100; }
        add rule ip nat PREROUTING tcp dport 99 dnat to 10.2.2.2:9'";

    const MANGLE_OF_NFT: &str = "nft 'add table ip mangle
        add chain ip mangle PREROUTING { type filter hook prerouting priority -150; }
        add rule ip mangle PREROUTING meta mark set numgen inc mod 2'";

    /// Only table mangle, in which few packets of Services match a rule.
    #[test]
    fn a_mangle_table_that_cannot_be_read_leaves_iptables_nft_if_it_is_alone() {
        in_namespace(|| {
            sh(MANGLE_OF_NFT);
            block_on(async {
                let search = Search::new(Family::V4);
                let (nft, legacy) = (of(Engine::NfTables).await, of(Engine::Legacy).await);
                let (_, engine) = Xtables::chosen(&search).await.unwrap();
                assert_eq!(engine, Engine::Legacy);
                let alone = [nft.clone()].into_iter();
                let (_, engine) = Xtables::chosen_of(alone, &search).await.unwrap();
                assert_eq!(engine, Engine::NfTables);
                let both = [nft.clone(), legacy].into_iter();
                let (_, engine) = Xtables::chosen_of(both, &search).await.unwrap();
                assert_eq!(engine, Engine::Legacy);
                sh(OF_NFT);
                let chosen = Xtables::chosen_of([nft].into_iter(), &search).await;
                assert!(matches!(chosen, Err(Error::Unusable { .. })), "{chosen:?}");
            });
        });
    }

    #[test]
    fn a_table_that_iptables_cannot_read_is_not_taken_for_an_empty_one() {
        after(OF_NFT, async || {
            let nft = of(Engine::NfTables).await;
            let read = nft.read(Some("nat"), |_| {}).await;
            assert!(matches!(read, Err(Error::Incompatible { .. })), "{read:?}");
            let saved = nft.saved("nat").await;
            assert!(
                matches!(saved, Err(Error::Incompatible { .. })),
                "{saved:?}"
            );
            let (_, engine) = Xtables::chosen(&Search::new(Family::V4)).await.unwrap();
            assert_eq!(engine, Engine::Legacy);
        });
        // In a chain of nft's own, which iptables would not use.
        after(
            "nft 'add table ip nat
             add chain ip nat prerouting { type nat hook prerouting priority -100; }
             add rule ip nat prerouting tcp dport 99 dnat to 10.2.2.2:9'
             iptables-nft -t nat -A OUTPUT -j ACCEPT",
            async || {
                let saved = of(Engine::NfTables).await.saved("nat").await.unwrap();
                assert!(saved.contains("-A OUTPUT -j ACCEPT"), "{saved}");
                let (_, engine) = Xtables::chosen(&Search::new(Family::V4)).await.unwrap();
                assert_eq!(engine, Engine::NfTables);
            },
        );
    }

    #[test]
    fn the_lock_of_the_node_does_not_keep_rules_from_being_tried() {
        // All programs share the lock of the mount namespace.
        after("", async || {
            unshare(CloneFlags::CLONE_NEWNS).unwrap();
            sh("mount --make-rprivate / && mount -t tmpfs none /run");
            let lock = fs::File::create("/run/xtables.lock").unwrap();
            lock.lock().unwrap();
            let legacy = of(Engine::Legacy).await;
            let tried = async {
                works(&legacy, Engine::Legacy).await.unwrap();
                features::probe(&legacy).await
            };
            let features = tokio::time::timeout(Duration::from_secs(4), tried).await;
            let features = features.expect("it waits for the lock").there;
            let found = [Extension::Comment, Extension::Masquerade]
                .into_iter()
                .collect();
            assert!(features.is_superset(found), "{features:?}");
        });
    }
}
