//! No process runs for a while, and a holder keeps the sockets: clients that call
//! meanwhile wait for the next process and get its answer.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::succession::{Calls, answer, seen, under_load};
use super::{SOON, comes_to_fail, comes_to_reach, reaches};
use crate::lab::{
    Lab, Service, Tripod, ask, eventually, say, tcp, tcp_from, tripod_binary, udp, udp_ask, udp_say,
};

on_each_capture!(
    an_upgrade_with_a_gap_costs_no_connection,
    who_calls_after_a_kill_waits_for_the_next_process_with_any_number_of_workers,
    a_service_that_goes_in_the_gap_is_closed,
    another_holder_gets_the_sockets,
    clients_keep_their_endpoints_with_a_gap_and_without,
    udp_flows_go_on_after_the_gap,
    without_a_gap_the_sockets_of_the_old_process_are_closed,
);

/// Callers of each address in a gap: more than there are sockets, so that some wait at each of
/// them.
const WAITING: usize = 24;

pub fn start_holder(lab: &Lab) -> Tripod {
    let mut command = lab.node.command(tripod_binary());
    command.args(["hold", "--confine=files"]);
    let holder = Tripod::spawn(command);
    eventually("the holder listens", SOON, || {
        match holder.logged(&["holding listening sockets"]) {
            0 => Err(holder.log()),
            _ => Ok(()),
        }
    });
    let status = std::fs::read_to_string(format!("/proc/{}/status", holder.pid()));
    // SECCOMP_MODE_FILTER, `proc_pid_status(5)`.
    assert!(status.expect("a status").contains("Seccomp:\t2\n"));
    holder
}

/// Starts a proxy with `workers` workers.
fn start(lab: &Lab, workers: usize) -> Tripod {
    start_beside(lab, 0, workers)
}

/// Like [`start`], while another proxy with a different `number` runs.
pub(super) fn start_beside(lab: &Lab, number: u16, workers: usize) -> Tripod {
    let capture = format!("--userspace-capture={}", lab.capture.flag());
    let workers = format!("--userspace-workers={workers}");
    let pods = "--cluster-cidr=10.244.0.0/24,fd00:244::/64";
    let drain = "--userspace-drain-timeout=5s";
    Tripod::start_pod_beside(lab, "userspace", number, &[&capture, &workers, pods, drain])
}

/// Waits until the holder has `sockets` sockets of a proxy.
pub fn are_held(proxy: &Tripod, sockets: usize) {
    let words = ["the holder has all sockets", &format!("sockets={sockets}")];
    eventually("the sockets are held", SOON, || {
        match proxy.logged(&words) {
            0 => Err(proxy.log()),
            _ => Ok(()),
        }
    });
}

/// Calls all `addresses` while no process runs; `start` starts one when all calls wait.
/// Each call must be answered.
pub fn wait_in_the_gap<T>(lab: &Lab, addresses: &[SocketAddr], start: impl FnOnce() -> T) -> T {
    let connected = &AtomicUsize::new(0);
    let call = |to: SocketAddr| -> io::Result<String> {
        let mut stream = tcp(&lab.client, to)?;
        connected.fetch_add(1, Relaxed);
        say(&mut stream, "name")
    };
    std::thread::scope(|scope| {
        let to = addresses.iter().cycle().take(WAITING * addresses.len());
        let calls: Vec<_> = to.map(|to| scope.spawn(move || call(*to))).collect();
        eventually("all wait", SOON, || match connected.load(Relaxed) {
            all if all == calls.len() => Ok(()),
            some => Err(format!("{some} of {}", calls.len())),
        });
        let started = start();
        for call in calls {
            let answer = call.join().expect("a caller does not panic");
            assert!(
                matches!(answer.as_deref(), Ok("a" | "b" | "c")),
                "{answer:?}"
            );
        }
        started
    })
}

fn an_upgrade_with_a_gap_costs_no_connection(lab: &mut Lab) {
    let web = Service::new("web", 10);
    lab.three_backends().publish_all(&web);
    let lab = &*lab;
    let _holder = start_holder(lab);
    let mut old = start(lab, 2);
    are_held(&old, 8);
    under_load(lab, &web.cluster(), |calls| {
        calls.more();
        for workers in [2, 3] {
            assert!(old.terminate().success(), "the old process ended badly");
            // These callers now wait, and so do the others.
            old = wait_in_the_gap(lab, &web.cluster(), || start(lab, workers));
            calls.more();
        }
        old
    });
}

fn who_calls_after_a_kill_waits_for_the_next_process_with_any_number_of_workers(lab: &mut Lab) {
    let web = Service::new("web", 10);
    lab.three_backends().publish_all(&web);
    let _holder = start_holder(lab);
    let mut proxy = start(lab, 3);
    are_held(&proxy, 12);
    // Sockets are taken over whatever the number of workers that served them.
    for (workers, sockets) in [(1, 12), (4, 16), (2, 16)] {
        proxy.kill();
        let asked = web.cluster().map(|to| {
            let socket = udp(&lab.client, to).expect("a socket");
            socket.send(b"name").expect("sending");
            socket
        });
        proxy = wait_in_the_gap(lab, &web.cluster(), || start(lab, workers));
        are_held(&proxy, sockets);
        for socket in asked {
            let mut answer = [0; 16];
            let length = socket.recv(&mut answer);
            let length = length.expect("an answer to what was asked in the gap");
            assert!(answer[..length].ends_with(b" name"), "{answer:?}");
        }
        for to in web.cluster() {
            reaches("over TCP", &["a", "b", "c"], || ask(&lab.client, to));
            reaches("over UDP", &["a", "b", "c"], || udp_ask(&lab.client, to));
        }
    }
}

fn a_service_that_goes_in_the_gap_is_closed(lab: &mut Lab) {
    let [web, gone] = [Service::new("web", 10), Service::new("gone", 11)];
    lab.three_backends().publish(&web, &["a"]);
    let holder = start_holder(lab);
    let mut proxy = start(lab, 2);
    are_held(&proxy, 8);
    let before = holder.descriptors();
    lab.publish(&gone, &["b"]);
    are_held(&proxy, 16);
    assert_eq!(holder.descriptors(), before + 8);
    // Sockets are held before packets are captured for them.
    let to = gone.cluster()[0];
    comes_to_reach("it is served", &["b"], || ask(&lab.client, to));
    assert!(proxy.terminate().success());
    lab.withdraw(&gone);
    let waits = tcp(&lab.client, gone.cluster()[0]);
    let mut waits = waits.expect("the kernel completes connections");
    let _proxy = start(lab, 2);
    assert!(say(&mut waits, "name").is_err(), "nobody answers for it");
    for to in gone.cluster() {
        comes_to_fail("a Service that went", || ask(&lab.client, to));
    }
    for to in web.cluster() {
        comes_to_reach("the other one", &["a"], || ask(&lab.client, to));
    }
    eventually("its sockets are closed", SOON, || {
        match holder.descriptors() {
            now if now == before => Ok(()),
            now => Err(format!("{now} descriptors, {before} before")),
        }
    });
}

fn another_holder_gets_the_sockets(lab: &mut Lab) {
    let web = Service::new("web", 10);
    lab.three_backends().publish_all(&web);
    let lab = &*lab;
    let mut proxy = start(lab, 2);
    let has_them = |holders: usize| {
        eventually("the holder has the sockets", 2 * SOON, || {
            match proxy.logged(&["the holder has all sockets"]) {
                all if all == holders => Ok(()),
                _ => Err(proxy.log()),
            }
        });
    };
    for holders in [1, 2] {
        let mut holder = start_holder(lab);
        has_them(holders);
        under_load(lab, &web.cluster(), |calls| {
            calls.more();
            holder.kill();
            calls.more();
        });
    }
    let _holder = start_holder(lab);
    has_them(3);
    proxy.kill();
    let _next = wait_in_the_gap(lab, &web.cluster(), || start(lab, 2));
}

fn without_a_gap_the_sockets_of_the_old_process_are_closed(lab: &mut Lab) {
    let web = Service::new("web", 10);
    lab.three_backends().publish_all(&web);
    let lab = &*lab;
    let holder = start_holder(lab);
    let mut old = start(lab, 2);
    are_held(&old, 8);
    let before = holder.descriptors();
    for (number, killed) in [(1, false), (2, true)] {
        let next = |calls: &Calls| {
            calls.more();
            let new = start_beside(lab, number, 2);
            are_held(&new, 8);
            calls.more();
            new
        };
        let gone = |old: &mut Tripod| {
            if killed {
                old.kill();
            } else {
                assert!(old.terminate().success(), "the old process ended badly");
            }
            eventually("its sockets are closed", SOON, || {
                match holder.descriptors() {
                    now if now == before => Ok(()),
                    now => Err(format!("{now} descriptors, {before} before")),
                }
            });
        };
        let mut new = None;
        under_load(lab, &web.cluster(), |calls| {
            new = Some(next(calls));
            if !killed {
                gone(&mut old);
            }
            calls.more();
        });
        if killed {
            // Connections that it had accepted are lost, so nobody calls.
            gone(&mut old);
        }
        old = new.expect("it was started");
        under_load(lab, &web.cluster(), Calls::more);
    }
}

fn clients_keep_their_endpoints_with_a_gap_and_without(lab: &mut Lab) {
    let sticky = Service::new("sticky", 10).sticky(10_800);
    let plain = Service::new("plain", 11);
    lab.three_backends().publish_all(&sticky);
    lab.publish_all(&plain);
    let mut proxy = start(lab, 2);
    let mut callers = Vec::new();
    for to in sticky.cluster() {
        // All of them get the same endpoints again by chance only once in half a million times.
        let sources: Vec<_> = (1..=12).map(|n| lab.another_source(to.ip(), n)).collect();
        callers.extend(sources.into_iter().map(|from| (from, to)));
    }
    let lab = &*lab;
    let flows: Vec<_> = (0..12)
        .map(|n| udp(&lab.client, plain.cluster()[n % 2]).expect("a socket"))
        .collect();
    // In another order than at first, so that a scheduler that starts over assigns them
    // differently.
    let in_turn = |first: usize, count: usize, ask: &dyn Fn(usize) -> String| {
        let mut names = vec![String::new(); count];
        for number in (0..count).cycle().skip(first).take(count) {
            names[number] = ask(number);
        }
        names
    };
    let pinned = |first: usize| {
        in_turn(first, callers.len(), &|number| {
            let (from, to) = callers[number];
            let mut stream = tcp_from(&lab.client, from, to).expect("a connection");
            say(&mut stream, "name").expect("an answer")
        })
    };
    let assigned = |first: usize| {
        in_turn(first, flows.len(), &|number| {
            udp_say(&flows[number], "name").expect("an answer")
        })
    };
    let before = (pinned(0), assigned(0));
    for _ in 0..3 {
        // Enough questions to make a flow more than one question and its answer.
        assert_eq!(assigned(0), before.1);
    }
    let mut second = start_beside(lab, 1, 3);
    assert!(proxy.terminate().success());
    assert_eq!(pinned(1), before.0, "side by side");
    for _ in 0..4 {
        assert_eq!(assigned(1), before.1, "side by side");
    }
    let _holder = start_holder(lab);
    are_held(&second, 24);
    assert!(second.terminate().success());
    let _third = start(lab, 2);
    assert_eq!(pinned(1), before.0, "over the holder");
    assert_eq!(assigned(1), before.1, "over the holder");
}

/// The endpoint sees the same source ports, and datagrams that it sends in the gap wait for
/// the next process.
fn udp_flows_go_on_after_the_gap(lab: &mut Lab) {
    let web = Service::new("web", 10);
    lab.three_backends().publish(&web, &["a"]);
    let lab = &*lab;
    let _holder = start_holder(lab);
    let mut proxy = start(lab, 2);
    are_held(&proxy, 8);
    let client = |to| udp(&lab.client, to).expect("a socket");
    let endpoints = ["10.244.0.11:8080", "[fd00:244::11]:8080"];
    let clients = web
        .cluster()
        .into_iter()
        .zip(endpoints)
        .map(|(to, endpoint)| {
            let (asks, listens) = (client(to), client(to));
            let from = seen(&asks);
            udp_say(&listens, "subscribe").expect("an answer");
            (endpoint.parse().expect("an address"), asks, from, listens)
        });
    let clients: Vec<(SocketAddr, _, _, _)> = clients.collect();
    for workers in [1, 3] {
        assert!(proxy.terminate().success(), "the old process ended badly");
        for (endpoint, ..) in &clients {
            let beside = udp(&lab.node, *endpoint).expect("a socket");
            udp_say(&beside, "notify").expect("an answer");
        }
        proxy = start(lab, workers);
        for (endpoint, asks, from, listens) in &clients {
            assert_eq!(answer(listens), "a notify", "{endpoint}, in the gap");
            assert_eq!(seen(asks), *from, "{endpoint}");
        }
    }
}
