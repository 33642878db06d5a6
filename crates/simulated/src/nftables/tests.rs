//! The model against this machine's kernel: random transactions have the same outcome and
//! leave the same.

use std::sync::Arc;

use net::Family;
use nftables::{
    Chain, ChainType, Data, DataType, Datum, Element, Failure, Field, Hook, Rule, Rules, Set,
    Statement, Table, Transaction, Type, Value, Verdict, concat,
};
use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};
use testing::{cases, in_namespace};

use crate::{Faultless, Kernel};

/// How many random programs there are.
const CASES: u32 = 60;
const FAMILY: Family = Family::V4;
const TABLE: &str = "tripod-model";

struct Sets {
    keys: Arc<Set>,
    verdicts: Arc<Set>,
    ranges: Arc<Set>,
    of_pairs: Arc<Set>,
}

impl Sets {
    fn new() -> Sets {
        let address = || Type::Named(vec![DataType::Ipv4]);
        let pair = Type::Named(vec![DataType::Ipv4, DataType::Port]);
        let interval = |set| Set {
            interval: true,
            ..set
        };
        Sets {
            keys: Arc::new(Set::new("keys", address())),
            verdicts: Arc::new(Set::map("verdicts", address(), Data::Verdict)),
            ranges: Arc::new(interval(Set::new("ranges", address()))),
            of_pairs: Arc::new(interval(Set::new("of-pairs", pair))),
        }
    }
}

fn ip(last: u8) -> Value {
    Value::Ip([10, 0, 0, last].into())
}

fn chain(choice: u8) -> String {
    ["a", "b", "c"][usize::from(choice % 3)].to_owned()
}

fn verdict(choice: u8) -> Verdict {
    match choice % 5 {
        0 => Verdict::Drop,
        1 => Verdict::Jump(chain(choice / 5).into()),
        _ => Verdict::Goto(chain(choice / 5).into()),
    }
}

/// Appends the step that these numbers choose.
fn add(transaction: &mut Transaction, sets: &Sets, (what, one, other): (u8, u8, u8)) {
    let pair = |last: u8, port: u16| concat(&[ip(last), Value::Port(port)]);
    // Ranges that are apart, as those of plans are.
    let (low, high) = (10 * (one % 3), 10 * (one % 3) + 5);
    match what % 16 {
        0 if one == 0 => drop(transaction.delete_table()),
        0 | 1 => drop(transaction.add_table()),
        2 => drop(transaction.add_chain(Chain::new(chain(one)))),
        3 => {
            let base = Chain::base("base", ChainType::Filter, Hook::Input, 0);
            transaction.add_chain(base);
        }
        4 => drop(transaction.delete_chain(chain(one))),
        5 => drop(transaction.flush_chain(chain(one))),
        6 => {
            // Later chains only, so that there is no circle.
            let to = match (one % 3, other % 2) {
                (0, 0) => "b",
                (0 | 1, _) => "c",
                _ => return,
            };
            let jump = Statement::Verdict(Verdict::Jump(to.into()));
            transaction.add_rule(chain(one), Rule::new([jump]));
        }
        7 => {
            let set = (&*sets.keys).into();
            let found = Statement::In(vec![Field::DestinationAddress(FAMILY)], set);
            let rule = Rule::new([found, Statement::Verdict(Verdict::Drop)]);
            transaction.add_rule(chain(one), rule);
        }
        8 if one == 0 => {
            let all = [&sets.keys, &sets.verdicts, &sets.ranges, &sets.of_pairs];
            transaction.delete_set(all[usize::from(other % 4)]);
        }
        8 => {
            for set in [&sets.keys, &sets.verdicts, &sets.ranges, &sets.of_pairs] {
                transaction.add_set(set);
            }
        }
        9 | 10 => {
            let keys = [one % 4, 4 + other % 4].map(|last| Element::new(concat(&[ip(last)])));
            if what % 16 == 9 {
                transaction.add_elements(&sets.keys, keys.into());
            } else {
                transaction.delete_elements(&sets.keys, keys[..1].into());
            }
        }
        11 | 12 => {
            let key = concat(&[ip(one % 4)]);
            let element = Element::with(key, Datum::Verdict(verdict(other)));
            if what % 16 == 11 {
                transaction.add_elements(&sets.verdicts, vec![element]);
            } else {
                transaction.delete_elements(&sets.verdicts, vec![element]);
            }
        }
        13 => {
            let element = Element::range(concat(&[ip(low)]), concat(&[ip(high)]));
            if other.is_multiple_of(2) {
                transaction.add_elements(&sets.ranges, vec![element]);
            } else {
                transaction.delete_elements(&sets.ranges, vec![element]);
            }
        }
        _ => {
            let element = Element::range(pair(low, 80), pair(high, 80));
            if other.is_multiple_of(2) {
                transaction.add_elements(&sets.of_pairs, vec![element]);
            } else {
                transaction.delete_elements(&sets.of_pairs, vec![element]);
            }
        }
    }
}

/// The refusals of a transaction, in order.
fn outcome(ran: Result<(), Failure>) -> Vec<(Option<usize>, Option<usize>, String)> {
    match ran {
        Ok(()) => Vec::new(),
        Err(Failure::Refused(refused)) => refused
            .into_iter()
            .map(|one| {
                let errno = one.error.errno();
                (one.step, one.element, format!("{errno:?}"))
            })
            .collect(),
        Err(other) => panic!("{other}"),
    }
}

/// The content of the table, in a fixed order.
fn contents(rules: &mut Rules) -> Vec<String> {
    let Some(contents) = rules.contents(FAMILY, TABLE).unwrap() else {
        return Vec::new();
    };
    let mut lines = vec![format!("{}", contents.table)];
    for listed in &contents.chains {
        let rules = contents.rules.iter();
        let rules = rules.filter(|rule| rule.chain == listed.chain.name);
        let rules: Vec<_> = rules.map(|rule| &rule.expressions).collect();
        lines.push(format!("{:?} {} {rules:?}", listed.chain, listed.uses));
    }
    for (listed, elements) in contents.sets {
        lines.push(format!("{listed:?}"));
        let elements = elements.into_iter().map(Element::comparable);
        lines.extend(elements.map(|element| format!("{} {element:?}", listed.name)));
    }
    lines.sort();
    lines
}

#[test]
fn random_transactions_do_the_same_as_in_the_real_kernel() {
    let step = (any::<u8>(), 0..8u8, any::<u8>());
    let transaction = prop::collection::vec(step, 1..5);
    let program = prop::collection::vec(transaction, 3..20);
    in_namespace(move || {
        let sets = Sets::new();
        let mut runner = TestRunner::deterministic();
        for _ in 0..cases(CASES) {
            let program = program.new_tree(&mut runner).unwrap().current();
            let kernel = Kernel::new(Faultless);
            let mut model = {
                let _entered = kernel.enter();
                Rules::open().unwrap()
            };
            let mut real = Rules::open().unwrap();
            let _ = real.delete_table(FAMILY, TABLE);
            let mut before = [&mut real, &mut model].map(|rules| rules.generation().unwrap());
            for steps in &program {
                let mut transaction = Transaction::new(Table::new(FAMILY, TABLE));
                for step in steps {
                    add(&mut transaction, &sets, *step);
                }
                let ran = [&mut real, &mut model].map(|rules| {
                    let ran = outcome(rules.run(&transaction, None));
                    (ran, rules.generation().unwrap(), contents(rules))
                });
                let [
                    (real_ran, real_generation, real_has),
                    (ran, generation, has),
                ] = ran;
                assert_eq!(real_ran, ran, "{transaction}");
                assert_eq!(real_has, has, "{transaction}");
                let changes = [real_generation - before[0], generation - before[1]];
                assert_eq!(changes[0], changes[1], "{transaction}");
                before = [real_generation, generation];
            }
        }
    });
}
