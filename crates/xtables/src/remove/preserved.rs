//! Chains that stay when others are removed while a mode runs.

use net::Family;

use crate::{Engine, rule::Table};

/// Rules that stay when others are removed: those of a running mode.
#[derive(Clone, Debug, Default)]
pub struct Preserved {
    engines: Vec<(Family, Engine)>,
    /// `None`: all chains.
    chains: Option<&'static [(Table, &'static str)]>,
}

impl Preserved {
    /// Returns a value with which nothing stays.
    pub fn nothing() -> Preserved {
        Preserved::default()
    }

    /// Returns a value with which all that is in these engines stays.
    pub fn all(engines: Vec<(Family, Engine)>) -> Preserved {
        let chains = None;
        Preserved { engines, chains }
    }

    /// Returns a value with which, in these engines, chains of these names stay, with
    /// the rules that jump to them.
    pub fn chains(
        engines: Vec<(Family, Engine)>,
        names: &'static [(Table, &'static str)],
    ) -> Preserved {
        let chains = Some(names);
        Preserved { engines, chains }
    }

    /// Returns true if all that some engine has stays.
    pub fn has_all_of_some(&self) -> bool {
        self.chains.is_none() && !self.engines.is_empty()
    }

    /// Returns true if nothing in this engine may be removed.
    pub fn has_all_of(&self, family: Family, engine: Engine) -> bool {
        self.chains.is_none() && self.engines.contains(&(family, engine))
    }

    /// Returns true if this chain stays.
    pub fn has(&self, family: Family, engine: Engine, chain: (Table, &str)) -> bool {
        self.engines.contains(&(family, engine))
            && self.chains.is_none_or(|names| names.contains(&chain))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stays_depends_on_the_engine() {
        let own = vec![(Family::V4, Engine::Legacy)];
        let shared = (Table::Nat, "KUBE-SERVICES");
        let mine = (Table::Nat, "KUBE-LOAD-BALANCER");
        let all = Preserved::all(own.clone());
        let one = Preserved::chains(own, &[(Table::Nat, "KUBE-SERVICES")]);
        for (preserved, all, of_shared, of_mine) in [
            (Preserved::nothing(), false, false, false),
            (all, true, true, true),
            (one, false, true, false),
        ] {
            for (family, engine, here) in [
                (Family::V4, Engine::Legacy, true),
                (Family::V4, Engine::NfTables, false),
                (Family::V6, Engine::Legacy, false),
            ] {
                let has = |chain| preserved.has(family, engine, chain);
                assert_eq!(preserved.has_all_of(family, engine), all && here);
                assert_eq!(has(shared), of_shared && here);
                assert_eq!(has(mine), of_mine && here);
            }
        }
    }
}
