//! The return path for answers to clients that are shown to endpoints (`--userspace-transparent`):
//! delivers them to our sockets.
//!
//! ```text
//! mangle PREROUTING → TRIPOD-TRANSPARENT
//!     -m socket --transparent        MARK      for a socket of ours, errors about it (ICMP) too
//! rule 76: fwmark MARK lookup TABLE  local default
//! ```
//!
//! All bits of the mark are ours, so that no other program uses a part of it: such a packet only
//! goes to our socket. One rule serves all connections, whatever Services there are.

use std::sync::Arc;

use ipnet::IpNet;
use net::{Family, PerFamily};
use netlink::{
    Protocol, Socket, links,
    routes::{self, Kind, Route},
    rules::{self, Action, Rule},
    sysctl,
};
use xtables::{
    desired::{FixedChain, Jump, Place, RuleSet},
    difference::difference,
    observed::{Interest, Observed},
    remove::{Owned, Preserved},
    rule::{Mark, Match, Table, Target},
    run::Writer,
    transaction::Transaction,
};

use super::{capture::Error, proxy::transparent::Transparent};
use crate::{kernel::probe::Kernel, log_once::LogOnce};

/// The chain that Tripod owns in table mangle.
const CHAIN: &str = "TRIPOD-TRANSPARENT";
const OWNED: Owned = Owned {
    tables: &[Table::Mangle],
    interest: |table, chain| match (table, chain) {
        (Table::Mangle, CHAIN) => Interest::Whole,
        _ => Interest::Foreign,
    },
    shared: None,
};
/// The mark of packets for a socket of ours.
const MARK: u32 = 0x5450_5448;
/// Before the rules of local capture that match ports (77 and above), and outside of its tables.
/// The rules of local capture at 75 and 76, for connections that continue after it was retired,
/// match packets that this node sends, none of which has the mark.
const PRIORITY: u32 = 76;
const TABLE: u32 = 0x5454_0000;

/// Setting that makes the kernel use the mark when it looks up the reverse route of a marked
/// packet: it then finds this node, and drops the packet (`fib_validate_source`).
const SRC_VALID_MARK: &str = "net/ipv4/conf/all/src_valid_mark";

/// The desired rules in table mangle.
fn desired() -> RuleSet {
    let marking = xtables::rule::Rule::new()
        .with(Match::TransparentSocket)
        .target(Target::Mark(Mark {
            value: MARK,
            mask: u32::MAX,
        }));
    RuleSet {
        chains: vec![FixedChain::exactly(Table::Mangle, CHAIN, vec![marking])],
        jumps: vec![Jump {
            table: Table::Mangle,
            from: "PREROUTING",
            rule: xtables::rule::Rule::new().jump(CHAIN),
            // After marks of other programs, which would replace ours.
            place: Place::End,
        }],
    }
}

fn rule(family: Family) -> Rule {
    Rule {
        mark: Some(MARK),
        ..Rule::of_all(family, PRIORITY, Action::Lookup(TABLE))
    }
}

fn route(family: Family, loopback: u32) -> Route {
    Route {
        table: TABLE,
        destination: IpNet::new_assert(family.unspecified(), 0),
        kind: Kind::Local(loopback),
        source: None,
    }
}

/// The steps from the `observed` tables to the desired rules.
fn repair(observed: &Observed, family: Family) -> Transaction<()> {
    difference(observed, &desired(), family)
}

/// Installs and maintains the return path, or removes it.
#[derive(Debug)]
pub struct ReturnPath {
    purpose: Purpose,
    transparent: Arc<Transparent>,
    /// The writer of each family, or why there is none.
    writers: PerFamily<Result<Writer, String>>,
    logged: PerFamily<LogOnce>,
    /// Temporary failures, to be retried soon.
    unfinished: PerFamily<Option<String>>,
}

/// Purpose of the return path in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Endpoints see clients.
    ShowClients,
    /// Endpoints do not see clients: the return path of an earlier process is removed.
    RemoveStale,
    /// Endpoints do not see clients, and nothing is installed.
    Nothing,
}

/// A message about a family: that it works, or why not.
pub type Message = Result<String, String>;

impl ReturnPath {
    /// The return path for the data path's `transparent`, on an examined `kernel`.
    pub fn new(purpose: Purpose, transparent: Arc<Transparent>, kernel: &Kernel) -> Self {
        ReturnPath {
            purpose,
            transparent,
            writers: PerFamily::each(|family| kernel.marker(family)),
            logged: PerFamily::default(),
            unfinished: PerFamily::default(),
        }
    }

    /// Compares the kernel with the desired state and repairs it, in the `families` that are due.
    /// Returns new messages.
    pub async fn sync(&mut self, families: PerFamily<bool>) -> Vec<Message> {
        if !families.v4 && !families.v6 {
            return Vec::new();
        }
        self.transparent.clear_paths();
        match self.purpose {
            Purpose::ShowClients => {}
            Purpose::Nothing => return Vec::new(),
            Purpose::RemoveStale => {
                if is_there().is_ok_and(|present| !present) || cleanup().await.is_ok() {
                    self.purpose = Purpose::Nothing;
                }
                return Vec::new();
            }
        }
        let install = async |family| {
            if !*families.get(family) {
                return None;
            }
            Some(self.install(family).await)
        };
        let (v4, v6) = tokio::join!(install(Family::V4), install(Family::V6));
        let outcomes = PerFamily { v4, v6 }.into_iter();
        let messages = outcomes.filter_map(|(family, outcome)| self.record(family, outcome?));
        messages.collect()
    }

    /// Records the result of `family`. Returns a new message.
    fn record(&mut self, family: Family, outcome: Result<(), Failure>) -> Option<Message> {
        self.transparent.set_shown(family, outcome.is_ok());
        let without_effect = |why: &str| {
            format!(
                "--userspace-transparent does nothing for {family}, endpoints see the node's \
                 address: {why}"
            )
        };
        *self.unfinished.get_mut(family) = None;
        let message = match outcome {
            Ok(()) => Ok(format!(
                "{family}: endpoints see the client's address if their answers come back through \
                 this node"
            )),
            Err(Failure::Passing(why)) => {
                *self.unfinished.get_mut(family) = Some(without_effect(&why));
                return None;
            }
            Err(Failure::Lasting(why)) => Err(without_effect(&why)),
        };
        let (Ok(text) | Err(text)) = &message;
        let new = self.logged.get_mut(family).replace([text.clone()]);
        (!new.is_empty()).then_some(message)
    }

    /// The temporary failure of `family`, with its reason; `None` if there is none.
    pub fn unfinished(&self, family: Family) -> Option<&String> {
        self.unfinished.get(family).as_ref()
    }

    async fn install(&self, family: Family) -> Result<(), Failure> {
        if family == Family::V4 && sysctl::read(SRC_VALID_MARK).is_ok_and(|v| v.trim() == "1") {
            return Err(Failure::Lasting(format!(
                "{SRC_VALID_MARK} is 1 (wg-quick sets it), with which the kernel drops packets \
                 that reach a socket by their mark; set it to 0"
            )));
        }
        let writer = self.writers.get(family).as_ref();
        let writer = writer.map_err(|why| Failure::Lasting(why.clone()))?;
        route_marked(family).map_err(|e| Failure::Lasting(e.to_string()))?;
        match mark_answers(writer).await {
            // The applied rules stay while another program has the lock.
            Err(e) if e.is_passing() && self.transparent.is_shown(family) => Ok(()),
            Err(e) if e.is_passing() => Err(Failure::Passing(e.to_string())),
            other => other.map_err(|e| Failure::Lasting(e.to_string())),
        }
    }
}

/// Why answers of a family are not delivered to this process.
enum Failure {
    /// The reason is permanent.
    Lasting(String),
    /// The reason is temporary.
    Passing(String),
}

/// Makes the kernel deliver packets with our mark to this node.
fn route_marked(family: Family) -> Result<(), netlink::Error> {
    let mut socket = Socket::open(Protocol::Route)?;
    let loopback = links::index("lo")?;
    links::set_up(&mut socket, loopback)?;
    for outcome in routes::add(&mut socket, &[route(family, loopback)])? {
        outcome?;
    }
    for outcome in rules::add(&mut socket, &[rule(family)])? {
        outcome?;
    }
    Ok(())
}

/// Makes rules mark packets for our sockets.
async fn mark_answers(writer: &Writer) -> Result<(), xtables::Error> {
    let Owned {
        interest, tables, ..
    } = OWNED;
    let observed = writer.observe(interest, tables, |_, _| {}).await?;
    let transaction = repair(&observed, writer.family());
    writer.run(&transaction).await.map(drop)
}

/// Returns whether a process installed anything. The routing rule is added first and removed last.
fn is_there() -> Result<bool, Error> {
    let mut socket = Socket::open(Protocol::Route)?;
    for family in Family::ALL {
        if rules::list(&mut socket, family)?.contains(&rule(family)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns whether there may be rules, without running a program; see [`Owned::may_be_there`].
pub fn rules_may_be_there() -> bool {
    OWNED.may_be_there()
}

/// Removes everything that is ever installed here, including leftovers of an earlier process.
/// Idempotent.
///
/// # Errors
/// The first thing that could not be removed; the others are removed all the same.
pub async fn cleanup() -> Result<(), Error> {
    let removed = OWNED.remove(&Family::ALL, &Preserved::nothing()).await;
    let unrouted = Family::ALL.map(unroute);
    unrouted
        .into_iter()
        .fold(removed.map_err(Error::from), Result::and)
}

fn unroute(family: Family) -> Result<(), Error> {
    let mut socket = Socket::open(Protocol::Route)?;
    let loopback = links::index("lo")?;
    routes::delete(&mut socket, &[route(family, loopback)])?;
    Ok(rules::delete(&mut socket, &[rule(family)])?)
}

#[cfg(test)]
mod tests;
