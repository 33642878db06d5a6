//! Notices peers that vanished while unacknowledged data was sent to them (the user timeout of RFC
//! 9293 section 3.9.1, RFC 5482).
//!
//! Keep-alive probes watch idle connections only. While data is under way the kernel gives up after
//! `net.ipv4.tcp_retries2` retransmissions, a quarter of an hour. TCP_USER_TIMEOUT (`tcp(7)`) would
//! act sooner, but it also ends the connection of a live peer that merely does not read: it counts
//! the time in which the window is closed, whether probes are answered or not (`tcp_probe_timer` in
//! net/ipv4/tcp_timer.c), where RFC 9293 section 3.8.6.1 requires the sender to keep the
//! connection. And it replaces the limit on keep-alive probes. So the kernel is asked now and then
//! whether it retransmits, and when the peer last acknowledged anything. The time counts, as with
//! TCP_USER_TIMEOUT, from the first retransmission (`retransmits_timed_out` in
//! net/ipv4/tcp_timer.c) and not from the last acknowledgement, before which the connection may
//! have been idle, or the peer the only one that sent: its own data acknowledges nothing new, and
//! does not count as an acknowledgement (`tcp_rcv_established` in net/ipv4/tcp_input.c).

use std::{
    os::fd::AsFd,
    time::{Duration, Instant},
};

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
    /// Number of unanswered retransmissions in a row.
    retransmits: u8,
    /// Number of unanswered probes in a row, of a closed window or of an idle connection.
    probes: u8,
    _options: [u8; 4],
    _times_and_segments: [u32; 12],
    /// Milliseconds since the last acknowledgement.
    last_ack_recv: u32,
    _more: [u32; 11],
}

/// The kernel's information on a connection (TCP_INFO, `tcp(7)`).
#[derive(Clone, Copy, Debug)]
struct TcpInfo;

getsockopt_impl!(
    TcpInfo,
    libc::IPPROTO_TCP,
    libc::TCP_INFO,
    Info,
    GetStruct<Info>
);

/// Time at which a peer was first seen not to answer retransmissions; `None` if it answers.
#[derive(Debug, Default)]
pub struct Silence(Option<Instant>);

impl Silence {
    /// Asks the kernel about the peer of `stream`. Returns whether it has acknowledged nothing for
    /// `limit` in spite of retransmissions. Must be called a few times within that time.
    pub fn has_lasted(&mut self, stream: &impl AsFd, limit: Duration) -> bool {
        getsockopt(stream, TcpInfo).is_ok_and(|info| self.goes_on(&info, Instant::now(), limit))
    }

    /// Returns whether the peer was silent for `limit`, according to the kernel's `info` of `now`.
    fn goes_on(&mut self, info: &Info, now: Instant, limit: Duration) -> bool {
        if info.retransmits.max(info.probes) == 0 {
            self.0 = None;
            return false;
        }
        let last_ack = Duration::from_millis(info.last_ack_recv.into());
        let acknowledged = |since: &Instant| now.duration_since(*since) > last_ack;
        match self.0.filter(|since| !acknowledged(since)) {
            Some(since) => now.duration_since(since) >= limit,
            None => {
                self.0 = Some(now);
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(retransmits: u8, probes: u8, last_ack_recv: u32) -> Info {
        Info {
            _states: [0; 2],
            retransmits,
            probes,
            _options: [0; 4],
            _times_and_segments: [0; 12],
            last_ack_recv,
            _more: [0; 11],
        }
    }

    /// A millisecond, the kernel's counters then, and whether the peer counts as gone.
    type Seen = (u64, [u32; 3], bool);

    #[test]
    fn a_peer_is_gone_that_acknowledges_nothing_from_the_first_retransmission_on() {
        let limit = Duration::from_secs(10);
        let cases: [(&str, &[Seen]); 6] = [
            (
                "data is lost for good, after an hour without any",
                &[
                    (0, [0, 0, 3_600_000], false),
                    (2_500, [3, 0, 3_602_500], false),
                    (10_000, [5, 0, 3_610_000], false),
                    (12_500, [6, 0, 3_612_500], true),
                ],
            ),
            (
                "so are probes of an idle connection",
                &[(0, [0, 1, 60_000], false), (10_000, [0, 3, 70_000], true)],
            ),
            (
                "it comes back in time",
                &[
                    (0, [4, 0, 30_000], false),
                    (9_000, [7, 0, 39_000], false),
                    (11_000, [0, 0, 1_500], false),
                    (13_500, [1, 0, 4_000], false),
                    (20_000, [6, 0, 10_500], false),
                ],
            ),
            (
                "it acknowledged something between two losses",
                &[
                    (0, [3, 0, 2_000], false),
                    (10_000, [2, 0, 4_000], false),
                    (19_000, [5, 0, 13_000], false),
                    (20_000, [6, 0, 14_000], true),
                ],
            ),
            (
                "its closed window is probed, which it answers",
                &[(0, [0, 1, 200], false), (10_000, [0, 1, 300], false)],
            ),
            (
                "it is idle",
                &[(0, [0, 0, 0], false), (60_000, [0, 0, 60_000], false)],
            ),
        ];
        let begun = Instant::now();
        for (case, seen) in cases {
            let mut silence = Silence::default();
            for &(after, [retransmits, probes, last_ack], expected) in seen {
                let info = info(retransmits as u8, probes as u8, last_ack);
                let now = begun + Duration::from_millis(after);
                let gone = silence.goes_on(&info, now, limit);
                assert_eq!(gone, expected, "{case}, after {after} ms");
            }
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
        assert!(!Silence::default().has_lasted(&near, Duration::ZERO));
    }
}
