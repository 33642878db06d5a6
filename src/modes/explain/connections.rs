//! The connections to a destination that conntrack holds: they continue as they began, even if new
//! ones are treated differently. In ipvs mode IPVS says where those continue that conntrack has
//! without translation.

use std::{fmt, io, net::SocketAddr};

use ipvs::connections::real_servers;
use net::{Family, Protocol};
use netlink::{
    Error, Socket,
    conntrack::flows::{self, Flow, Match, Reply},
};

use super::{Caller, Carrier, Explanation, Packet, Verdict};
use crate::services::{NotUsed, ServicePort};

/// States of TCP connections that both ends have closed; conntrack keeps them for minutes.
const ENDED: [&str; 2] = ["TIME_WAIT", "CLOSE"];

/// A connection, or a UDP client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The client's address and port.
    pub client: SocketAddr,
    /// Where its packets are sent to, by the source of the answers or by IPVS; `None`: to
    /// the destination that it called.
    pub translated_to: Option<SocketAddr>,
    /// Its state, by the name that conntrack has for it.
    pub state: &'static str,
}

/// Why new connections would not go where a certain one goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stale {
    /// The ServicePort has no such endpoint.
    Gone,
    /// The endpoint is there, and gets no new connections.
    NotUsed(NotUsed),
    /// No rule translated its first packet to an endpoint.
    Untranslated,
}

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stale::Gone => f.write_str("no such endpoint"),
            Stale::NotUsed(why) => why.fmt(f),
            Stale::Untranslated => f.write_str("it began before there was an endpoint"),
        }
    }
}

/// Returns the connections to the destination of `packet`, and from its caller where that
/// is an address, sorted by client, where `carrier` carries them. The kernel's tables are read on
/// a thread of their own.
///
/// # Errors
/// When the kernel refuses, as without ctnetlink or CAP_NET_ADMIN.
pub async fn connections(packet: Packet, carrier: Carrier) -> Result<Vec<Connection>, Error> {
    // The socket belongs to the network namespace of the thread that opens it.
    let mut socket = Socket::open(netlink::Protocol::Netfilter)?;
    let work = move || {
        let destination = packet.destination();
        let to = Match {
            protocol: packet.protocol.number(),
            destination: Some(destination.ip()),
            port: Some(destination.port()),
            reply: Reply::Any,
        };
        let flows = flows::list(&mut socket, Family::of(&packet.to.ip()), &[to])?;
        let is_of_caller = |flow: &&Flow| match packet.from {
            Caller::At(ip) => flow.original.source.ip() == ip,
            Caller::Pod | Caller::Node | Caller::Outside => true,
        };
        let found = flows.iter().filter(is_of_caller).map(connection);
        let mut found: Vec<_> = found.collect();
        found.sort_by_key(|connection| connection.client);
        if carrier == Carrier::Ipvs {
            ask_ipvs(&mut found, packet.protocol, destination)?;
        }
        Ok(found)
    };
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|ended| {
        let object = "flows of connection tracking";
        Err(Error::new("list", object, io::Error::other(ended)))
    })
}

/// Completes the connections to `destination` from those of IPVS: it does not change an entry of
/// conntrack that is used again (`ip_vs_update_conntrack`), nor any when it forwards without
/// translation (dr, tunnel).
fn ask_ipvs(
    connections: &mut [Connection],
    protocol: Protocol,
    destination: SocketAddr,
) -> Result<(), Error> {
    let untranslated = connections.iter_mut();
    let mut untranslated = untranslated
        .filter(|connection| connection.translated_to.is_none())
        .peekable();
    if untranslated.peek().is_none() {
        return Ok(());
    }
    let real = real_servers(protocol, destination).map_err(|error| {
        let object = "connections of IPVS (/proc/net/ip_vs_conn)";
        Error::new("read", object, error)
    })?;
    for connection in untranslated {
        connection.translated_to = real.get(&connection.client).copied();
    }
    Ok(())
}

fn connection(flow: &Flow) -> Connection {
    let answers = flow.reply.source;
    Connection {
        client: flow.original.source,
        translated_to: (answers != flow.original.destination).then_some(answers),
        state: flow.state.name(flow.protocol),
    }
}

/// Returns why new connections would not have the same destination as `connection` to `port`, if
/// `explanation` is that of `packet`, the first of such a connection; `None`: they may, or it is
/// not known.
pub fn stale(
    connection: &Connection,
    packet: &Packet,
    explanation: &Explanation,
    port: &ServicePort,
) -> Option<Stale> {
    let carrier = explanation.properties.carrier;
    // This process has the connection to the endpoint, or nothing is sent any more.
    if carrier == Carrier::Sockets || ENDED.contains(&connection.state) {
        return None;
    }
    let Some(at) = connection.translated_to else {
        // IPVS takes over a UDP client with its next datagram, a connection only with its first
        // packet (`tcp_conn_schedule`, `sctp_conn_schedule`). This process may relay connections to
        // loopback addresses.
        let is_taken_up = carrier == Carrier::Ipvs && packet.protocol == Protocol::Udp;
        let is_relayed = packet.destination().ip().is_loopback();
        let is_forwarded = explanation.verdict == Verdict::Forwarded;
        let stays = is_forwarded && !is_taken_up && !is_relayed;
        return stays.then_some(Stale::Untranslated);
    };
    let mut usage = port.endpoints.usage();
    match usage.find(|(endpoint, _)| endpoint.is_at(at)) {
        Some((_, why)) => why.map(Stale::NotUsed),
        None => Some(Stale::Gone),
    }
}
