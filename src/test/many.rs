//! Many calls of one address.

use std::{
    future::poll_fn,
    net::SocketAddr,
    task::Poll,
    time::{Duration, Instant},
};

use net::Protocol;
use tokio::task::JoinSet;

use super::call::{Seen, call};

/// How long a call over TCP waits. A caller that is refused by ICMP may learn it only when the
/// kernel retransmits the SYN, after 1 s (RFC 6298): the first message arrived while the socket was
/// still busy connecting (`sock_owned_by_user` in `tcp_v6_err` of the kernel).
const PATIENCE: Duration = Duration::from_secs(2);

/// An answer later than this belongs to a retransmitted SYN. Another endpoint may have been chosen
/// for that, which would hide one that does not answer.
const LATE: Duration = Duration::from_millis(900);

/// How often an unanswered datagram is sent, because no kernel retransmits it.
const DATAGRAMS: usize = 2;

/// Calls of one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Calls {
    /// Address and port.
    pub to: SocketAddr,
    /// The transport protocol.
    pub protocol: Protocol,
    /// Number of calls.
    pub count: usize,
    /// Maximum number of simultaneous calls.
    pub at_once: usize,
}

/// Makes the calls. Returns the result of each, in no particular order.
pub async fn make(calls: Calls) -> Vec<Seen> {
    let mut under_way = JoinSet::new();
    let mut seen = Vec::with_capacity(calls.count);
    for _ in 0..calls.count {
        if under_way.len() >= calls.at_once {
            seen.extend(under_way.join_next().await.and_then(Result::ok));
        }
        under_way.spawn(one(calls.to, calls.protocol));
    }
    while let Some(done) = under_way.join_next().await {
        seen.extend(done);
    }
    seen
}

async fn one(to: SocketAddr, protocol: Protocol) -> Seen {
    if protocol == Protocol::Tcp {
        let begun = Instant::now();
        let seen = call(to, protocol, PATIENCE).await;
        let is_late = begun.elapsed() > LATE;
        return match seen {
            Seen::Answer { .. } if is_late => Seen::Other("late answer".to_owned()),
            seen => seen,
        };
    }
    let mut seen = Seen::Silence;
    for _ in 0..DATAGRAMS {
        seen = call(to, protocol, LATE).await;
        if seen != Seen::Silence {
            break;
        }
    }
    seen
}

/// Runs `calls` at once.
pub async fn all<T>(calls: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut pending: Vec<_> = calls.map(Box::pin).collect();
    let mut seen = Vec::with_capacity(pending.len());
    poll_fn(|context| {
        pending.retain_mut(|call| match call.as_mut().poll(context) {
            Poll::Ready(one) => {
                seen.push(one);
                false
            }
            Poll::Pending => true,
        });
        if pending.is_empty() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
    seen
}
