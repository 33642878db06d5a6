//! One connection between a client and an endpoint, from its acceptance by the endpoint to its end:
//! who moves its bytes, and what else is checked.

use std::{
    future::{pending, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use socket2::SockRef;
use tokio::{io::Interest, time::Instant};

use super::{
    super::{present, ticket::Ticket},
    dial::Dialed,
    relay::{ANSWER_WINDOW, End, Progress, Relay, Side},
    ring,
};
use crate::kernel::socket::{set_keep_alive, stream::Stream, user_timeout::Silence};

/// Age at which a connection's backend socket gets keep-alive, far below the idle time before the
/// first probe: most connections end sooner, and save four calls. A backend that has been silent
/// until then has not failed.
const YOUNG: Duration = ANSWER_WINDOW;

/// Minimum time for which the ring keeps an idle connection, if nothing else is checked. The ring
/// takes more kernel memory for a connection than epoll does.
const IDLE: Duration = Duration::from_secs(30);

/// Moves the bytes of a connection.
#[derive(Debug)]
struct Mover<'a> {
    relay: &'a mut Relay,
    /// The worker's ring, instead of the relay.
    ring: Option<ring::RingConnection>,
    /// Whether the backend has answered. That it accepted the connection says little: a backend
    /// that is about to exit, or whose program does not call accept, also does.
    answered: bool,
}

/// Event reported by a mover.
enum Step {
    Relay(Progress),
    /// The relay continues with what the ring left.
    Remainder(ring::Remainder),
}

impl Mover<'_> {
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        client: &Stream,
        dialed: &Dialed,
        ticket: &mut Ticket,
    ) -> Poll<Step> {
        if let Some(ring) = &self.ring {
            return Poll::Ready(Step::Remainder(ready!(ring.poll(cx))));
        }
        let Dialed { stream, endpoint } = dialed;
        let progress = self.relay.poll(cx, client, stream, &ticket.shared);
        ticket.set_buffered(self.relay.buffered());
        let (from_client, to_client) = self.relay.take_counts();
        endpoint.count_bytes(from_client, to_client);
        if !self.answered && self.relay.is_answered() {
            self.answered = true;
            ticket.group.answered(endpoint.address);
        }
        if self.relay.has_stalled() && ends_stalled(ticket) {
            return Poll::Ready(Step::Relay(Progress::Ended(End::Reset)));
        }
        progress.map(Step::Relay)
    }

    fn time_passed(&mut self) {
        self.relay.time_passed();
        if let Some(ring) = &self.ring {
            ring.give_back_if_idle();
        }
    }

    /// Hands the connection to the worker's ring, if there is one.
    fn use_ring(&mut self, client: &mut Stream, dialed: &mut Dialed, ticket: &Ticket) {
        if let Some(driver) = ring::of_this_worker() {
            let (client, backend) = (client.unwatch(), dialed.stream.unwatch());
            self.ring = Some(driver.forward(client, backend, dialed.endpoint.clone()));
            ticket.shared.counters.connections_by_io_uring.inc();
        }
    }

    /// Hands the connection back to the relay. Returns false if the kernel has no memory to watch
    /// the sockets.
    fn use_relay(
        &mut self,
        remainder: &ring::Remainder,
        client: &mut Stream,
        backend: &mut Stream,
    ) -> bool {
        self.ring = None;
        self.relay.take_up(remainder, client, backend);
        client.watch().is_ok() && backend.watch().is_ok()
    }
}

/// Returns whether a stalled connection should be ended.
fn ends_stalled(ticket: &Ticket) -> bool {
    let (shared, group) = (&ticket.shared, &ticket.group);
    let ends = shared.lacks_memory_for(group);
    if ends {
        shared.counters.stalled_ended.inc();
        if group.stalled_logged.is_first() {
            tracing::warn!(
                service = %group.label,
                "connections are reset because one end does not read: the kernel's buffers for \
                 them count as memory of this process, which is near its limit; raise the memory \
                 limit; tripod_userspace_stalled_ended_total counts them"
            );
        }
    }
    ends
}

/// Moves bytes until the connection ends.
pub async fn forward(
    ticket: &mut Ticket,
    relay: &mut Relay,
    client: &mut Stream,
    dialed: &mut Dialed,
) -> End {
    let mut mover = Mover {
        relay,
        ring: None,
        answered: false,
    };
    // A side that is not read, because it has closed its direction or because the other side
    // accepts nothing, only shows its reset when queried.
    let mut closed = None;
    let mut stalled = false;
    let limit = ticket.shared.options.tcp_user_timeout;
    let (mut client_silent, mut backend_silent) = (Silence::default(), Silence::default());
    let mut young = true;
    let first = if limit.is_zero() {
        YOUNG
    } else {
        YOUNG.min(limit / 4)
    };
    let mut check = pin!(tokio::time::sleep(first));
    let mut gone = gone(ticket, dialed);
    loop {
        let backend = &dialed.stream;
        let ended = closed.map(|side| match side {
            Side::Backend => backend,
            Side::Client => &*client,
        });
        let unread = (stalled && mover.ring.is_none()).then_some(&*client);
        let checked = young || !limit.is_zero() || mover.ring.is_some();
        let step = poll_fn(|cx| mover.poll(cx, client, dialed, ticket));
        let step = tokio::select! {
            biased;
            step = step => step,
            () = error_of(ended) => return End::Reset,
            () = once(gone.as_mut()), if closed.is_none() => return End::Reset,
            () = error_of(unread) => {
                mover.relay.client_gone();
                stalled = false;
                continue;
            }
            () = &mut check, if checked => {
                if std::mem::take(&mut young) {
                    // Fails only for a socket that is gone already.
                    let _ = set_keep_alive(SockRef::from(backend));
                }
                mover.time_passed();
                if !limit.is_zero()
                    && (client_silent.has_lasted(&*client, limit)
                        || backend_silent.has_lasted(backend, limit))
                {
                    return End::Reset;
                }
                let next = if limit.is_zero() { IDLE } else { limit / 4 };
                check.as_mut().reset(Instant::now() + next);
                continue;
            }
        };
        match step {
            Step::Relay(Progress::Ended(end)) => return end,
            Step::Relay(Progress::Stalled) => stalled = true,
            Step::Relay(Progress::HalfClosed(side)) => {
                ticket.half_close();
                closed = Some(side);
            }
            Step::Relay(Progress::Messages) => mover.use_ring(client, dialed, ticket),
            Step::Remainder(remainder) => {
                if !mover.use_relay(&remainder, client, &mut dialed.stream) {
                    return End::Reset;
                }
            }
        }
    }
}

/// Waits until the endpoint is gone, for a Service that requests a reset then.
fn gone(ticket: &Ticket, dialed: &Dialed) -> Option<Pin<Box<impl Future<Output = ()> + use<>>>> {
    ticket.group.routing().present.as_ref()?;
    let group = Arc::clone(&ticket.group);
    let present = move || group.routing().present.clone();
    Some(Box::pin(present::gone(
        present,
        dialed.endpoint.address.ip(),
    )))
}

/// Waits for `end`; without one, for ever.
async fn once(end: Option<impl Future<Output = ()>>) {
    match end {
        Some(end) => end.await,
        None => pending().await,
    }
}

/// Waits for an error of `stream`; without a stream, for ever. A separate function, because most
/// connections do not need it and should not reserve space for it.
async fn error_of(stream: Option<&Stream>) {
    match stream {
        Some(stream) => drop(Box::pin(stream.ready(Interest::ERROR)).await),
        None => pending().await,
    }
}
