//! Properties of every scheduler, and helpers for the tests of each.

mod recorded;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    net::Ipv4Addr,
    sync::atomic::Ordering::Relaxed,
    thread,
};

use proptest::{collection::vec, prelude::*};

use super::*;

/// Real servers 10.0.0.1:PORT, idle, with weight 1.
pub(super) fn servers_at(ports: &[u16]) -> Vec<RealServer> {
    let server = |&port| RealServer {
        address: SocketAddr::from(([10, 0, 0, 1], port)),
        weight: 1,
        load: Arc::default(),
    };
    ports.iter().map(server).collect()
}

pub(super) fn with_weights(mut servers: Vec<RealServer>, weights: &[u32]) -> Vec<RealServer> {
    assert_eq!(servers.len(), weights.len());
    for (server, &weight) in servers.iter_mut().zip(weights) {
        server.weight = weight;
    }
    servers
}

/// Idle real servers with these weights.
pub(super) fn servers(weights: &[u32]) -> Vec<RealServer> {
    let ports: Vec<u16> = (1..=weights.len() as u16).collect();
    with_weights(servers_at(&ports), weights)
}

/// Real servers with these weights, active and inactive connections.
pub(super) fn loaded(loads: &[(u32, u32, u32)]) -> Vec<RealServer> {
    let weights: Vec<u32> = loads.iter().map(|load| load.0).collect();
    let servers = servers(&weights);
    for (server, &(_, active, inactive)) in servers.iter().zip(loads) {
        server.load.active.store(active, Relaxed);
        server.load.inactive.store(inactive, Relaxed);
    }
    servers
}

/// Weight, active and inactive connections of each server, and the expected pick.
pub(super) type LoadCase = (&'static [(u32, u32, u32)], Option<usize>);

/// Checks where each case's next connection goes.
pub(super) fn assert_picks(scheduler: &dyn Scheduler, cases: &[LoadCase]) {
    for &(loads, expected) in cases {
        let servers = loaded(loads);
        let picked = scheduler.pick(Candidates::new(&servers, &|_| false), &flow(1));
        assert_eq!(picked, expected, "{loads:?}");
    }
}

/// A flow from the client of that number, in 172.16.0.0/12.
pub(super) fn flow(client: u32) -> Flow {
    let address = Ipv4Addr::from_bits(0xac10_0000 + client);
    Flow {
        client: SocketAddr::from((address, 40_000)),
        destination: [10, 96, 0, 1].into(),
    }
}

/// The next picks of one client.
pub(super) fn sequence(
    scheduler: &dyn Scheduler,
    servers: &[RealServer],
    picks: usize,
) -> Vec<usize> {
    (0..picks)
        .map(|_| {
            scheduler
                .pick(Candidates::new(servers, &|_| false), &flow(1))
                .unwrap()
        })
        .collect()
}

/// How often each server is picked by this number of clients.
pub(super) fn counts(scheduler: &dyn Scheduler, servers: &[RealServer], clients: u32) -> Vec<u32> {
    let mut counts = vec![0; servers.len()];
    for client in 0..clients {
        counts[scheduler
            .pick(Candidates::new(servers, &|_| false), &flow(client))
            .unwrap()] += 1;
    }
    counts
}

/// How often each server is picked by concurrent threads.
pub(super) fn concurrent_counts(
    scheduler: &dyn Scheduler,
    servers: &[RealServer],
    threads: u32,
    picks_each: u32,
) -> Vec<u32> {
    let start = std::sync::Barrier::new(threads as usize);
    let worker = || {
        start.wait();
        counts(scheduler, servers, picks_each)
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().fold(vec![0; servers.len()], |sum, w| {
            sum.iter()
                .zip(w.join().unwrap())
                .map(|(a, b)| a + b)
                .collect()
        })
    })
}

/// Picks for connections that stay open.
pub(super) fn kept_connections(
    scheduler: &dyn Scheduler,
    servers: &[RealServer],
    connections: usize,
) -> Vec<usize> {
    (0..connections)
        .map(|_| {
            let picked = scheduler
                .pick(Candidates::new(servers, &|_| false), &flow(1))
                .unwrap();
            servers[picked].load.active.fetch_add(1, Relaxed);
            picked
        })
        .collect()
}

/// Checks that each count is the weight's share of all counts, with an error of at most `tolerance`
/// of all counts; a weight of 0 has none.
#[track_caller]
pub(super) fn assert_shares(counts: &[u32], weights: &[u32], tolerance: f64) {
    let total: f64 = counts.iter().map(|&n| f64::from(n)).sum();
    let weight: f64 = weights.iter().map(|&w| f64::from(w)).sum();
    for (&n, &w) in counts.iter().zip(weights) {
        let share = f64::from(n) / total;
        let due = f64::from(w) / weight;
        assert!(
            (share - due).abs() <= tolerance && (w > 0 || n == 0),
            "{counts:?} for weights {weights:?}"
        );
    }
}

#[test]
fn nobody_to_pick() {
    for name in SchedulerName::ALL {
        for weights in [&[][..], &[0], &[0, 0, 0]] {
            let servers = servers(weights);
            let scheduler = build(name, &servers, None, Seed::default());
            assert_eq!(
                scheduler.pick(Candidates::new(&servers, &|_| false), &flow(1)),
                None,
                "{name} {weights:?}"
            );
        }
        let servers = servers(&[1, 2]);
        let scheduler = build(name, &servers, None, Seed::default());
        assert_eq!(
            scheduler.pick(Candidates::new(&servers, &|_| true), &flow(1)),
            None,
            "{name}"
        );
    }
}

#[test]
fn one_server_takes_everything() {
    for name in SchedulerName::ALL {
        let servers = servers(&[0, 5, 0]);
        let scheduler = build(name, &servers, None, Seed::default());
        assert_eq!(counts(&*scheduler, &servers, 100), [0, 100, 0], "{name}");
    }
}

#[test]
fn retries_reach_every_server_once() {
    for name in SchedulerName::ALL {
        let servers = servers(&[1, 1000, 0, 3, 1, 1]);
        let scheduler = build(name, &servers, None, Seed::default());
        let mut tried = Vec::new();
        while let Some(picked) =
            scheduler.pick(Candidates::new(&servers, &|i| tried.contains(&i)), &flow(3))
        {
            assert!(!tried.contains(&picked), "{name} {tried:?} {picked}");
            tried.push(picked);
        }
        tried.sort_unstable();
        assert_eq!(tried, [0, 1, 3, 4, 5], "{name}");
    }
}

#[test]
fn equal_weights_share_equally() {
    for name in SchedulerName::ALL {
        // dh sees only one destination; its own test varies that.
        if name == SchedulerName::Dh {
            continue;
        }
        let servers = servers(&[1; 4]);
        let scheduler = build(name, &servers, None, Seed::default());
        let mut counts = [0; 4];
        for client in 0..8_000 {
            let picked = scheduler
                .pick(Candidates::new(&servers, &|_| false), &flow(client))
                .unwrap();
            servers[picked].load.active.fetch_add(1, Relaxed);
            counts[picked] += 1;
        }
        assert_shares(&counts, &[1; 4], 0.03);
    }
}

/// The first connections of a cluster's nodes, even if the servers appeared one by one before any
/// client called.
#[test]
fn nodes_begin_with_different_servers() {
    use SchedulerName::{Lc, Nq, Rr, Sed, Wlc, Wrr};
    let servers = servers(&[1; 3]);
    for name in [Rr, Wrr, Lc, Wlc, Sed, Nq] {
        for at_once in [true, false] {
            let mut counts = [0; 3];
            for node in 0..3_000 {
                let seed = Seed::of(&format!("node-{node}"), "default/web");
                let mut scheduler = build(name, &[], None, seed);
                for n in if at_once { 3..=3 } else { 1..=3 } {
                    let before = (&*scheduler, &servers[..n - 1]);
                    scheduler = build(name, &servers[..n], Some(before), seed);
                }
                counts[scheduler
                    .pick(Candidates::new(&servers, &|_| false), &flow(1))
                    .unwrap()] += 1;
            }
            assert_shares(&counts, &[1; 3], 0.04);
        }
    }
}

/// Counts what each thread allocates, for
/// [`picking_does_not_allocate`](picking_does_not_allocate).
struct CountingAllocator;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is passed to `System` unchanged; counting touches only a thread-local that
// needs neither allocation nor destructor.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of `dealloc`, and `System` allocated the block.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn picking_does_not_allocate() {
    let before = ALLOCATIONS.get();
    drop(std::hint::black_box(Box::new(1)));
    assert_eq!(ALLOCATIONS.get(), before + 1, "the counter counts");

    for name in SchedulerName::ALL {
        let servers = servers(&[1, 0, 3, 2, 1_000_000]);
        let scheduler = build(name, &servers, None, Seed::default());
        let before = ALLOCATIONS.get();
        for client in 0..200 {
            for out in 0..32 {
                let skip = |i: usize| out >> i & 1 == 1;
                std::hint::black_box(
                    scheduler.pick(Candidates::new(&servers, &skip), &flow(client)),
                );
            }
        }
        assert_eq!(ALLOCATIONS.get(), before, "{name}");
    }
}

fn weight() -> impl Strategy<Value = u32> {
    prop_oneof![2 => Just(0), 4 => 1u32..6, 2 => 1u32..2000, 1 => any::<u32>()]
}

/// A server's port and weight, its connections, and whether it is skipped.
fn server() -> impl Strategy<Value = ((u16, u32), (u32, u32), bool)> {
    let connections = prop_oneof![3 => 0u32..5, 1 => any::<u32>()];
    (
        (1u16..40, weight()),
        (connections.clone(), connections),
        any::<bool>(),
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Picks a usable server if and only if there is one, even in a set that inherited from
    /// another.
    #[test]
    fn picks_a_usable_server_iff_there_is_one(
        sets in vec(vec(server(), 0..12), 1..4),
        client in 0u32..1_000_000,
        service in "[a-z]{3}",
    ) {
        let seed = Seed::of("node", &service);
        for name in SchedulerName::ALL {
            let mut previous: Option<(Box<dyn Scheduler>, Vec<RealServer>)> = None;
            for set in &sets {
                let (ports, weights): (Vec<_>, Vec<_>) = set.iter().map(|s| s.0).unzip();
                let servers = with_weights(servers_at(&ports), &weights);
                for (server, (_, (active, inactive), _)) in servers.iter().zip(set) {
                    server.load.active.store(*active, Relaxed);
                    server.load.inactive.store(*inactive, Relaxed);
                }
                let scheduler = build(name, &servers, previous.as_ref().map(|(s, of)| (&**s, &**of)), seed);
                for skipping in [true, false, true] {
                    let may = |i: usize| weights[i] > 0 && !(skipping && set[i].2);
                    let exists = (0..set.len()).any(may);
                    for _ in 0..20 {
                        let skip = |i: usize| skipping && set[i].2;
                        let picked = scheduler.pick(Candidates::new(&servers, &skip), &flow(client));
                        prop_assert_eq!(picked.is_some(), exists, "{}", name);
                        prop_assert!(picked.is_none_or(may), "{} {:?}", name, picked);
                    }
                }
                previous = Some((scheduler, servers));
            }
        }
    }
}
