//! Another program that changes tables of iptables: its own chains, and ours.

use std::{collections::BTreeSet, time::Duration};

use net::Family;
use simulated::{State, prints, xtables::Edit};
use testing::Random;
use xtables::Engine;

use super::process::SYNC_PERIOD;

/// Its chains: table, chain, the chain that jumps to it, and the rule that jumps.
const CHAINS: [(&str, &str, &str, &str); 2] = [
    ("nat", "DOCKER", "PREROUTING", "-j DOCKER"),
    ("filter", "DOCKER-USER", "FORWARD", "-j DOCKER-USER"),
];

/// Changes something, possibly the chains of `tables` that `is_ours` names. Returns the
/// family of the change if it was ours and is different now.
pub(super) fn edit(
    state: &mut State,
    random: &mut Random,
    tables: &[&'static str],
    is_ours: fn(&str) -> bool,
) -> Option<Family> {
    let family = random.one(&Family::ALL);
    let table = random.one(tables);
    let edit = match random.below(9) {
        0 => Edit::Flush,
        1 | 2 => Edit::FlushChain(is_ours, random.below(64)),
        3 | 4 => Edit::DeleteRule(is_ours, random.below(256)),
        5 => Edit::DeleteChains(is_ours),
        6 => Edit::Append(is_ours, random.below(64)),
        _ => {
            let (table, chain, from, _) = random.one(&CHAINS);
            state.edit(family, table, Edit::Enter { chain, from });
            return None;
        }
    };
    if prints() {
        println!("{family}: {edit:?} of table {table}");
    }
    state.edit(family, table, edit).then_some(family)
}

/// Returns those of its chains that exist and that a rule jumps to.
pub(super) fn chains(state: &State) -> BTreeSet<(Family, &'static str)> {
    let of_family = |family| {
        let all = CHAINS.into_iter();
        let there = all.filter(move |(table, _, from, rule)| {
            state.xtables.has_rule(family, table, from, rule)
        });
        there.map(move |(_, chain, ..)| (family, chain))
    };
    Family::ALL.into_iter().flat_map(of_family).collect()
}

/// Returns after how long a change is noticed that another process made in the chains of
/// `engine` while a sync ran. Of legacy tables only the sizes after the sync are known: the
/// next full sync notices the change.
pub(super) fn noticed_after_a_sync(engine: Engine, otherwise: Duration) -> Duration {
    match engine {
        Engine::NfTables => otherwise,
        Engine::Legacy => SYNC_PERIOD + Duration::from_secs(5),
    }
}
