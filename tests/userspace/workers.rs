//! How connections are spread over the threads of the data path.

use std::collections::BTreeSet;
use std::fs;

use crate::lab::{Lab, Service, Tripod, say, tcp};

on_each_capture!(no_worker_serves_many_more_than_another);

const WORKERS: usize = 8;
const CONNECTIONS: usize = 64;

/// With the kernel's hash alone, some worker would have half of the mean, or twice as many.
fn no_worker_serves_many_more_than_another(lab: &mut Lab) {
    let web = Service::new("web", 10);
    lab.three_backends().publish_all(&web);
    let workers = format!("--userspace-workers={WORKERS}");
    let tripod = Tripod::start_with(lab, &[&workers]);
    let idle = watched(&tripod);
    let connect = |_| {
        let mut stream = tcp(&lab.client, web.cluster()[0]).expect("a connection");
        say(&mut stream, "name").expect("an answer");
        stream
    };
    let connections: Vec<_> = (0..CONNECTIONS).map(connect).collect();
    let mut busy: Vec<usize> = watched(&tripod)
        .difference(&idle)
        .map(|sockets| sockets.len())
        .collect();
    busy.sort_unstable_by_key(|&sockets| std::cmp::Reverse(sockets));
    busy.truncate(WORKERS);
    // Two sockets per connection, and the few that a worker has for itself.
    let (most, mean) = (busy[0], 2 * CONNECTIONS / WORKERS);
    let least = busy[busy.len() - 1];
    assert_eq!(busy.len(), WORKERS, "{busy:?}");
    assert!(most <= mean + 8 && least >= mean - 4, "{busy:?}");
    drop(connections);
}

/// The descriptors that each epoll instance of a process watches, as proc_pid_fdinfo(5) shows them.
/// An instance with two descriptors counts once.
fn watched(tripod: &Tripod) -> BTreeSet<BTreeSet<String>> {
    let folder = format!("/proc/{}/fdinfo", tripod.pid());
    let infos = fs::read_dir(folder).expect("a running process");
    let infos = infos.filter_map(|info| fs::read_to_string(info.ok()?.path()).ok());
    let sockets = infos.map(|info| {
        let watched = info.lines().filter_map(|line| line.strip_prefix("tfd:"));
        let number = |line: &str| line.split_whitespace().next().map(str::to_owned);
        watched.filter_map(number).collect::<BTreeSet<_>>()
    });
    sockets.filter(|sockets| !sockets.is_empty()).collect()
}
