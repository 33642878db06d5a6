//! Features of nf_tables. Each is tried in a rule of a temporary table. Packets do not reach these
//! rules, or are let through. The kernel takes milliseconds for each transaction, so all features
//! are tried in one; only if that is refused, each is tried by itself.

use std::{sync::Arc, time::Duration};

use enumset::EnumSet;
use net::Family;
use nftables::{
    Chain, ChainType, Ct, Data, DataType, Dynset, Failure, Fib, Field, Hook, Jhash, Meta, Numgen,
    Reject, Rule, Rules, Set, Statement, Table, Test, Transaction, Type,
};

use super::{
    Ability, Findings, Kernel, NftPart, Unable,
    answer::{Tried, found_or},
};

/// The temporary table.
pub(super) const TABLE: &str = "tripod-probe";

/// A mark that no packet has, so that the rest of the rule is not reached.
const UNUSED_MARK: u32 = 0x5472_6970;

/// Tries each feature in both families.
pub(super) fn parts(kernel: &mut Kernel, findings: Option<&Findings>) {
    for family in Family::ALL {
        let has_all = findings.is_none() && attempt(family, EnumSet::all()).is_ok();
        let mut tables = Ok(());
        for part in EnumSet::all() {
            let ability = Ability::Nftables(family, part);
            let outcome = match &tables {
                Ok(()) if has_all => Ok(()),
                Ok(()) => found_or(findings, &ability, || attempt(family, part.into())),
                Err(Unable::Missing(_)) => Err(Unable::Missing(
                    "there are no tables to use it in".to_owned(),
                )),
                Err(unknown) => Err(unknown.clone()),
            };
            if part == NftPart::Tables {
                tables = outcome.clone();
            }
            kernel.record(ability, outcome);
        }
    }
}

fn attempt(family: Family, parts: EnumSet<NftPart>) -> Tried {
    let mut rules = Rules::open()?;
    // A table left by a killed process would be in the way.
    rules.delete_table(family, TABLE)?;
    let outcome = rules.run(&transaction(family, parts), None);
    outcome.map_err(Failure::first)?;
    rules.delete_table(family, TABLE)?;
    Ok(())
}

fn transaction(family: Family, parts: EnumSet<NftPart>) -> Transaction {
    let mut transaction = Transaction::new(Table::new(family, TABLE));
    transaction.add_table();
    for part in parts {
        add(&mut transaction, family, part);
    }
    transaction
}

/// Adds a chain for the feature, with a rule that uses it.
fn add(transaction: &mut Transaction, family: Family, part: NftPart) {
    let (kind, hook) = match part {
        NftPart::Nat => (ChainType::Nat, Hook::Prerouting),
        NftPart::Masquerade => (ChainType::Nat, Hook::Postrouting),
        NftPart::Reject => (ChainType::Filter, Hook::Input),
        _ => (ChainType::Filter, Hook::Prerouting),
    };
    let (set, statement) = used(family, part);
    transaction.add_chain(Chain::base(part.word(), kind, hook, 0));
    if let Some(set) = &set {
        transaction.add_set(set);
    }
    let unmatched = Test::Is(UNUSED_MARK.to_ne_bytes().to_vec());
    let unmatched = Statement::Match(Field::Meta(Meta::Mark), unmatched);
    transaction.add_rule(part.word(), Rule::new([unmatched, statement]));
}

/// Returns a statement that uses the feature, and its set, if any.
fn used(family: Family, part: NftPart) -> (Option<Arc<Set>>, Statement) {
    let address = DataType::address(family);
    let number = |number: u32| Test::Is(number.to_ne_bytes().to_vec());
    let key = || {
        vec![
            Field::DestinationAddress(family),
            Field::Meta(Meta::L4Proto),
        ]
    };
    let types = || Type::Named(vec![address, DataType::Protocol]);
    let endpoint = || vec![Field::DestinationAddress(family), Field::DestinationPort];
    let endpoints = || Data::Values(Type::Of(endpoint()));
    match part {
        NftPart::Tables => {
            let set = Arc::new(Set::map(part.word(), types(), Data::Verdict));
            let statement = Statement::VerdictMap(key(), (&*set).into());
            (Some(set), statement)
        }
        NftPart::Ct => (
            None,
            Statement::Match(Field::Ct(Ct::State, None), Test::Any(8)),
        ),
        NftPart::Nat => {
            let set = Arc::new(Set::map(part.word(), Type::Of(key()), endpoints()));
            let statement = Statement::Dnat(family, key(), (&*set).into());
            (Some(set), statement)
        }
        NftPart::Masquerade => (None, Statement::Masquerade),
        NftPart::Ranges => {
            let set = Arc::new(Set {
                interval: true,
                ..Set::new(part.word(), types())
            });
            let statement = Statement::In(key(), (&*set).into());
            (Some(set), statement)
        }
        NftPart::Numgen => {
            let numgen = Numgen {
                random: true,
                modulus: 2,
                offset: 0,
            };
            (None, Statement::Match(Field::Numgen(numgen), number(0)))
        }
        NftPart::Hash => {
            let hash = Jhash {
                of: vec![Field::SourceAddress(family)],
                modulus: 2,
                seed: 1,
                offset: 0,
            };
            (None, Statement::Match(Field::Jhash(hash), number(0)))
        }
        NftPart::Fib => {
            let fib = Field::Fib(Fib::Destination);
            (None, Statement::Match(fib, number(2)))
        }
        NftPart::Reject => (None, Statement::Reject(Reject::PortUnreachable(family))),
        NftPart::DynamicMaps => {
            let set = dynamic_map(part, key(), endpoints());
            let statement = update(&set, key(), endpoint());
            (Some(set), statement)
        }
        NftPart::Counters => {
            let set = Arc::new(Set {
                counter: true,
                ..Set::new(part.word(), types())
            });
            let statement = Statement::In(key(), (&*set).into());
            (Some(set), statement)
        }
        NftPart::ConnectionCounts => {
            let set = dynamic(Set::new(part.word(), types()));
            let statement = Statement::ConnectionsOfKeyOver((&*set).into(), key(), 1);
            (Some(set), statement)
        }
    }
}

/// A map that rules update.
fn dynamic_map(part: NftPart, key: Vec<Field>, data: Data) -> Arc<Set> {
    dynamic(Set {
        timeouts: true,
        ..Set::map(part.word(), Type::Of(key), data)
    })
}

fn dynamic(set: Set) -> Arc<Set> {
    Arc::new(Set {
        dynamic: true,
        size: Some(16),
        ..set
    })
}

/// A statement that writes an element with a timeout.
fn update(set: &Set, key: Vec<Field>, data: Vec<Field>) -> Statement {
    Statement::Dynset(Dynset {
        set: set.into(),
        key,
        timeout: Duration::from_secs(1),
        data,
    })
}

#[cfg(test)]
mod tests {
    use testing::in_namespace;

    use super::*;

    #[test]
    fn this_kernel_has_all_of_it_and_nothing_is_left() {
        in_namespace(|| {
            let mut kernel = Kernel::default();
            parts(&mut kernel, None);
            for family in Family::ALL {
                for part in EnumSet::all() {
                    let ability = Ability::Nftables(family, part);
                    assert_eq!(kernel.why_unusable(&ability), None, "{ability}");
                }
                assert!(Rules::open().unwrap().tables(family).unwrap().is_empty());
            }
        });
    }

    #[test]
    fn what_cannot_be_had_is_missing() {
        // A rule in a chain that the kernel does not have.
        in_namespace(|| {
            let mut transaction = transaction(Family::V4, NftPart::Ct.into());
            transaction.add_rule("nowhere", Rule::default());
            let refused = Rules::open().unwrap().run(&transaction, None);
            let unable = Unable::from(refused.map_err(Failure::first).unwrap_err());
            assert!(matches!(unable, Unable::Missing(_)), "{unable:?}");
        });
    }
}
