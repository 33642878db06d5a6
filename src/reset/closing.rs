//! Ends connections with a reset that their clients heed.
//!
//! A client heeds a reset only with the number of the octet that it expects next, which only the
//! client knows. It says so in each of its packets; one that only waits is asked by a SYN that it did
//! not expect, which every TCP acknowledges (RFC 5961, 4). A table of nf_tables, which exists
//! meanwhile, reports these packets to this process (`meta nftrace`) and drops them, since nobody
//! would get them. What is sent to a client goes by the entry of connection tracking, as what the
//! endpoint sent did: a SYN-ACK does not change the entry, whatever its numbers
//! (`TCP_CONNTRACK_IGNORE` in `net/netfilter/nf_conntrack_proto_tcp.c`).

use std::{
    future::pending,
    net::SocketAddr,
    process,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use hashbrown::HashMap;
use net::Family;
use netlink::{
    Protocol, Socket,
    conntrack::flows::{self, Flow, TCP},
};
use nftables::{
    Chain, ChainType, Comment, DataType, Element, Field, Hook, Meta, Rule, Set, Statement, Table,
    Test, Tracer, Transaction, Type, Value, Verdict, concat,
};
use prometheus::IntCounter;
use tokio::{sync::mpsc::UnboundedReceiver, time::Instant};

use super::segment::{Says, Sender};
use crate::backoff::until;

/// How long clients have to answer, each time that they are asked: Linux answers at most one SYN of a
/// connection in half a second (`net.ipv4.tcp_invalid_ratelimit`). A client that the network does not
/// reach meanwhile keeps its connection.
const PATIENCE: [Duration; 6] = [
    Duration::from_millis(600),
    Duration::from_secs(1),
    Duration::from_secs(3),
    Duration::from_secs(10),
    Duration::from_secs(30),
    Duration::from_secs(60),
];

/// Before raw (-300) and connection tracking (-200), where packets have the addresses that the client
/// uses; after packets were put together of fragments (-400, `enum nf_ip_hook_priorities`).
const PRIORITY: i32 = -350;

/// Tables of this process so far: each has a name of its own.
static TABLES: AtomicU32 = AtomicU32::new(0);

/// A client and the address that it called.
type Ends = (SocketAddr, SocketAddr);

/// How long after an answer it is checked whether the connection has ended.
const CHECKED: Duration = Duration::from_millis(50);

/// The most connections that are ended at once; others stay.
const MOST: usize = 65_536;

/// Ends connections of one family.
pub struct Closing {
    family: Family,
    open: HashMap<Ends, Open>,
    /// When the next of them is due.
    due: Option<Instant>,
    /// `None`: none is open.
    tracer: Option<Tracer>,
    sender: Sender,
    socket: Socket,
}

/// A connection that is open.
struct Open {
    flow: Flow,
    /// How often its client was asked before.
    asked: usize,
    due: Instant,
    /// The number of the octet that the client expects, if it said so.
    expected: Option<u32>,
}

impl Closing {
    /// Ends connections of `family`.
    ///
    /// # Errors
    /// Why it cannot, such as a kernel without nf_tables, or without tables that go with their owner.
    pub fn of(family: Family) -> Result<Closing, String> {
        let sender = Sender::open(family).map_err(|error| format!("raw socket: {error}"))?;
        let socket = Socket::open(Protocol::Netfilter).map_err(|error| error.to_string())?;
        // What a kernel cannot do is known before a connection has to be ended.
        Tracer::of(&reporting(family, &[])).map_err(|error| error.to_string())?;
        Ok(Closing {
            family,
            open: HashMap::new(),
            due: None,
            tracer: None,
            sender,
            socket,
        })
    }

    /// Ends the connections that are received, and counts those that got a reset.
    pub async fn run(mut self, mut more: UnboundedReceiver<Vec<Flow>>, counter: IntCounter) {
        loop {
            let done = tokio::select! {
                received = more.recv() => match received {
                    Some(connections) => self.add(connections),
                    // The process ends.
                    None => return,
                },
                () = arrived(self.tracer.as_ref()) => self.answer(),
                () = until(self.due) => self.check(&counter),
            };
            if let Err(why) = done {
                tracing::warn!("clients of endpoints that are gone keep their connections: {why}");
                self.open.clear();
            }
            if self.open.is_empty() {
                (self.tracer, self.due) = (None, None);
            }
        }
    }

    /// Adds connections, and has their clients say which octet they expect.
    fn add(&mut self, connections: Vec<Flow>) -> Result<(), String> {
        let now = Instant::now();
        let due = now + PATIENCE[0];
        let room = MOST.saturating_sub(self.open.len());
        let mut new = Vec::new();
        for flow in connections.into_iter().take(room) {
            let ends = (flow.original.source, flow.original.destination);
            let open = Open {
                flow,
                asked: 0,
                due,
                expected: None,
            };
            if self.open.insert(ends, open).is_none() {
                new.push(ends);
            }
        }
        self.due = self.due.into_iter().chain([due]).min();
        match &mut self.tracer {
            Some(tracer) => {
                let mut transaction = Transaction::new(tracer.table().clone());
                transaction.add_elements(&set(self.family), elements(&new));
                tracer
                    .run(&transaction)
                    .map_err(|error| error.to_string())?;
            }
            None => {
                let tracer = Tracer::of(&reporting(self.family, &new));
                self.tracer = Some(tracer.map_err(|error| error.to_string())?);
            }
        }
        // Not before: for half a second, a client does not answer a second one.
        for ends in &new {
            if let Some(open) = self.open.get(ends) {
                self.send(&open.flow, Says::SynAck);
            }
        }
        Ok(())
    }

    /// Resets the connections whose clients sent something.
    fn answer(&mut self) -> Result<(), String> {
        let Some(tracer) = &mut self.tracer else {
            return Ok(());
        };
        let mut said = Vec::new();
        let drained = tracer.drain_own(|trace| {
            let packet = trace.packet;
            said.extend(
                packet.and_then(|sent| Some(((sent.source, sent.destination), sent.acknowledges?))),
            );
        });
        drained.map_err(|error| error.to_string())?;
        let due = Instant::now() + CHECKED;
        for (ends, expected) in said {
            let Some(open) = self.open.get_mut(&ends) else {
                continue;
            };
            (open.expected, open.due) = (Some(expected), due);
            self.due = self.due.into_iter().chain([due]).min();
            let flow = open.flow.clone();
            self.send(&flow, Says::Reset(expected));
        }
        Ok(())
    }

    /// Sends a segment to the client of `flow`.
    fn send(&self, flow: &Flow, says: Says) {
        let reply = flow.reply;
        if let Err(error) = self.sender.send(reply.source, reply.destination, says) {
            tracing::debug!("{flow}: cannot send {says:?}: {error}");
        }
    }

    /// Leaves out the connections that have ended, and asks the clients of the others again.
    fn check(&mut self, counter: &IntCounter) -> Result<(), String> {
        let now = Instant::now();
        let mut over = Vec::new();
        let due = self.open.iter().filter(|(_, open)| open.due <= now);
        let due: Vec<Ends> = due.map(|(ends, _)| *ends).collect();
        for ends in due {
            let Some(open) = self.open.get(&ends) else {
                continue;
            };
            let found = flows::look_up(&mut self.socket, &open.flow);
            let is_open = found
                .map_err(|error| error.to_string())?
                .is_some_and(|now| now.state.is_established());
            if !is_open {
                if let Some(expected) = open.expected {
                    // The first one may be lost on its way.
                    self.send(&open.flow, Says::Reset(expected));
                    counter.inc();
                    tracing::debug!("{} was reset: its endpoint is gone", open.flow);
                }
                over.push(ends);
            } else if let Some(patience) = PATIENCE.get(open.asked + 1) {
                self.send(&open.flow, Says::SynAck);
                if let Some(open) = self.open.get_mut(&ends) {
                    (open.asked, open.due) = (open.asked + 1, now + *patience);
                }
            } else {
                tracing::info!("{} stays open: its client does not answer", open.flow);
                over.push(ends);
            }
        }
        for ends in &over {
            self.open.remove(ends);
        }
        self.due = self.open.values().map(|open| open.due).min();
        match &mut self.tracer {
            // From now on the client may connect again from the same port.
            Some(tracer) if !self.open.is_empty() && !over.is_empty() => {
                let mut transaction = Transaction::new(tracer.table().clone());
                transaction.delete_elements(&set(self.family), elements(&over));
                tracer.run(&transaction).map_err(|error| error.to_string())
            }
            _ => Ok(()),
        }
    }
}

/// Waits until clients may have sent something.
async fn arrived(tracer: Option<&Tracer>) {
    match tracer {
        Some(tracer) if tracer.arrived().await.is_ok() => {}
        _ => pending().await,
    }
}

/// The set of connections whose packets are reported.
fn set(family: Family) -> Arc<Set> {
    let address = DataType::address(family);
    let key = vec![address, DataType::Port, address, DataType::Port];
    Arc::new(Set::new("connections", Type::Named(key)))
}

fn elements(connections: &[Ends]) -> Vec<Element> {
    let connections = connections.iter();
    let elements = connections.map(|(client, called)| {
        Element::new(concat(&[
            Value::Ip(client.ip()),
            Value::Port(client.port()),
            Value::Ip(called.ip()),
            Value::Port(called.port()),
        ]))
    });
    elements.collect()
}

/// The transaction that adds the table, for packets that clients send.
fn reporting(family: Family, connections: &[Ends]) -> Transaction {
    let number = TABLES.fetch_add(1, Relaxed);
    let table = Table {
        comment: Some(Comment::new("tripod.proxy/reset; goes when it is done")),
        owned: true,
        ..Table::new(family, format!("tripod-reset-{}-{number}", process::id()))
    };
    let set = set(family);
    let ends = vec![
        Field::SourceAddress(family),
        Field::SourcePort,
        Field::DestinationAddress(family),
        Field::DestinationPort,
    ];
    let rule = Rule::new([
        Statement::Match(Field::Meta(Meta::L4Proto), Test::Is(vec![TCP])),
        Statement::In(ends, (&*set).into()),
        Statement::Trace,
        Statement::Verdict(Verdict::Drop),
    ]);
    let mut transaction = Transaction::new(table);
    transaction.add_table().add_set(&set);
    transaction.add_elements(&set, elements(connections));
    for (name, hook) in [("prerouting", Hook::Prerouting), ("output", Hook::Output)] {
        let chain = Chain::base(name, ChainType::Filter, hook, PRIORITY);
        transaction.add_chain(chain).add_rule(name, rule.clone());
    }
    transaction
}
