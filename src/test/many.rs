//! Many calls of one address.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use futures_util::{StreamExt, stream};
use net::Protocol;

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
    let each = (0..calls.count).map(|_| one(calls.to, calls.protocol));
    stream::iter(each)
        .buffer_unordered(calls.at_once)
        .collect()
        .await
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
