//! The TCP data path: accept, pick, connect, relay.

mod dial;
mod direction;
mod forwarding;
mod messages;
mod relay;
pub mod ring;

use std::{
    io,
    net::TcpStream,
    os::fd::AsFd,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use net::Protocol;
use socket2::SockRef;
use tokio::{io::Interest, time::Instant};

pub use self::dial::Limits;
use self::{
    dial::Search,
    relay::{End, FirstFlight, Relay},
};
use super::{
    Shared, descriptors,
    group::{ListenerAddress, ServiceGroup},
    listener,
    placement::Placement,
    proxy_protocol,
    ticket::Ticket,
    usage::ConnectionLimits,
};
use crate::{
    kernel::socket::{
        poller::Remaining,
        stream::{self, Stream},
    },
    sched::Flow,
    services::Retry,
};

/// Number of connections that one listener may accept before others get a turn.
const TURN: usize = 16;

/// How long a worker waits before it requests a descriptor again that the system refused although
/// the budget had one.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(50);

/// A listener of an address on one worker.
pub type Listener = listener::Listener<Arc<ListenerAddress>>;

/// Accepts waiting connections of a `listener`, but not so many that others would wait for long.
/// Returns whether there may be more. Runs inside the runtime of the worker of `placement`.
pub async fn accept(
    shared: &Arc<Shared>,
    placement: &Placement,
    listener: &Arc<Listener>,
) -> Remaining {
    let group = &listener.of.group;
    let limits = group.limits(shared.options.limits);
    for _ in 0..TURN {
        if leaves_to_others(shared, group) {
            shared.counters.accept_paused.inc();
            return Remaining::Waiting;
        }
        let Some(ticket) = Ticket::request(shared, group, Protocol::Tcp, limits) else {
            return Remaining::Waiting;
        };
        match accepted(listener) {
            Ok((client, flow)) => {
                let Some(mut ticket) = ticket.admit(&flow, limits) else {
                    reset_on_close(&client);
                    continue;
                };
                ticket.take_descriptors().await;
                serve(placement, listener, client, flow, ticket);
            }
            Err(e) if descriptors::exhausted(&e) => {
                shared.counters.accept_paused.inc();
                tokio::time::sleep(EXHAUSTED_PAUSE).await;
                return Remaining::More;
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Remaining::Nothing,
            // It no longer listens: another program closed it in the kernel (`ss -K`).
            Err(e) if e.kind() == io::ErrorKind::InvalidInput => return Remaining::Ended,
            // The client gave up before its connection was accepted (accept(2)).
            Err(_) => return Remaining::More,
        }
    }
    Remaining::More
}

/// Returns whether new connections of `group` must wait in the kernel, so that a flood of them does
/// not keep out the clients of others.
fn leaves_to_others(shared: &Shared, group: &ServiceGroup) -> bool {
    let connections = group.connections.load(Relaxed);
    let descriptors = group.descriptors();
    let waits = shared.descriptors.are_for_others(descriptors) || shared.lacks_memory_for(group);
    if waits && group.waits_logged.is_first() {
        tracing::warn!(
            service = %group.label,
            connections,
            "new connections wait: this port of the Service uses more than three times as many \
             file descriptors as are free, or as there is memory for, and the rest is reserved for \
             other Services; raise the limit of open files (ulimit -n) or of memory; \
             tripod_userspace_accept_paused_total counts it"
        );
    }
    if !waits && group.waits_logged.is_over() {
        tracing::info!(
            service = %group.label,
            connections,
            "no new connection of this port of the Service has had to wait for a minute"
        );
    }
    waits
}

/// Serves the connections that the kernel had completed before the `listener` was closed. Runs
/// inside the runtime of the worker of `placement`.
pub fn serve_rest(shared: &Arc<Shared>, placement: &Placement, listener: &Arc<Listener>) {
    let group = &listener.of.group;
    // They have waited, and are served regardless of the Service's limit.
    let limits = ConnectionLimits::UNLIMITED;
    while let Some(mut ticket) = Ticket::request(shared, group, Protocol::Tcp, limits)
        && ticket.try_take_descriptors()
        && let Ok((client, flow)) = accepted(listener)
    {
        if let Some(ticket) = ticket.admit(&flow, limits) {
            serve(placement, listener, client, flow, ticket);
        }
    }
}

fn accepted(listener: &Listener) -> io::Result<(TcpStream, Flow)> {
    let (client, peer) = stream::accept(&listener.socket)?;
    if listener.of.filtered.load(Relaxed) {
        // No more packets must be dropped. Fails only if there is no filter.
        let _ = SockRef::from(&client).detach_filter();
    }
    let flow = Flow {
        client: peer,
        destination: listener.of.called,
    };
    Ok((client, flow))
}

fn serve(
    placement: &Placement,
    listener: &Listener,
    client: TcpStream,
    flow: Flow,
    mut ticket: Ticket,
) {
    let seat = ticket.open(&listener.of, placement);
    placement.run(&seat, move || {
        // Fails only if the kernel has no memory left; the socket is then closed.
        if let Ok(mut client) = Stream::new(client) {
            tokio::task::spawn_local(async move {
                // Borrowed, because a future stores a function's arguments twice.
                connection(&mut ticket, &mut client, &flow).await;
                drop((client, ticket));
            });
        }
    });
}

/// Serves one client until its connection ends.
async fn connection(ticket: &mut Ticket, client: &mut Stream, flow: &Flow) {
    if !ticket.group.admits(flow) {
        ticket.shared.counters.connections_refused.inc();
        reset_on_close(&*client);
        return;
    }
    let routing = ticket.group.routing();
    let asked = routing.preferences();
    let retry = asked.retry.unwrap_or_default();
    let header = if asked.proxy_protocol {
        match proxy_protocol::called(client) {
            Ok(called) => proxy_protocol::header(flow.client, called),
            // The client is gone already.
            Err(_) => return,
        }
    } else {
        Vec::new()
    };
    drop(routing);
    let mut first = FirstFlight::default();
    let mut search = Search::new(ticket, *flow, retry);
    loop {
        let found = tokio::select! {
            biased;
            found = search.next() => found,
            // The client has reset the connection, and its data is discarded. A client that only
            // ended its direction may still wait for an answer, and a closed socket looks the same
            // (RFC 9293 section 3.6).
            _ = client.ready(Interest::ERROR) => return,
        };
        let Some(mut dialed) = found else {
            let service = &search.ticket.group.label;
            tracing::trace!(%service, client = %flow.client, "no endpoint answered");
            return fail(search.ticket, client);
        };
        let begun = Instant::now();
        dialed.endpoint.connected();
        let mut relay = Relay::new(&header, first);
        let end = forwarding::forward(search.ticket, &mut relay, client, &mut dialed).await;
        match end {
            End::Closed => return,
            End::Reset => {
                reset_on_close(&*client);
                reset_on_close(&dialed.stream);
                return;
            }
            End::Unanswered(kept) => {
                search.answered_late(begun.elapsed());
                search.failed(
                    dialed.endpoint.address,
                    &"it reset the connection before it sent anything",
                );
                let again = retry == Retry::FirstFlight
                    && (kept.bytes.is_empty() || search.may_be_sent_again());
                if !again {
                    return fail(search.ticket, client);
                }
                first = kept;
            }
        }
    }
}

/// Ends the connection of a client that no endpoint answered.
fn fail(ticket: &Ticket, client: &Stream) {
    ticket.shared.counters.connections_failed.inc();
    reset_on_close(client);
}

/// Makes the socket send a reset when it is closed, instead of an orderly end that would mean
/// success to its peer.
fn reset_on_close(stream: &impl AsFd) {
    // Fails only for a socket that is gone already.
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}
