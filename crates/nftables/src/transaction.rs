//! Transactions: changes of one table that are carried out whole or not at all.
//! One is a value that can be built, printed as input for `nft -f`, and run.

use std::{fmt, sync::Arc};

use netlink::Request;
use nix::libc;

use super::{
    chain::{self, Chain},
    element::{self, Element, Key, Purpose, Shown},
    kind,
    rule::{self, Rule},
    set::Set,
    table::{self, Table},
};

// Begin and end of a transaction.
const BEGIN: u16 = libc::NFNL_MSG_BATCH_BEGIN as u16;
const END: u16 = libc::NFNL_MSG_BATCH_END as u16;
/// `NFNL_BATCH_GENID` of `linux/netfilter/nfnetlink.h`.
const GENERATION: u16 = 1;

/// Changes of one table.
#[derive(Clone, Debug)]
pub struct Transaction {
    table: Table,
    steps: Vec<Step>,
}

/// How many elements of a step go into one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grouping {
    /// As many as fit: any of them may be the refused one.
    Many,
    /// Takes more room. The kernel refuses messages one by one and continues, so that each refused
    /// element is known.
    Single,
}

/// One change of a transaction.
#[derive(Clone, Debug)]
pub enum Step {
    /// Adds the table.
    AddTable,
    /// Deletes the table with all that it contains.
    DeleteTable,
    /// Adds a chain.
    AddChain(Chain),
    /// Deletes the rules of a chain.
    FlushChain(String),
    /// Deletes a chain.
    DeleteChain(String),
    /// Adds a rule at the end of a chain.
    AddRule(String, Rule),
    /// Adds a set or map.
    AddSet(Arc<Set>),
    /// Deletes a set or map.
    DeleteSet(Arc<Set>),
    /// Adds elements to a set or map.
    AddElements(Arc<Set>, Vec<Element>),
    /// Deletes elements of a set or map.
    DeleteElements(Arc<Set>, Vec<Element>),
}

impl Transaction {
    /// Returns a transaction without changes, for this table.
    pub fn new(table: Table) -> Transaction {
        Transaction {
            table,
            steps: Vec::new(),
        }
    }

    /// Returns the table that it changes.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Returns true if it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Returns how many changes it makes; elements count one each.
    pub fn len(&self) -> usize {
        self.steps
            .iter()
            .map(|step| step.elements().len().max(1))
            .sum()
    }

    /// Returns how many steps it has, each with any number of elements: the index of the next step.
    pub fn steps(&self) -> usize {
        self.steps.len()
    }

    /// Returns its changes, for a table in memory.
    pub fn made_of(&self) -> &[Step] {
        &self.steps
    }

    /// Makes the messages that go to the kernel. Returns how many.
    pub fn encoded(&self) -> usize {
        self.requests(None, Grouping::Many).count()
    }

    /// Makes the changes of `other`, of the same table, after these.
    pub fn append(&mut self, other: Transaction) -> &mut Self {
        self.steps.extend(other.steps);
        self
    }

    /// Adds the table; an existing one stays as it is.
    pub fn add_table(&mut self) -> &mut Self {
        self.step(Step::AddTable)
    }

    /// Deletes the table and all that is in it.
    pub fn delete_table(&mut self) -> &mut Self {
        self.step(Step::DeleteTable)
    }

    /// Adds a chain; an existing one gets this policy and stays otherwise.
    pub fn add_chain(&mut self, chain: Chain) -> &mut Self {
        self.step(Step::AddChain(chain))
    }

    /// Deletes the rules of a chain.
    pub fn flush_chain(&mut self, chain: impl Into<String>) -> &mut Self {
        self.step(Step::FlushChain(chain.into()))
    }

    /// Deletes a chain, which has to have no rules, and to which none may jump.
    pub fn delete_chain(&mut self, chain: impl Into<String>) -> &mut Self {
        self.step(Step::DeleteChain(chain.into()))
    }

    /// Adds a rule after those of the chain.
    pub fn add_rule(&mut self, chain: impl Into<String>, rule: Rule) -> &mut Self {
        self.step(Step::AddRule(chain.into(), rule))
    }

    /// Adds a set or a map; an equal one that exists stays as it is.
    pub fn add_set(&mut self, set: &Arc<Set>) -> &mut Self {
        self.step(Step::AddSet(Arc::clone(set)))
    }

    /// Deletes a set or a map with its elements; no rule may refer to it.
    pub fn delete_set(&mut self, set: &Arc<Set>) -> &mut Self {
        self.step(Step::DeleteSet(Arc::clone(set)))
    }

    /// Adds elements; existing ones stay as they are. An element of a map that exists with other
    /// data is refused: it has to be deleted before, in the same transaction.
    pub fn add_elements(&mut self, set: &Arc<Set>, elements: Vec<Element>) -> &mut Self {
        if elements.is_empty() {
            return self;
        }
        self.step(Step::AddElements(Arc::clone(set), elements))
    }

    /// Deletes elements; missing ones are refused.
    pub fn delete_elements(&mut self, set: &Arc<Set>, elements: Vec<Element>) -> &mut Self {
        if elements.is_empty() {
            return self;
        }
        self.step(Step::DeleteElements(Arc::clone(set), elements))
    }

    fn step(&mut self, step: Step) -> &mut Self {
        self.steps.push(step);
        self
    }

    /// Returns true if some step is of more than one element.
    pub(super) fn has_groups(&self) -> bool {
        self.steps.iter().any(|step| step.elements().len() > 1)
    }

    /// The messages for the kernel: a frame, and one message for each change, elements as
    /// `grouping` says. They are refused if another change was made since `generation`.
    pub(super) fn requests(
        &self,
        generation: Option<u32>,
        grouping: Grouping,
    ) -> impl Iterator<Item = Request> {
        let [high, low] = (libc::NFNL_SUBSYS_NFTABLES as u16).to_be_bytes();
        let frame = move |kind| Request::new(kind, 0, "", "").header(&[0, 0, high, low]);
        let begin = match generation {
            Some(generation) => frame(BEGIN).be32(GENERATION, generation),
            None => frame(BEGIN),
        };
        let parts = self.parts(grouping).enumerate();
        let changes = parts.map(|(at, part)| self.request(&part, at as u32 + 1));
        let end = std::iter::once_with(move || frame(END));
        std::iter::once(begin).chain(changes).chain(end)
    }

    /// Returns the changes, each of which is one message.
    pub(super) fn parts(&self, grouping: Grouping) -> impl Iterator<Item = Part<'_>> {
        self.steps
            .iter()
            .enumerate()
            .flat_map(move |(index, step)| {
                let all = step.elements();
                let mut at = Some(0);
                std::iter::from_fn(move || {
                    let first = at?;
                    let rest = &all[first..];
                    let count = match grouping {
                        Grouping::Many => element::fitting(rest),
                        Grouping::Single => 1,
                    };
                    let elements = &rest[..count.min(rest.len())];
                    let next = first + elements.len();
                    at = (next < all.len()).then_some(next);
                    Some(Part {
                        step,
                        index,
                        first,
                        elements,
                    })
                })
            })
    }

    /// The message of one part; `number` differs from that of all others.
    pub(super) fn request(&self, part: &Part<'_>, number: u32) -> Request {
        let create = libc::NLM_F_CREATE as u16;
        let append = create | libc::NLM_F_APPEND as u16;
        let family = self.table.family.number();
        let new = |message, flags| Request::new(kind(message), flags, "", "").nfgenmsg(family);
        // The attribute of the table's name is the same everywhere.
        let request = |message, flags| new(message, flags).text(table::NAME, &self.table.name);
        let rule = |message, flags, chain: &str| request(message, flags).text(rule::CHAIN, chain);
        let of_set =
            |message, flags, set: &Set| request(message, flags).text(element::SET, &set.name);
        match part.step {
            Step::AddTable => self.table.write(new(libc::NFT_MSG_NEWTABLE, create)),
            Step::DeleteTable => request(libc::NFT_MSG_DELTABLE, 0),
            Step::AddChain(chain) => chain.write(request(libc::NFT_MSG_NEWCHAIN, create)),
            Step::DeleteChain(name) => request(libc::NFT_MSG_DELCHAIN, 0).text(chain::NAME, name),
            Step::FlushChain(name) => rule(libc::NFT_MSG_DELRULE, 0, name),
            Step::AddRule(chain, desired) => {
                desired.write(rule(libc::NFT_MSG_NEWRULE, append, chain))
            }
            Step::AddSet(set) => set.write(request(libc::NFT_MSG_NEWSET, create), number),
            // The name has the same attribute as in messages about elements.
            Step::DeleteSet(set) => of_set(libc::NFT_MSG_DELSET, 0, set),
            Step::AddElements(set, _) => {
                let request = of_set(libc::NFT_MSG_NEWSETELEM, create, set);
                element::write(request, set, part.elements, Purpose::Add)
            }
            Step::DeleteElements(set, _) => {
                let request = of_set(libc::NFT_MSG_DELSETELEM, 0, set);
                element::write(request, set, part.elements, Purpose::Delete)
            }
        }
    }
}

/// A change that is one message: a step, or some elements of one.
pub(super) struct Part<'a> {
    step: &'a Step,
    /// Which step of the transaction.
    pub(super) index: usize,
    /// Which of the step's elements come first here.
    pub(super) first: usize,
    elements: &'a [Element],
}

impl Step {
    /// The elements that it adds or deletes.
    fn elements(&self) -> &[Element] {
        match self {
            Step::AddElements(_, elements) | Step::DeleteElements(_, elements) => elements,
            _ => &[],
        }
    }
}

impl Part<'_> {
    /// Returns which element of the step it is, if it is one alone.
    pub(super) fn element(&self) -> Option<usize> {
        (self.elements.len() == 1).then_some(self.first)
    }

    /// Returns a verb and an object for an error about it.
    pub(super) fn named(&self, table: &Table) -> (&'static str, String) {
        let of_set = |set: &Set| format!("{} {}", set.word(), set.name);
        let (verb, object) = match self.step {
            Step::AddTable => return ("add", format!("table {table} of nf_tables")),
            Step::DeleteTable => return ("delete", format!("table {table} of nf_tables")),
            Step::AddChain(chain) => ("add", format!("chain {}", chain.name)),
            Step::FlushChain(chain) => ("flush", format!("chain {chain}")),
            Step::DeleteChain(chain) => ("delete", format!("chain {chain}")),
            Step::AddRule(chain, rule) => ("add", format!("rule \"{rule}\" of chain {chain}")),
            Step::AddSet(set) => ("add", of_set(set)),
            Step::DeleteSet(set) => ("delete", of_set(set)),
            Step::AddElements(set, _) => ("add", self.elements(set)),
            Step::DeleteElements(set, _) => ("delete", self.elements(set)),
        };
        (verb, format!("{object} of table {table} of nf_tables"))
    }

    fn elements(&self, set: &Set) -> String {
        let of_set = format!("{} {}", set.word(), set.name);
        match self.elements {
            [one] => format!("element {} of {of_set}", Key(one, set)),
            [first, ..] => {
                let (count, first) = (self.elements.len(), Key(first, set));
                format!("one of {count} elements from {first} on of {of_set}")
            }
            [] => format!("elements of {of_set}"),
        }
    }
}

/// Input for `nft -f` that does the same.
impl fmt::Display for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.steps {
            self.line(step, f)?;
            f.write_str("\n")?;
        }
        Ok(())
    }
}

impl Transaction {
    fn line(&self, step: &Step, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = &self.table;
        match step {
            Step::AddTable => {
                write!(f, "add table {table}")?;
                match &table.comment {
                    Some(comment) => write!(f, " {{ comment \"{}\"; }}", comment.as_str()),
                    None => Ok(()),
                }
            }
            Step::DeleteTable => write!(f, "delete table {table}"),
            Step::AddChain(chain) => {
                write!(f, "add chain {table} {}", chain.name)?;
                chain.body(f)
            }
            Step::FlushChain(chain) => write!(f, "flush chain {table} {chain}"),
            Step::DeleteChain(chain) => write!(f, "delete chain {table} {chain}"),
            Step::AddRule(chain, rule) => write!(f, "add rule {table} {chain} {rule}"),
            Step::AddSet(set) => {
                write!(f, "add {} {table} {} ", set.word(), set.name)?;
                set.body(f)
            }
            Step::DeleteSet(set) => write!(f, "delete {} {table} {}", set.word(), set.name),
            Step::AddElements(set, elements) => {
                write!(f, "add element {table} {} {{ ", set.name)?;
                list(elements.iter().map(|element| Shown(element, set)), f)?;
                f.write_str(" }")
            }
            Step::DeleteElements(set, elements) => {
                write!(f, "delete element {table} {} {{ ", set.name)?;
                list(elements.iter().map(|element| Key(element, set)), f)?;
                f.write_str(" }")
            }
        }
    }
}

fn list(items: impl Iterator<Item = impl fmt::Display>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (at, item) in items.enumerate() {
        let comma = if at == 0 { "" } else { ", " };
        write!(f, "{comma}{item}")?;
    }
    Ok(())
}
