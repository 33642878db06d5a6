//! The result of a transaction: a table in memory that takes the kernel's requests.

use std::collections::BTreeMap;

use hashbrown::HashMap;
use nftables::{Datum, Element, Field, Rule, Statement, Step, Transaction, Verdict};

/// The first slot of endpoints on this node.
const LOCAL: u32 = 65_536;

/// The same for a range of ports, next to its first port.
const LOCAL_OF_RANGE: u32 = 32_768;

/// A table of nf_tables, as far as a transaction concerns it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Model {
    /// Elements of each set by their keys.
    sets: BTreeMap<Box<str>, Elements>,
    /// Rules of each chain.
    pub chains: BTreeMap<String, Vec<Rule>>,
}

type Elements = HashMap<Box<[u8]>, Element>;
/// Slots and their endpoints, by frontend and the first slot.
type BySlot = HashMap<(Box<[u8]>, u32), Vec<(u32, Element)>>;

impl Model {
    /// Runs a transaction.
    pub fn run(&mut self, transaction: &Transaction) {
        for step in transaction.made_of() {
            self.step(step);
        }
        self.check();
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::DeleteTable => *self = Model::default(),
            Step::AddTable => {}
            Step::AddSet(set) => {
                let new = self.sets.insert((*set.name).into(), Elements::new());
                assert!(new.is_none(), "{step:?}");
            }
            Step::DeleteSet(set) => {
                let was = self.sets.remove(&*set.name);
                assert!(was.is_some(), "{step:?}");
            }
            Step::AddChain(chain) => drop(self.chains.entry(chain.name.to_string()).or_default()),
            Step::AddRule(chain, rule) => self.rules(chain).push(rule.clone()),
            Step::FlushChain(chain) => self.rules(chain).clear(),
            Step::DeleteChain(chain) => {
                assert!(self.rules(chain).is_empty(), "{step:?}");
                self.chains.remove(chain);
            }
            Step::AddElements(set, elements) => {
                let found = self.set(&set.name);
                for element in elements {
                    let before = found.insert(element.key.clone(), element.clone());
                    assert!(before.is_none(), "{element:?} of {}", set.name);
                }
            }
            Step::DeleteElements(set, elements) => {
                let found = self.set(&set.name);
                for element in elements {
                    let before = found.remove(&element.key);
                    assert!(before.is_some(), "{element:?} of {}", set.name);
                }
            }
        }
    }

    fn set(&mut self, name: &str) -> &mut Elements {
        let set = self.sets.get_mut(name);
        set.unwrap_or_else(|| panic!("no set {name}"))
    }

    fn rules(&mut self, name: &str) -> &mut Vec<Rule> {
        let chain = self.chains.get_mut(name);
        chain.unwrap_or_else(|| panic!("no chain {name}"))
    }

    /// Checks that every jump goes to a chain that is there, and that where a slot is
    /// chosen all slots hold an endpoint.
    fn check(&self) {
        for (set, elements) in &self.sets {
            let endpoints = if set.starts_with("node-ports") {
                "node-port-endpoints"
            } else {
                "endpoints"
            };
            for element in elements.values() {
                let Some(Datum::Verdict(Verdict::Goto(chain) | Verdict::Jump(chain))) =
                    &element.data
                else {
                    continue;
                };
                assert!(self.chains.contains_key(&**chain), "{element:?} of {set}");
                match &**set {
                    "ranges" => self.check_range(&element.key, chain),
                    _ => check_slots(&element.key, chain, &self.sets[endpoints]),
                }
            }
        }
        for statement in self.chains.values().flatten().flat_map(|r| &r.statements) {
            if let Statement::Verdict(Verdict::Goto(chain) | Verdict::Jump(chain)) = statement {
                assert!(self.chains.contains_key(&**chain), "{statement}");
            }
            if let Statement::In(_, set)
            | Statement::NotIn(_, set)
            | Statement::VerdictMap(_, set)
            | Statement::Dnat(_, _, set) = statement
            {
                assert!(self.sets.contains_key(&*set.name), "{statement}");
            }
            if let Statement::Dynset(dynset) = statement {
                assert!(self.sets.contains_key(&*dynset.set.name), "{statement}");
            }
        }
        for chain in self.chains.keys().filter(|chain| slots_of(chain).is_some()) {
            let goto = Verdict::Goto(chain.as_str().into());
            let rules = self.chains.values().flatten();
            let in_rule = Statement::Verdict(goto.clone());
            let in_element = Some(Datum::Verdict(goto));
            let mut elements = self.sets.values().flat_map(HashMap::values);
            let used = elements.any(|element| element.data == in_element)
                || rules
                    .flat_map(|rule| &rule.statements)
                    .any(|one| *one == in_rule);
            assert!(used, "{chain} is of no use");
        }
    }

    /// Checks the slots among which the chain of a range chooses, and those to which it goes.
    fn check_range(&self, key: &[u8], chain: &str) {
        let rules = &self.chains[chain];
        let statements = || rules.iter().flat_map(|rule| &rule.statements);
        for statement in statements() {
            if let Statement::Verdict(Verdict::Goto(other)) = statement {
                self.check_range(key, other);
            }
        }
        let mut drawn = statements().filter_map(drawn);
        let Some((slots, first, random)) = drawn.next() else {
            return;
        };
        // Slots have the first port, not the keys.
        let frontend = &key[..key.len() - 4];
        let is_taken = |slot: &u32| {
            let key = [frontend, &slot.to_ne_bytes()].concat();
            self.sets["range-endpoints"].contains_key(&*key)
        };
        let taken = (first..first + slots).take_while(is_taken).count();
        if random {
            assert!(taken > slots as usize / 4, "{taken} of {chain}");
        } else {
            assert_eq!(taken, slots as usize, "{chain}");
        }
    }

    /// Returns the same with the endpoints of each frontend in order, and without the numbers of
    /// slots among which a chain draws: the slot of each endpoint, and the number of slots, depend
    /// on the history.
    pub fn normalized(mut self) -> Model {
        self.chains.retain(|chain, _| slots_of(chain).is_none());
        for elements in self.sets.values_mut().flat_map(HashMap::values_mut) {
            if let Some(Datum::Verdict(Verdict::Goto(chain))) = &mut elements.data
                && let Some((slots, rest)) = slots_of(chain)
            {
                *chain = chain.replacen(&format!("{slots}{rest}"), rest, 1).into();
            }
        }
        for rules in self.chains.values_mut() {
            rules.retain(|rule| {
                rule.statements
                    .iter()
                    .filter_map(drawn)
                    .all(|(slots, ..)| slots == 1)
            });
            let drawn = rules.iter_mut().flat_map(|rule| &mut rule.statements);
            drawn.for_each(forget_draws);
        }
        for set in ["endpoints", "node-port-endpoints", "range-endpoints"] {
            if !self.sets.contains_key(set) {
                continue;
            }
            let mut frontends = BySlot::new();
            for (key, element) in std::mem::take(self.set(set)) {
                let (frontend, slot) = key.split_at(key.len() - 4);
                let slot = u32::from_ne_bytes(slot.try_into().unwrap());
                let first = match set {
                    "range-endpoints" => slot & !(LOCAL_OF_RANGE - 1),
                    _ => slot & LOCAL,
                };
                let of = (frontend.into(), first);
                frontends.entry(of).or_default().push((slot, element));
            }
            for ((frontend, _), of) in frontends {
                let (mut slots, mut data): (Vec<u32>, Vec<Element>) = of.into_iter().unzip();
                slots.sort_unstable();
                data.sort_by_cached_key(octets);
                for (slot, element) in slots.into_iter().zip(data) {
                    let key: Box<[u8]> = [&*frontend, &slot.to_ne_bytes()].concat().into();
                    let element = Element {
                        key: key.clone(),
                        ..element
                    };
                    self.set(set).insert(key, element);
                }
            }
        }
        self
    }
}

fn octets(element: &Element) -> Box<[u8]> {
    match &element.data {
        Some(Datum::Value(octets)) => octets.clone(),
        other => panic!("{other:?} is no endpoint"),
    }
}

/// Returns among how many slots of a range a statement chooses, the first one, and whether it does so
/// at random.
fn drawn(statement: &Statement) -> Option<(u32, u32, bool)> {
    let Statement::Dnat(_, key, set) = statement else {
        return None;
    };
    match key.last().filter(|_| &*set.name == "range-endpoints")? {
        Field::Numgen(numgen) => Some((numgen.modulus, numgen.offset, numgen.random)),
        // A hash of the port as well is one that draws at random, or that of a table.
        Field::Jhash(jhash) => Some((jhash.modulus, jhash.offset, jhash.modulus.is_power_of_two())),
        other => panic!("{other:?} is no slot"),
    }
}

/// The number of the last draw depends on how many there were.
fn forget_draws(statement: &mut Statement) {
    if drawn(statement).is_some()
        && let Statement::Dnat(_, key, _) = statement
        && let Some(Field::Jhash(jhash)) = key.last_mut()
    {
        jhash.seed = 0;
    }
}

/// Parses the number of slots among which a chain draws, and the rest of the chain's name.
fn slots_of(chain: &str) -> Option<(u32, &str)> {
    let pick = chain.strip_prefix("node-port-");
    let pick = pick.or(chain.strip_prefix("pick-"))?;
    let end = pick.find('-').unwrap_or(pick.len());
    let (slots, rest) = pick.split_at(end);
    Some((slots.parse().unwrap(), rest))
}

fn check_slots(frontend: &[u8], chain: &str, endpoints: &Elements) {
    let Some((slots, rest)) = slots_of(chain) else {
        return;
    };
    let first = if rest.starts_with("-local") { LOCAL } else { 0 };
    let is_taken = |slot: &u32| {
        let key = [frontend, &slot.to_ne_bytes()].concat();
        endpoints.contains_key(&*key)
    };
    let taken = (first..first + slots).take_while(is_taken).count();
    // The text after the slash is a name.
    if rest
        .split('/')
        .next()
        .is_some_and(|kind| kind.contains("-rr") || kind.contains("-mh"))
    {
        assert_eq!(taken, slots as usize, "{chain}");
    } else {
        assert!(taken > slots as usize / 4, "{taken} of {chain}");
    }
}
