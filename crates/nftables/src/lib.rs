#![doc = include_str!("../README.md")]

mod chain;
mod client;
mod compile;
mod datatype;
mod described;
mod element;
mod expression;
mod failure;
mod field;
mod monitor;
mod rule;
mod set;
mod statement;
mod summary;
mod table;
#[cfg(test)]
mod tests;
mod trace;
mod tracer;
mod transaction;
mod userdata;
mod value;
mod verdict;
mod watcher;

pub use chain::{Base, Chain, ChainType, Hook, ListedChain, Policy};
pub use client::{Contents, Rules};
pub use datatype::DataType;
pub use element::{Counted, Element};
pub use expression::Expression;
#[doc(hidden)]
pub use expression::attributes;
pub use failure::{Failure, Refused};
pub use field::{Ct, Direction, Fib, Field, Jhash, Meta, Numgen};
pub use monitor::{ChangedChain, Event, Monitor};
use netlink::netfilter_kind;
use nix::libc;
pub use rule::{ListedRule, Rule};
pub use set::{Data, ListedSet, Set, Type};
pub use statement::{Dynset, MarkValue, Reject, SetName, Statement, Test};
pub use summary::RuleSummary;
pub use table::Table;
pub use trace::{Headers, Step as TracedStep, Trace, TracedChain};
pub use tracer::{Target as TraceTarget, Tracer};
pub use transaction::{Step, Transaction};
pub use userdata::Comment;
pub use value::{Value, concat};
pub use verdict::{Datum, Verdict};
pub use watcher::{Changes, Watcher};

/// Size of `struct nfgenmsg`.
const HEADER: usize = 4;

/// The full type of a message of nf_tables (`NFT_MSG_*`), with its subsystem.
const fn kind(message: libc::c_int) -> u16 {
    netfilter_kind(libc::NFNL_SUBSYS_NFTABLES, message)
}

/// Reads a message as each kind of answer there is, and prints the results; for tests with bytes
/// from anywhere.
pub fn read_anything(message: netlink::Message<'_>) {
    let _ = (
        Table::read(message),
        ListedChain::read(message),
        ListedRule::read(message),
    );
    let _ = (Trace::read(message), RuleSummary::read(message));
    watcher::note(message, &mut Changes::default());
    let _ = monitor::read(message);
    let _ = ListedSet::read(message);
    let types = [
        vec![DataType::Ipv4, DataType::Port],
        vec![DataType::Ipv4],
        vec![DataType::IfName],
    ];
    for set in types.map(|types| Set::new("fuzz", Type::Named(types))) {
        for interval in [false, true] {
            let set = Set {
                interval,
                ..set.clone()
            };
            let found = element::Found::read(message).into_iter().collect();
            let elements = element::Found::elements(found, set.ranges_of_one());
            let mut transaction = Transaction::new(Table::new(net::Family::V4, "fuzz"));
            let set = std::sync::Arc::new(set);
            transaction.add_set(&set).add_elements(&set, elements);
            let _ = transaction.to_string();
            let _ = transaction
                .requests(None, transaction::Grouping::Many)
                .count();
        }
    }
}
