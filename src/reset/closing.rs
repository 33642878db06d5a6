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
    io,
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
use tokio::time::{Instant, timeout_at};

use super::segment::{Says, Sender};

/// How long clients have to answer, each time that they are asked. One that the network does not
/// reach meanwhile keeps its connection.
const PATIENCE: [Duration; 6] = [
    Duration::from_millis(200),
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

/// Connections that are being ended.
pub struct Closing {
    /// Those that are open, and whether their client was sent a reset.
    open: HashMap<Ends, (Flow, bool)>,
    tracer: Tracer,
    sender: Sender,
    socket: Socket,
}

impl Closing {
    /// Begins to listen for the clients of `connections` of `family`.
    ///
    /// # Errors
    /// Why it cannot, such as a kernel without nf_tables, or without tables that go with their owner.
    pub fn begin(family: Family, connections: Vec<Flow>) -> Result<Closing, String> {
        let of = |flow: &Flow| (flow.original.source, flow.original.destination);
        let connections = connections.into_iter();
        let open: HashMap<Ends, _> = connections.map(|flow| (of(&flow), (flow, false))).collect();
        let sender = Sender::open(family).map_err(|error| format!("raw socket: {error}"))?;
        let socket = Socket::open(Protocol::Netfilter).map_err(|error| error.to_string())?;
        let tracer = Tracer::of(&reporting(family, open.keys()));
        Ok(Closing {
            open,
            tracer: tracer.map_err(|error| error.to_string())?,
            sender,
            socket,
        })
    }

    /// Ends the connections, and counts those that got a reset.
    pub async fn run(mut self, counter: IntCounter) {
        for patience in PATIENCE {
            self.ask();
            let until = Instant::now() + patience;
            while self.open.values().any(|(_, is_answered)| !is_answered) {
                match timeout_at(until, self.tracer.arrived()).await {
                    Ok(Ok(())) => {}
                    Err(_) => break,
                    // The runtime shuts down.
                    Ok(Err(_)) => return,
                }
                if let Err(error) = self.answer() {
                    tracing::warn!(
                        "clients of endpoints that are gone are no longer reset: {error}"
                    );
                    return;
                }
            }
            self.leave_out_ended(&counter);
            if self.open.is_empty() {
                return;
            }
        }
        tracing::info!(
            connections = self.open.len(),
            "clients of endpoints that are gone did not answer, and keep their connections"
        );
    }

    /// Has every client say which octet it expects.
    fn ask(&self) {
        for (flow, _) in self.open.values() {
            self.send(flow, Says::SynAck);
        }
    }

    /// Resets the connections whose clients sent something.
    fn answer(&mut self) -> io::Result<()> {
        let mut said = Vec::new();
        self.tracer.drain_own(|trace| {
            let packet = trace.packet;
            said.extend(
                packet.and_then(|sent| Some(((sent.source, sent.destination), sent.acknowledges?))),
            );
        })?;
        for (ends, expected) in said {
            let Some((flow, is_answered)) = self.open.get_mut(&ends) else {
                continue;
            };
            *is_answered = true;
            let flow = flow.clone();
            self.send(&flow, Says::Reset(expected));
        }
        Ok(())
    }

    /// Sends a segment to the client of `flow`. One that is lost is sent again.
    fn send(&self, flow: &Flow, says: Says) {
        let reply = flow.reply;
        if let Err(error) = self.sender.send(reply.source, reply.destination, says) {
            tracing::debug!("{flow}: cannot send {says:?}: {error}");
        }
    }

    fn leave_out_ended(&mut self, counter: &IntCounter) {
        let socket = &mut self.socket;
        self.open.retain(|_, (flow, is_answered)| {
            let was_answered = std::mem::take(is_answered);
            let is_open = match flows::look_up(socket, flow) {
                Ok(found) => found.is_some_and(|now| now.state.is_established()),
                Err(_) => true,
            };
            if was_answered && !is_open {
                counter.inc();
                tracing::debug!("{flow} was reset: its endpoint is gone");
            }
            is_open
        });
    }
}

/// The transaction that adds the table, for packets that clients send.
fn reporting<'a>(family: Family, connections: impl Iterator<Item = &'a Ends>) -> Transaction {
    let number = TABLES.fetch_add(1, Relaxed);
    let table = Table {
        comment: Some(Comment::new("tripod.proxy/reset; goes when it is done")),
        owned: true,
        ..Table::new(family, format!("tripod-reset-{}-{number}", process::id()))
    };
    let address = match family {
        Family::V4 => DataType::Ipv4,
        Family::V6 => DataType::Ipv6,
    };
    let key = vec![address, DataType::Port, address, DataType::Port];
    let set = Arc::new(Set::new("connections", Type::Named(key)));
    let elements = connections.map(|(client, called)| {
        Element::new(concat(&[
            Value::Ip(client.ip()),
            Value::Port(client.port()),
            Value::Ip(called.ip()),
            Value::Port(called.port()),
        ]))
    });
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
    transaction.add_elements(&set, elements.collect());
    for (name, hook) in [("prerouting", Hook::Prerouting), ("output", Hook::Output)] {
        let chain = Chain::base(name, ChainType::Filter, hook, PRIORITY);
        transaction.add_chain(chain).add_rule(name, rule.clone());
    }
    transaction
}
