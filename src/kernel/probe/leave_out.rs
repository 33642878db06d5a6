//! Excludes abilities that were found: to avoid a match that is broken in this kernel, and to test
//! how modes work without it.

use std::{collections::BTreeSet, sync::Arc};

use super::{Ability, Extension, Kernel, Unable};

/// The reason given for an excluded ability.
const WHY: &str = "excluded by --without";

/// Schedulers that modules of IPVS have (`net/netfilter/ipvs/Kconfig`).
const SCHEDULERS: [&str; 15] = [
    "dh", "fo", "lblc", "lblcr", "lc", "mh", "nq", "ovf", "random", "rr", "sed", "sh", "twos",
    "wlc", "wrr",
];

/// Returns everything that `--without` can name: the abilities that modes ask a [`Kernel`] for
/// before they use them.
fn abilities() -> Vec<Ability> {
    let mut all = Ability::all(&SCHEDULERS.map(str::to_owned));
    all.retain(Ability::can_be_left_out);
    all
}

/// Abilities that must not be used, whether they are there or not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaveOut(BTreeSet<Ability>);

impl LeaveOut {
    /// Adds the abilities that `word` names, in both families.
    ///
    /// # Errors
    /// When it names nothing; the error lists what can be named.
    pub fn add(&mut self, word: &str) -> Result<(), String> {
        let mut all = abilities();
        all.retain(|ability| ability.word() == word);
        if all.is_empty() {
            let mut known: Vec<_> = abilities().iter().map(Ability::word).collect();
            known.sort_unstable();
            known.dedup();
            return Err(format!(
                "unknown feature {word:?}; the features are {}",
                known.join(", ")
            ));
        }
        self.0.extend(all);
        Ok(())
    }

    /// Returns whether nothing is left out.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns each of them in one word.
    pub fn words(&self) -> BTreeSet<String> {
        let words = self.0.iter().map(|ability| ability.word().into_owned());
        words.collect()
    }
}

impl Kernel {
    /// Returns the same kernel without those abilities.
    #[must_use]
    pub fn leaving_out(mut self, left_out: &LeaveOut) -> Kernel {
        let left_out_why = || Unable::Missing(WHY.to_owned());
        for ability in &left_out.0 {
            self.record(ability.clone(), Err(left_out_why()));
            if let Ability::Extension(family, Extension::Masquerade) = ability {
                let rest = Ability::Extension(*family, Extension::RandomFully);
                self.record(rest, Err(left_out_why()));
            }
        }
        self
    }

    /// The names of the schedulers of IPVS that are left out.
    pub fn left_out_schedulers(&self) -> BTreeSet<Arc<str>> {
        let tried = self.tried.iter();
        let left_out =
            tried.filter(|(_, tried)| matches!(tried, Err(Unable::Missing(why)) if why == WHY));
        left_out
            .filter_map(|(ability, _)| match ability {
                Ability::Scheduler(name) => Some(name.as_str().into()),
                _ => None,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use net::Family;

    use super::*;

    #[test]
    fn words_are_unique_and_know_both_families() {
        let mut left_out = LeaveOut::default();
        for ability in abilities() {
            let word = ability.word();
            assert!(!word.contains([',', ' ', '"']), "{word}");
            left_out.add(&word).unwrap();
        }
        let all: BTreeSet<Ability> = abilities().into_iter().collect();
        assert_eq!(left_out.0, all, "each has a word of its own");
        let mut one = LeaveOut::default();
        one.add("recent").unwrap();
        let both = Family::ALL.map(|family| Ability::Extension(family, Extension::Recent));
        assert_eq!(one.0, both.into());
        assert_eq!(one.words(), ["recent".to_owned()].into());
    }

    #[test]
    fn an_unknown_word_names_the_known_ones() {
        let error = LeaveOut::default().add("xt_recent").unwrap_err();
        for word in [
            "\"xt_recent\"",
            "recent",
            "ipset-hash-ip-port",
            "ipvs-wrr",
            "dummy",
        ] {
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn what_is_left_out_is_nowhere_to_be_had() {
        let kernel = Kernel::with_everything(&["rr".to_owned(), "wrr".to_owned()]);
        let mut left_out = LeaveOut::default();
        for word in ["recent", "nat", "ipvs-wrr"] {
            left_out.add(word).unwrap();
        }
        let kernel = kernel.leaving_out(&left_out);
        for family in Family::ALL {
            assert!(!kernel.features(family).contains(Extension::Recent));
            assert!(kernel.features(family).contains(Extension::Comment));
            let error = kernel.toolkit(family).unwrap_err().to_string();
            assert!(error.contains(WHY), "{error}");
        }
        assert_eq!(kernel.left_out_schedulers(), ["wrr".into()].into());
    }
}
