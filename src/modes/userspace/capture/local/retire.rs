//! Connections that are open when another mode or another capture method takes over from this one,
//! which tracks no connections.
//!
//! Before the new rules take effect, [`prepare`] starts connection tracking and creates entries for
//! the open connections: nat rules apply to the first packet of a connection only. Afterwards
//! [`retire`] keeps the objects that they need, and refuses new connections to their addresses,
//! until none is left. Both use one nf_tables table for each family.

use std::{
    collections::{BTreeSet, HashSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use net::{Family, Protocol};
use netlink::{
    Socket, addresses,
    connections::{self, Connection},
    conntrack::{
        entries,
        flows::{self, Match, Tuple, UDP},
    },
    links,
};
use nftables::{
    Chain, ChainType, Comment, Ct, DataType, Element, Field, Hook, Meta, Reject, Rule, Rules, Set,
    Statement, Table, Test, Transaction, Type, Value, Verdict, concat,
};

use super::{
    execute, observe,
    plan::Object,
    preserved::{Preserved, captured, preserved},
};
use crate::modes::userspace::capture::Error;

const TABLE: &str = "tripod-draining";

/// Maximum number of connections that are kept: as many as a kernel tracks by default on a node
/// with 4 GiB of memory (`nf_conntrack_max`).
const MOST: usize = 65_536;

// Bits of `ct state`: NF_CT_STATE_BIT of IP_CT_ESTABLISHED, _RELATED and _NEW
// (linux/netfilter/nf_conntrack_common.h).
const KNOWN: u32 = 1 << 1 | 1 << 2;
const NEW: u32 = 1 << 3;
/// `NF_IP_PRI_RAW`: before connection tracking.
const RAW: i32 = -300;

/// Results of `prepare`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prepared {
    /// Connections that got an entry and had none.
    pub added: usize,
    /// Connections without an entry because there were too many.
    pub left_out: usize,
}

/// Makes the kernel track connections in `family`, if it is captured by routes, and creates entries
/// without translation for the open ones. Returns `None` if nothing is captured by routes.
///
/// All open connections get an entry, those to captured addresses first: also those to node ports,
/// for which there are no routes, and those to endpoints, whose ports could otherwise be given to a
/// masqueraded connection.
///
/// # Errors
/// When the kernel lacks nf_tables, ctnetlink or sock_diag, or refuses.
pub fn prepare(family: Family) -> Result<Option<Prepared>, Error> {
    let mut socket = Socket::open(netlink::Protocol::Route)?;
    let installed = observe::installed(&mut socket, family)?;
    let captured = frontends(Protocol::Tcp, &installed);
    let datagrams = frontends(Protocol::Udp, &installed);
    if captured.is_empty() && datagrams.is_empty() {
        return Ok(None);
    }
    // First, so that connections that begin from now on also have an entry.
    Rules::open()?
        .run(&tracking(family, &datagrams), None)
        .map_err(|failure| failure.first())?;
    let mut open = open(family)?;
    open.sort_by_key(|open| !captured.contains(&open.local));
    let left_out = open.len().saturating_sub(MOST);
    open.truncate(MOST);
    let mut listening = HashSet::new();
    let mut socket = Socket::open(netlink::Protocol::SocketDiagnosis)?;
    // An IPv6 socket may listen for both families.
    for family in Family::ALL {
        listening.extend(connections::listening(&mut socket, family)?);
    }
    // The client's view, which is the other end if this one belongs to a server.
    let tuple = |open: &Connection| {
        let (source, destination) = if listening.contains(&open.local.port()) {
            (open.remote, open.local)
        } else {
            (open.local, open.remote)
        };
        Tuple {
            source,
            destination,
        }
    };
    let tuples: Vec<_> = open.iter().map(tuple).collect();
    let mut netfilter = Socket::open(netlink::Protocol::Netfilter)?;
    let added = entries::add_established(&mut netfilter, family, &tuples)?;
    Ok(Some(Prepared { added, left_out }))
}

/// Keeps, in these `families`, the objects that open connections to captured addresses need,
/// refuses new connections to these addresses, and removes the other capturing objects. The rules
/// of the mode or method that serves now decide about UDP clients. Returns the number of open
/// connections; one more, the first time, for answers to datagrams that are in flight.
///
/// # Errors
/// When the kernel refuses in one family; the others are retired all the same.
pub fn retire(families: &[Family]) -> Result<usize, Error> {
    let outcomes: Vec<_> = families.iter().map(|family| retire_one(*family)).collect();
    outcomes.into_iter().sum()
}

fn retire_one(family: Family) -> Result<usize, Error> {
    let mut socket = Socket::open(netlink::Protocol::Route)?;
    let installed = observe::installed(&mut socket, family)?;
    let datagrams = frontends(Protocol::Udp, &installed);
    let own = addresses::list(&mut socket)?.into_iter();
    let own: HashSet<_> = own.map(|address| address.address).collect();
    let preserved = preserved(family, installed, &open(family)?, &own);
    if preserved.connections == 0 && datagrams.is_empty() {
        return Ok(0);
    }
    let open = preserved.connections + usize::from(!datagrams.is_empty());
    keep(&mut socket, family, preserved, &datagrams)?;
    delete_flows_to(family, &datagrams)?;
    Ok(open)
}

/// Deletes untranslated entries of UDP flows to these addresses and ports: they would send their
/// clients to the process that no longer serves.
fn delete_flows_to(family: Family, datagrams: &HashSet<SocketAddr>) -> Result<(), Error> {
    if datagrams.is_empty() {
        return Ok(());
    }
    let mut socket = Socket::open(netlink::Protocol::Netfilter)?;
    flows::delete_if(&mut socket, family, &[Match::all(UDP)], |flow| {
        let Tuple {
            source,
            destination,
        } = flow.original;
        // The source counts if the answer was seen before the request.
        let called = datagrams.contains(&destination) || datagrams.contains(&source);
        called && !flow.is_translated()
    })?;
    Ok(())
}

fn keep(
    socket: &mut Socket,
    family: Family,
    preserved: Preserved,
    datagrams: &HashSet<SocketAddr>,
) -> Result<(), Error> {
    if preserved.add.is_empty() && preserved.remove.is_empty() {
        // Each change of nf_tables makes others read their rules again.
        return Ok(());
    }
    // First, because the preserved objects may bring new connections to other programs of the node.
    let refusing = refusing(family, &preserved.addresses, datagrams);
    Rules::open()?
        .run(&refusing, None)
        .map_err(|failure| failure.first())?;
    let loopback = links::index("lo")?;
    for (object, error) in execute::insert(socket, loopback, preserved.add)? {
        tracing::debug!("{object}: {error}");
    }
    execute::remove(socket, loopback, preserved.remove)
}

/// Removes the table of `family`, if it exists.
///
/// # Errors
/// When the kernel refuses, or it is not known whether the table exists.
pub fn cleanup(family: Family) -> Result<(), Error> {
    if let Some((mut rules, found)) = Rules::with_table(TABLE, &[family])?
        && !found.is_empty()
    {
        rules.delete_table(family, TABLE)?;
    }
    Ok(())
}

///
/// # Errors
/// When the kernel cannot list them.
pub(super) fn open(family: Family) -> Result<Vec<Connection>, Error> {
    let mut socket = Socket::open(netlink::Protocol::SocketDiagnosis)?;
    Ok(connections::tcp(&mut socket, family)?)
}

/// The addresses and ports for which packets of `protocol` are captured.
fn frontends(protocol: Protocol, installed: &[Object]) -> HashSet<SocketAddr> {
    let found = installed.iter();
    found
        .filter_map(|object| captured(protocol, object))
        .collect()
}

/// The transaction that replaces the table of `family`. In it, answers to `datagrams` from the
/// process that no longer serves are not tracked: an entry with such an answer as its first packet
/// would keep the client with that process for as long as it sends.
fn table(family: Family, datagrams: &HashSet<SocketAddr>) -> Transaction {
    let comment = Comment::new("open connections of userspace mode, local capture");
    let table = Table {
        comment: Some(comment),
        ..Table::new(family, TABLE)
    };
    let mut transaction = Transaction::new(table);
    transaction.add_table().delete_table().add_table();
    let addresses: BTreeSet<_> = datagrams.iter().map(SocketAddr::ip).collect();
    let set = address_set(family, "datagrams");
    let answer = vec![
        Statement::Match(Field::Meta(Meta::L4Proto), Test::Is(vec![UDP])),
        Statement::In(vec![Field::SourceAddress(family)], (&*set).into()),
        Statement::Notrack,
    ];
    transaction
        .add_set(&set)
        .add_elements(&set, elements(&addresses))
        .add_chain(Chain::base("output", ChainType::Filter, Hook::Output, RAW))
        .add_rule("output", Rule::new(answer));
    transaction
}

fn address_set(family: Family, name: &str) -> Arc<Set> {
    let key = vec![DataType::address(family)];
    Arc::new(Set::new(name, Type::Named(key)))
}

fn elements(addresses: &BTreeSet<IpAddr>) -> Vec<Element> {
    let keys = addresses.iter().map(|ip| concat(&[Value::Ip(*ip)]));
    keys.map(Element::new).collect()
}

fn state(bits: u32) -> Statement {
    Statement::Match(Field::Ct(Ct::State, None), Test::Any(bits))
}

/// The transaction that only makes the kernel track connections: a rule that matches their state is
/// enough, even if no packet passes it (`nft_ct_get_init` calls `nf_ct_netns_get`).
fn tracking(family: Family, datagrams: &HashSet<SocketAddr>) -> Transaction {
    let mut transaction = table(family, datagrams);
    let rule = Rule::new([state(NEW), Statement::Verdict(Verdict::Return)]);
    transaction
        .add_chain(Chain::new("tracking"))
        .add_rule("tracking", rule);
    transaction
}

/// The transaction that refuses packets to `addresses` that belong to no connection. Packets that
/// nat translates have another destination by then.
fn refusing(
    family: Family,
    addresses: &BTreeSet<IpAddr>,
    datagrams: &HashSet<SocketAddr>,
) -> Transaction {
    let set = address_set(family, "addresses");
    let to_them = || Statement::In(vec![Field::DestinationAddress(family)], (&*set).into());
    let rules = [
        vec![state(KNOWN), Statement::Verdict(Verdict::Accept)],
        vec![
            state(NEW),
            to_them(),
            Statement::Reject(Reject::PortUnreachable(family)),
        ],
        vec![to_them(), Statement::Verdict(Verdict::Drop)],
    ];
    let mut transaction = table(family, datagrams);
    transaction
        .add_set(&set)
        .add_elements(&set, elements(addresses))
        .add_chain(Chain::base("input", ChainType::Filter, Hook::Input, 0));
    for rule in rules {
        transaction.add_rule("input", Rule::new(rule));
    }
    transaction
}
