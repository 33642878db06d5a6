//! The TCP data path: accept, pick, connect, relay.

mod dial;
mod first_flight;
mod pipe;
mod relay;

use std::{
    future::poll_fn,
    net::IpAddr,
    sync::Arc,
    task::{Poll, ready},
    time::Duration,
};

use socket2::SockRef;
use tokio::{
    io::Interest,
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, watch},
};

use self::{
    dial::{Dialed, Open, Search},
    first_flight::FirstFlight,
    relay::{End, Progress, Relay, Side},
};
use super::{Shared, descriptors, portal::Portal};
use crate::sched::Flow;

/// Descriptors of one connection: the client's and the backend's socket.
const PER_CONNECTION: u32 = 2;

/// How long a worker waits before it asks again for a descriptor that the
/// system refused although the budget had one.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(50);

/// Held by every connection of an address, so that what the address needs (a
/// route, say) stays as long as one is open.
pub type Hold = Arc<()>;

/// Accepts connections of `listener` until `closing` says so; then serves
/// those that the kernel had already completed, and closes it. Runs inside a
/// worker's `LocalSet`.
pub async fn accept_loop(
    shared: Arc<Shared>,
    portal: Arc<Portal>,
    listener: std::net::TcpListener,
    called: IpAddr,
    hold: Hold,
    mut closing: watch::Receiver<bool>,
) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(e) => {
            tracing::error!(service = %portal.label, "cannot watch a listener: {e}");
            return;
        }
    };
    let serve = |client, peer, permit| {
        tokio::task::spawn_local(connection(
            Arc::clone(&shared),
            Arc::clone(&portal),
            client,
            Flow {
                client: peer,
                destination: called,
            },
            (permit, Arc::clone(&hold)),
        ));
    };
    loop {
        let accepted = tokio::select! {
            biased;
            _ = closing.wait_for(|c| *c) => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((client, peer)) => {
                let permit = match shared.descriptors.try_take(PER_CONNECTION) {
                    Some(permit) => permit,
                    None => {
                        shared.counters.accept_paused.inc();
                        shared.descriptors.take(PER_CONNECTION).await
                    }
                };
                serve(client, peer, permit);
            }
            Err(e) if descriptors::exhausted(&e) => {
                shared.counters.accept_paused.inc();
                tokio::time::sleep(EXHAUSTED_PAUSE).await;
            }
            // The client gave up before it was accepted (accept(2)).
            Err(_) => {}
        }
    }
    let Ok(listener) = listener.into_std() else {
        return;
    };
    while let Some(permit) = shared.descriptors.try_take(PER_CONNECTION) {
        let accepted = listener.accept().and_then(|(client, peer)| {
            client.set_nonblocking(true)?;
            Ok((TcpStream::from_std(client)?, peer))
        });
        match accepted {
            Ok((client, peer)) => serve(client, peer, permit),
            Err(_) => break,
        }
    }
}

/// Serves one client to its end.
async fn connection(
    shared: Arc<Shared>,
    portal: Arc<Portal>,
    client: TcpStream,
    flow: Flow,
    _held: (OwnedSemaphorePermit, Hold),
) {
    let _open = Open::count(&shared);
    if !portal.admits(&flow) {
        shared.counters.connections_refused.inc();
        reset(&client);
        return;
    }
    let mut first = FirstFlight::default();
    let mut search = Search::new(&shared, &portal, flow);
    loop {
        let Some(mut dialed) = search.next().await else {
            shared.counters.connections_failed.inc();
            tracing::trace!(service = %portal.label, client = %flow.client, "no endpoint answered");
            reset(&client);
            return;
        };
        let mut relay = Relay::new(first);
        let end = carry(&shared, &mut relay, &client, &mut dialed).await;
        match end {
            End::Closed => return,
            End::Reset => {
                reset(&client);
                reset(&dialed.stream);
                return;
            }
            End::Unanswered(kept) => {
                search.failed(
                    dialed.lease.endpoint(),
                    &"it reset the connection before it said anything",
                );
                first = kept;
            }
        }
    }
}

/// Moves bytes until the connection ends.
async fn carry(shared: &Shared, relay: &mut Relay, client: &TcpStream, dialed: &mut Dialed) -> End {
    let backend = &dialed.stream;
    let step = poll_fn(|cx| relay.poll(cx, client, backend, &shared.descriptors));
    let side = match step.await {
        Progress::Ended(end) => return end,
        Progress::HalfClosed(side) => side,
    };
    dialed.lease.half_close();
    // A side that has closed its direction is not read any more, so that its
    // reset is seen only by asking for it.
    let closed = match side {
        Side::Client => client,
        Side::Backend => backend,
    };
    let rest = poll_fn(|cx| {
        loop {
            if let Progress::Ended(end) =
                ready!(relay.poll(cx, client, backend, &shared.descriptors))
            {
                return Poll::Ready(end);
            }
        }
    });
    tokio::select! {
        biased;
        end = rest => end,
        _ = closed.ready(Interest::ERROR) => End::Reset,
    }
}

/// Makes the socket send a reset when it is closed, instead of an orderly end
/// that would tell its peer that all is well.
fn reset(stream: &impl std::os::fd::AsFd) {
    // Fails only for a socket that is gone already.
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}
