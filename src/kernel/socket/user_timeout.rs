//! Notices peers that vanished while data was under way to them (the user
//! timeout of RFC 9293 section 3.9.1, RFC 5482).
//!
//! Keep-alive probes watch idle connections only. While data is under way the
//! kernel gives up after `net.ipv4.tcp_retries2` retransmissions, a quarter of an
//! hour. TCP_USER_TIMEOUT (`tcp(7)`) would be sooner, but it also ends the
//! connection of a peer that is there and only does not read: it counts the time
//! in which the window is closed, answered probes or not (`tcp_probe_timer` in
//! net/ipv4/tcp_timer.c), where RFC 9293 section 3.8.6.1 has the sender bear it.
//! And it takes the place of the limit on keep-alive probes. So the kernel is
//! asked now and then when the peer last acknowledged anything.

use std::{os::fd::AsFd, time::Duration};

use nix::{
    getsockopt_impl, libc,
    sys::socket::{getsockopt, sockopt::GetStruct},
};

/// The beginning of `struct tcp_info` (include/uapi/linux/tcp.h), which all
/// kernels have.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Info {
    _states: [u8; 2],
    /// Retransmissions in a row that were not answered.
    retransmits: u8,
    /// Probes of a closed window, or of an idle connection, in a row that were
    /// not answered.
    probes: u8,
    _options: [u8; 4],
    _times_and_segments: [u32; 12],
    /// Milliseconds since the last acknowledgement.
    last_ack_recv: u32,
    _more: [u32; 11],
}

/// What the kernel knows of a connection (TCP_INFO, `tcp(7)`).
#[derive(Clone, Copy, Debug)]
struct TcpInfo;

getsockopt_impl!(
    TcpInfo,
    libc::IPPROTO_TCP,
    libc::TCP_INFO,
    Info,
    GetStruct<Info>
);

/// Segments in a row without an answer before a peer counts as silent: one may
/// have been sent just now.
const UNANSWERED: u8 = 2;

impl Info {
    fn is_silent(&self, limit: Duration) -> bool {
        self.retransmits.max(self.probes) >= UNANSWERED
            && u128::from(self.last_ack_recv) >= limit.as_millis()
    }
}

/// Returns whether the peer of `stream` has acknowledged nothing for `limit`, although
/// it was asked to more than once.
pub fn has_passed(stream: &impl AsFd, limit: Duration) -> bool {
    getsockopt(stream, TcpInfo).is_ok_and(|info| info.is_silent(limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_asked_and_acknowledges_nothing_is_silent() {
        let limit = Duration::from_secs(10);
        for (retransmits, probes, last_ack_recv, silent) in [
            (2, 0, 10_000, true),
            (0, 2, 10_000, true),
            (7, 0, 9_999, false),
            // Idle, or its closed window was probed just now.
            (0, 0, 3_600_000, false),
            (0, 1, 120_000, false),
        ] {
            let info = Info {
                _states: [0; 2],
                retransmits,
                probes,
                _options: [0; 4],
                _times_and_segments: [0; 12],
                last_ack_recv,
                _more: [0; 11],
            };
            assert_eq!(info.is_silent(limit), silent, "{info:?}");
        }
    }

    #[tokio::test]
    async fn the_kernel_tells_when_a_peer_last_acknowledged() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = tokio::net::TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        let info = getsockopt(&near, TcpInfo).unwrap();
        assert!((40..20_000).contains(&info.last_ack_recv), "{info:?}");
        assert_eq!((info.retransmits, info.probes), (0, 0));
        assert!(!has_passed(&near, Duration::ZERO));
    }
}
