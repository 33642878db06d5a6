//! How long an endpoint that changes takes from the API server to the kernel's
//! map, and what that costs the process.

use std::{
    collections::HashMap,
    net::Ipv4Addr,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, setsockopt,
    socket, sockopt::RcvBufForce,
};

use crate::{large::Size, process::Tripod, server::Server};

/// Changes one by one.
const SINGLE: u32 = 51;
/// Then so many each second, for so many seconds.
const A_SECOND: u32 = 1000;
const SECONDS: u32 = 60;
/// The most that all of them may take to arrive.
const DEADLINE: Duration = Duration::from_secs(30);
/// The network of the endpoints that come, which no others are in.
const NETWORK: [u8; 2] = [10, 233];
/// `NFNLGRP_NFTABLES` of `linux/netfilter/nfnetlink.h`, as a mask.
const GROUP: u32 = 1 << 6;
const RECEIVE: usize = 64 * 1024 * 1024;

/// When endpoints came to be in the kernel, by the last part of their addresses.
#[derive(Clone, Default)]
struct Arrivals(Arc<Mutex<HashMap<u16, Instant>>>);

impl Arrivals {
    /// Follows the kernel's notifications for as long as the process lives. An
    /// address is recognized by its octets, which an attribute aligns.
    fn follow() -> Arrivals {
        let arrivals = Arrivals::default();
        let found = Arc::clone(&arrivals.0);
        let netfilter = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::empty(),
            SockProtocol::NetlinkNetFilter,
        )
        .expect("a netlink socket");
        bind(
            std::os::fd::AsRawFd::as_raw_fd(&netfilter),
            &NetlinkAddr::new(0, GROUP),
        )
        .expect("notifications");
        setsockopt(&netfilter, RcvBufForce, &RECEIVE).expect("room for them");
        std::thread::spawn(move || {
            let mut buffer = vec![0; 1024 * 1024];
            loop {
                let received = recv(
                    std::os::fd::AsRawFd::as_raw_fd(&netfilter),
                    &mut buffer,
                    MsgFlags::empty(),
                );
                let now = Instant::now();
                let length = received.expect("none is lost");
                let mut found = found.lock().expect("the lock");
                for word in buffer[..length].chunks_exact(4) {
                    if word[..2] == NETWORK {
                        let last = u16::from_be_bytes([word[2], word[3]]);
                        found.entry(last).or_insert(now);
                    }
                }
            }
        });
        arrivals
    }

    fn get(&self, last: u16) -> Option<Instant> {
        self.0.lock().expect("the lock").get(&last).copied()
    }

    async fn wait(&self, last: u16) -> Instant {
        let begun = Instant::now();
        loop {
            if let Some(at) = self.get(last) {
                return at;
            }
            assert!(begun.elapsed() < DEADLINE, "{last} does not arrive");
            tokio::time::sleep(Duration::from_micros(500)).await;
        }
    }
}

/// Has endpoints replaced, and returns when each was sent.
struct Sender<'a> {
    server: &'a Server,
    size: Size,
    sent: Vec<Instant>,
}

impl Sender<'_> {
    /// Returns the last part of the new endpoint's address.
    fn send(&mut self) -> u16 {
        let last = u16::try_from(self.sent.len()).expect("not that many");
        let [high, low] = last.to_be_bytes();
        let address = Ipv4Addr::new(NETWORK[0], NETWORK[1], high, low);
        let number = u32::from(last).wrapping_mul(7919);
        self.sent.push(Instant::now());
        let size = self.size;
        self.server
            .change(|cluster| size.replace(cluster, number, address));
        last
    }
}

/// Prints how long changes take, one by one and a thousand a second.
pub async fn measure(server: &Server, tripod: &Tripod, size: Size) {
    let arrivals = Arrivals::follow();
    let mut sender = Sender {
        server,
        size,
        sent: Vec::new(),
    };
    let before = tripod.ran();
    for _ in 0..SINGLE {
        let last = sender.send();
        arrivals.wait(last).await;
        // A burst of changes is held back for some milliseconds.
        tokio::time::sleep(Duration::from_millis(40)).await;
    }
    let spent = (tripod.ran() - before) / SINGLE;
    let took = took(&sender.sent, &arrivals, 0);
    println!(
        "  one endpoint     {:.2?} from event to kernel (p90 {:.2?}), busy {spent:.2?}",
        part(&took, 50),
        part(&took, 90)
    );

    let (begun, before) = (Instant::now(), tripod.ran());
    let mut due = tokio::time::interval(Duration::from_secs(1) / A_SECOND);
    let mut last = 0;
    for _ in 0..A_SECOND * SECONDS {
        due.tick().await;
        last = sender.send();
    }
    arrivals.wait(last).await;
    let elapsed = begun.elapsed();
    let share = (tripod.ran() - before).as_secs_f64() / elapsed.as_secs_f64();
    let storm = crate::programming::took(&sender.sent, &arrivals, SINGLE as usize);
    println!(
        "  {A_SECOND} a second    p50 {:.2?}, p99 {:.2?}, most {:.2?}; {:.1} % of a core; {} of {} seen in {elapsed:.1?}",
        part(&storm, 50),
        part(&storm, 99),
        part(&storm, 100),
        share * 100.0,
        storm.len(),
        A_SECOND * SECONDS
    );
}

/// How long those from `first` on took. One that the next change of the same
/// Service replaced before it was written never arrives.
fn took(sent: &[Instant], arrivals: &Arrivals, first: usize) -> Vec<Duration> {
    let numbered = (0u16..).zip(sent).skip(first);
    let mut took: Vec<Duration> = numbered
        .filter_map(|(last, sent)| Some(arrivals.get(last)?.duration_since(*sent)))
        .collect();
    took.sort_unstable();
    took
}

/// The duration below which so many of a hundred are.
fn part(sorted: &[Duration], percent: usize) -> Duration {
    let at = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted.get(at).copied().unwrap_or_default()
}
