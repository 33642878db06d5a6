//! Connections that are open when another mode or another capture takes over from this one,
//! by which no connection was tracked.
//!
//! Before its rules are in force, [`prepare`] has connections tracked, and gives connection
//! tracking entries of those that are open: rules of nat apply to the first packet of a
//! connection only. Afterwards [`retire`] leaves what they need, and refuses what is new
//! there, until none is left. What both do is in one table of nf_tables for each family.

use std::{
    collections::{BTreeSet, HashSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use super::{
    execute,
    kept::{Kept, kept, tcp_frontend},
    observe,
};
use crate::{
    kernel::{
        addresses,
        connections::{self, Connection},
        conntrack::{entries, flows::Tuple},
        links,
        netlink::{Protocol, Socket},
        nftables::{
            Chain, ChainType, Comment, Ct, DataType, Element, Field, Hook, Reject, Rule, Rules,
            Set, Statement, Table, Test, Transaction, Type, Value, Verdict, concat,
        },
    },
    modes::userspace::capture::Error,
    net::Family,
};

const TABLE: &str = "tripod-draining";

/// Connections that are kept at most: as many as a kernel tracks by default on a node with
/// 4 GiB of memory (`nf_conntrack_max`).
const MOST: usize = 65_536;

// Bits of `ct state`: NF_CT_STATE_BIT of IP_CT_ESTABLISHED, _RELATED and _NEW
// (linux/netfilter/nf_conntrack_common.h).
const KNOWN: u32 = 1 << 1 | 1 << 2;
const NEW: u32 = 1 << 3;

/// What was done for open connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prepared {
    /// Connections that have an entry now and had none.
    pub added: usize,
    /// Connections that were too many to get one.
    pub left_out: usize,
}

/// Has connections tracked in `family`, if it is captured by routes, and gives those that
/// are open entries without translation: connections to captured addresses, and others that
/// were opened to what `is_called` is true for. Returns `None` where nothing is captured by
/// routes.
///
/// # Errors
/// When the kernel lacks nf_tables, ctnetlink or sock_diag, or refuses.
pub fn prepare(
    family: Family,
    is_called: &dyn Fn(SocketAddr) -> bool,
) -> Result<Option<Prepared>, Error> {
    let mut socket = Socket::open(Protocol::Route)?;
    let installed = observe::installed(&mut socket, family)?;
    let captured: HashSet<_> = installed.iter().filter_map(tcp_frontend).collect();
    if captured.is_empty() {
        return Ok(None);
    }
    // First, so that what begins from now on has an entry, too.
    Rules::open()?.run(&tracking(family), None).map_err(|failure| failure.first())?;
    let mut open = open(family)?;
    open.retain(|Connection { local, .. }| captured.contains(local) || is_called(*local));
    let left_out = open.len().saturating_sub(MOST);
    open.truncate(MOST);
    let tuples: Vec<_> = open.iter().map(tuple).collect();
    let mut netfilter = Socket::open(Protocol::Netfilter)?;
    let added = entries::add_established(&mut netfilter, family, &tuples)?;
    Ok(Some(Prepared { added, left_out }))
}

/// Leaves in these `families` what open connections to captured addresses need, and refuses
/// new ones there; removes the rest of what captures by routes. Returns how many are open.
///
/// # Errors
/// When the kernel refuses.
pub fn retire(families: &[Family]) -> Result<usize, Error> {
    let mut connections = 0;
    for &family in families {
        let mut socket = Socket::open(Protocol::Route)?;
        let installed = observe::installed(&mut socket, family)?;
        if !installed.iter().any(|object| tcp_frontend(object).is_some()) {
            continue;
        }
        let own = addresses::list(&mut socket)?.into_iter();
        let own: HashSet<_> = own.map(|address| address.address).collect();
        let kept = kept(family, installed, &open(family)?, &own);
        if kept.connections == 0 {
            continue;
        }
        connections += kept.connections;
        keep(&mut socket, family, kept)?;
    }
    Ok(connections)
}

fn keep(socket: &mut Socket, family: Family, kept: Kept) -> Result<(), Error> {
    // First: what stays may lead new connections to other programs of the node.
    let refusing = refusing(family, &kept.addresses);
    Rules::open()?.run(&refusing, None).map_err(|failure| failure.first())?;
    let loopback = links::index("lo")?;
    for (object, error) in execute::insert(socket, loopback, kept.add)? {
        tracing::debug!("{object}: {error}");
    }
    execute::remove(socket, loopback, kept.remove)
}

/// Removes the table of `family`.
///
/// # Errors
/// When the kernel refuses; one without nf_tables has none.
pub fn cleanup(family: Family) -> Result<(), Error> {
    let Ok(mut rules) = Rules::open() else {
        return Ok(());
    };
    let there = rules.tables(family).unwrap_or_default();
    if there.iter().any(|table| table.name == TABLE) {
        rules.delete_table(family, TABLE)?;
    }
    Ok(())
}

fn open(family: Family) -> Result<Vec<Connection>, Error> {
    let mut socket = Socket::open(Protocol::SocketDiagnosis)?;
    Ok(connections::tcp(&mut socket, family)?)
}

/// Returns the connection as its client sees it.
fn tuple(connection: &Connection) -> Tuple {
    Tuple {
        source: connection.remote,
        destination: connection.local,
    }
}

/// Returns what replaces the table of `family`, as yet without chains.
fn table(family: Family) -> Transaction {
    let comment = Comment::new("open connections of userspace mode, local capture");
    let table = Table {
        comment: Some(comment),
        ..Table::new(family, TABLE)
    };
    let mut transaction = Transaction::new(table);
    transaction.add_table().delete_table().add_table();
    transaction
}

fn state(bits: u32) -> Statement {
    Statement::Match(Field::Ct(Ct::State, None), Test::Any(bits))
}

/// Returns what has connections tracked and does nothing else: a rule that asks for their
/// state is enough, also where no packet comes by (`nft_ct_get_init` calls
/// `nf_ct_netns_get`).
fn tracking(family: Family) -> Transaction {
    let mut transaction = table(family);
    let rule = Rule::new([state(NEW), Statement::Verdict(Verdict::Return)]);
    transaction
        .add_chain(Chain::new("tracking"))
        .add_rule("tracking", rule);
    transaction
}

/// Returns what refuses packets to `addresses` that belong to no connection. Those that nat
/// leads on have another destination by then.
fn refusing(family: Family, addresses: &BTreeSet<IpAddr>) -> Transaction {
    let of_family = match family {
        Family::V4 => DataType::Ipv4,
        Family::V6 => DataType::Ipv6,
    };
    let set = Arc::new(Set::new("addresses", Type::Named(vec![of_family])));
    let elements = addresses.iter().map(|ip| Element::new(concat(&[Value::Ip(*ip)])));
    let to_them = || Statement::In(vec![Field::DestinationAddress(family)], (&*set).into());
    let rules = [
        vec![state(KNOWN), Statement::Verdict(Verdict::Accept)],
        vec![state(NEW), to_them(), Statement::Reject(Reject::PortUnreachable(family))],
        vec![to_them(), Statement::Verdict(Verdict::Drop)],
    ];
    let mut transaction = table(family);
    transaction
        .add_set(&set)
        .add_elements(&set, elements.collect())
        .add_chain(Chain::base("input", ChainType::Filter, Hook::Input, 0));
    for rule in rules {
        transaction.add_rule("input", Rule::new(rule));
    }
    transaction
}
