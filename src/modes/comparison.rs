//! Differences between the kernel and the desired state, as `tripod diff` shows them. Nothing is
//! changed to find them.

use std::{fmt, sync::Arc};

use net::{Family, PerFamily};
use netlink::setting::Setting;
use xtables::{
    multiset::Multiset,
    observed::Chains,
    rule::{Rule, Table},
    transaction::{Action, Op},
    words::Words,
};

use super::SyncError;
use crate::services::ServicePortName;

/// Differences found in each family; `None`: the mode does not serve it.
pub type Compared = PerFamily<Option<Result<Vec<Difference>, SyncError>>>;

/// Something that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Difference {
    /// The ServicePort that it is for; `None`: for none alone, or that is not known.
    pub owner: Option<ServicePortName>,
    /// The object, in the words of the program that shows such objects.
    pub object: String,
    /// How it differs.
    pub found: Found,
}

/// How something differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Found {
    /// It should be there, and is not.
    Missing,
    /// It is there, but not as it should be.
    Altered,
    /// It is there, and nothing needs it.
    Unneeded,
}

impl Found {
    /// Returns the word for it.
    pub fn name(self) -> &'static str {
        match self {
            Found::Missing => "missing",
            Found::Altered => "altered",
            Found::Unneeded => "unneeded",
        }
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Returns how a rule of iptables is named, which has these `words`.
pub fn rule(table: Table, chain: &str, words: impl fmt::Display) -> String {
    format!("rule -A {chain} {words} of table {table}")
}

/// Returns how a chain of iptables is named.
pub fn chain(table: Table, chain: &str) -> String {
    format!("chain {chain} of table {table}")
}

/// Returns the same failure for both families.
pub fn both_failed(error: impl Into<SyncError>) -> Compared {
    let error = Arc::new(error.into());
    Compared::each(|_| Some(Err(SyncError::OfBoth(Arc::clone(&error)))))
}

/// Returns which of the `desired` rules a chain lacks, and which others it has, in any order;
/// `there` are those that it has.
pub fn of_rules(
    table: Table,
    chain: &str,
    desired: &[Rule],
    there: &[Words],
    family: Family,
) -> Vec<Difference> {
    let mut left: Multiset<&Words> = there.iter().collect();
    let difference = |words: &Words, found| Difference::new(None, rule(table, chain, words), found);
    let mut differences = Vec::new();
    for words in desired.iter().map(|rule| Words::of(rule, family)) {
        if !left.take(&words) {
            differences.push(difference(&words, Found::Missing));
        }
    }
    let unneeded = left.iter().map(|words| difference(words, Found::Unneeded));
    differences.extend(unneeded);
    differences.sort_unstable();
    differences
}

impl Difference {
    /// Returns a difference in `object`, which is for `owner` alone if there is one.
    pub fn new(
        owner: Option<&ServicePortName>,
        object: impl Into<String>,
        found: Found,
    ) -> Difference {
        Difference {
            owner: owner.cloned(),
            object: object.into(),
            found,
        }
    }

    /// Returns which settings of the kernel do not have the value that they should have.
    pub fn of_settings(settings: impl IntoIterator<Item = Setting>) -> Vec<Difference> {
        let differing = settings.into_iter().filter_map(|setting| setting.differs());
        differing
            .map(|differs| Difference::new(None, differs.to_string(), Found::Altered))
            .collect()
    }

    /// Describes the differences that a step of `owner` would repair in a rule set with these
    /// `chains`.
    pub fn of_step(
        owner: Option<&ServicePortName>,
        op: &Op,
        chains: &Chains,
        family: Family,
    ) -> Difference {
        let (table, name) = (op.table, &op.chain);
        let whole = || chain(table, name);
        let of_rule = |desired: &Rule| rule(table, name, desired.words(family));
        let (object, found) = match &op.action {
            Action::Fill(_) | Action::FillLast(_) if chains.contain(table, name) => {
                (whole(), Found::Altered)
            }
            Action::Fill(_) | Action::FillLast(_) => (whole(), Found::Missing),
            Action::Delete => (whole(), Found::Unneeded),
            Action::Insert(new) | Action::Append(new) => (of_rule(new), Found::Missing),
            Action::Raise(old, _) => (of_rule(old), Found::Altered),
            Action::Remove(words) => (rule(table, name, words), Found::Unneeded),
        };
        Difference::new(owner, object, found)
    }
}
