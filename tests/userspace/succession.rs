//! One process replaces another while clients keep calling: no call is refused, reset or sent to an
//! endpoint that is gone.

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use std::{fs, io};

use super::{SOON, comes_to_fail, comes_to_reach, reaches};
use crate::lab::{
    Lab, Service, Tripod, ask, eventually, say, tcp, tripod_binary, udp, udp_ask, udp_say,
};

on_each_capture!(
    a_new_process_first_and_nobody_notices,
    an_old_process_ends_first_and_nobody_notices,
    without_a_successor_the_cluster_is_followed_until_the_deadline,
    a_successor_that_is_killed_leaves_the_addresses_to_the_old_one,
    a_third_process_takes_over_when_the_first_has_ended,
    a_changed_configuration_file_lets_connections_end,
    only_root_of_the_node_has_a_process_give_way,
    udp_flows_go_on_with_their_sockets,
    connections_to_deleted_services_go_on_while_the_old_process_ends,
);

/// Callers at a time.
const CALLERS: usize = 4;
/// The time limit of a call: at most as long as a process takes to start.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);
/// Calls that must succeed after each step.
const MORE: usize = 100;

/// Starts another process on the node, which can run together with the first.
pub(super) fn start(lab: &Lab, number: u16, flags: &[&str]) -> Tripod {
    let capture = format!("--userspace-capture={}", lab.capture.flag());
    let pods = "--cluster-cidr=10.244.0.0/24,fd00:244::/64";
    let flags = [&[&capture, "--userspace-workers=2", pods], flags].concat();
    Tripod::start_pod_beside(lab, "userspace", number, &flags)
}

/// Waits until `tripod` has compared everything that it installed once more, and would have
/// repaired anything missing.
fn compares_everything(tripod: &Tripod) {
    let full = || tripod.logged(&["synced", "full=true"]);
    // One line for each family: at least one sync began after this.
    let enough = full() + 3;
    eventually("full syncs", 2 * SOON, || match full() {
        now if now >= enough => Ok(()),
        now => Err(format!("{now} lines of {enough}")),
    });
}

/// Connections that stay open, and who answers on each.
pub(super) struct Open(Vec<(TcpStream, String)>);

impl Open {
    pub(super) fn to(lab: &Lab, addresses: &[SocketAddr]) -> Open {
        let open = addresses.iter().map(|to| {
            let mut stream = tcp(&lab.client, *to).expect("a connection");
            let name = say(&mut stream, "name").expect("an answer");
            (stream, name)
        });
        Open(open.collect())
    }

    pub(super) fn are_served(&mut self, when: &str) {
        for (stream, name) in &mut self.0 {
            assert_eq!(say(stream, "name").expect(when), *name, "{when}");
        }
    }
}

#[derive(Default)]
pub struct Calls {
    stop: AtomicBool,
    made: AtomicUsize,
    /// Whether endpoint `a` is gone.
    a_is_gone: AtomicBool,
}

impl Calls {
    pub fn more(&self) {
        let enough = self.made.load(Relaxed) + MORE;
        eventually("some more calls", SOON, || match self.made.load(Relaxed) {
            made if made >= enough => Ok(()),
            made => Err(format!("{made} of {enough}")),
        });
    }
}

/// Sets the flag that tells callers to stop when it is dropped, also after a failure.
pub struct Stop<'a>(pub &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Calls without a pause while `body` runs; no call may fail or be answered by an endpoint that is
/// gone. The result of `body` lives as long as they call.
pub fn under_load<T>(lab: &Lab, addresses: &[SocketAddr], body: impl FnOnce(&Calls) -> T) {
    // A fast machine makes more calls than the usual range has ports, and each port waits for
    // a minute until the next call to the same address may use it.
    let range = Path::new("/proc/sys/net/ipv4/ip_local_port_range");
    let widened = lab.client.enter(|| fs::write(range, "10000 65000"));
    widened.expect("a wide range of ports");
    let calls = &Calls::default();
    let caller = |number: usize| {
        lab.client.enter(|| {
            let mut failures = Vec::new();
            for to in addresses.iter().cycle().skip(number) {
                if calls.stop.load(Relaxed) {
                    break;
                }
                let gone = calls.a_is_gone.load(Relaxed);
                match call(*to) {
                    Ok(name) if gone && name == "a" => failures.push(format!("{to}: by a")),
                    Ok(_) => {}
                    Err(error) => failures.push(format!("{to}: {error}")),
                }
                calls.made.fetch_add(1, Relaxed);
            }
            failures
        })
    };
    std::thread::scope(|scope| {
        let callers: Vec<_> = (0..CALLERS)
            .map(|number| scope.spawn(move || caller(number)))
            .collect();
        let stop = Stop(&calls.stop);
        let _alive = body(calls);
        drop(stop);
        let failures: Vec<_> = callers
            .into_iter()
            .flat_map(|caller| caller.join().expect("a caller does not panic"))
            .collect();
        none_failed(calls.made.load(Relaxed), &failures);
    });
}

/// Panics with the first of `failures` among `made` calls, if there are any.
pub(super) fn none_failed(made: usize, failures: &[String]) {
    assert!(
        failures.is_empty(),
        "of {made} calls {} failed: {:?}",
        failures.len(),
        &failures[..failures.len().min(5)]
    );
}

/// Makes a call in the calling thread's namespace.
pub(super) fn call(to: SocketAddr) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    say(&mut stream, "name")
}

/// Removes `a` from the Service; once that is applied, its answers count as failures.
fn a_goes(lab: &Lab, web: &Service, calls: &Calls) {
    lab.publish(web, &["b", "c"]);
    for to in web.cluster() {
        eventually("a is gone", SOON, || {
            // Others call meanwhile, so the order of endpoints looks random: the chance that none
            // of twelve answers of three endpoints is by a is one in 130.
            let answers: Vec<_> = (0..60).map(|_| ask(&lab.client, to)).collect();
            if answers.iter().flatten().any(|name| name == "a") {
                Err("it is not".into())
            } else {
                Ok(())
            }
        });
    }
    calls.a_is_gone.store(true, Relaxed);
    calls.more();
}

fn only_root_of_the_node_has_a_process_give_way(lab: &mut Lab) {
    let web = Service::new("web", 10);
    lab.three_backends().publish_all(&web);
    let tripod = start(lab, 0, &[]);
    let folder = Path::new("/run/tripod/succession");
    let namespace = lab.node.show("stat -Lc %i /proc/self/ns/net");
    let number = 64 * namespace.trim().parse::<u64>().expect("a number");
    let socket = folder.join(format!("process-{number}"));
    let modes = || {
        let modes = [&*socket, folder].map(|path| fs::metadata(path).map(|file| file.mode()));
        let modes = modes.into_iter().map(|mode| Ok(mode? & 0o777));
        modes.collect::<io::Result<Vec<_>>>()
    };
    eventually("the process waits for others", SOON, || match modes() {
        Ok(modes) if modes == [0o600, 0o700] => Ok(()),
        other => Err(format!("{other:?}\n{}", tripod.log())),
    });
    // Abstract sockets can be connected to from any mount namespace.
    let table = lab.node.show("cat /proc/net/unix");
    assert!(!table.contains("@tripod"), "{table}");
}

/// The address that the endpoint of a UDP client sees.
pub(super) fn seen(client: &UdpSocket) -> String {
    client.send(b"peer").expect("sending");
    answer(client)
}

/// Waits for the next answer to a client.
pub(super) fn answer(client: &UdpSocket) -> String {
    let mut buffer = [0; 512];
    let length = client.recv(&mut buffer).expect("an answer");
    String::from_utf8_lossy(&buffer[..length]).into_owned()
}

fn udp_flows_go_on_with_their_sockets(lab: &mut Lab) {
    let web = Service::new("web", 10);
    lab.three_backends().publish(&web, &["a"]);
    let lab = &*lab;
    let flags = ["--userspace-drain-timeout=1s"];
    let mut proxy = start(lab, 0, &flags);
    let client = |to| udp(&lab.client, to).expect("a socket");
    // One client that asks from time to time, and one that gets answers without asking again.
    let clients = web.cluster().into_iter().map(|to| {
        let (asks, listens) = (client(to), client(to));
        let from = seen(&asks);
        udp_say(&listens, "subscribe").expect("an answer");
        (to, asks, from, listens)
    });
    let clients: Vec<_> = clients.collect();
    // Without other local ports, connection tracking stays correct for packets in transit.
    let rules = || {
        let saved = lab.node.show("iptables-save -t nat");
        let ours = saved.lines().filter(|line| line.starts_with("-A TRIPOD"));
        ours.map(str::to_owned).collect::<BTreeSet<_>>()
    };
    let rules_before = rules();
    let are_served = |when: &str| {
        for (to, asks, from, listens) in &clients {
            udp_say(&client(*to), "notify").expect("an answer");
            assert_eq!(answer(listens), "a notify", "{to}: {when}");
            assert_eq!(seen(asks), *from, "{to}: {when}");
        }
    };
    for number in [1, 0] {
        let next = start(lab, number, &flags);
        are_served("both processes run");
        proxy.ask_to_end();
        assert!(proxy.ended().success(), "the old process ended badly");
        are_served("the old process is gone");
        assert_eq!(rules(), rules_before);
        proxy = next;
    }
    let mut next = start(lab, 1, &flags);
    are_served("both processes run");
    next.kill();
    // Datagrams that arrive before may be lost.
    proxy.logs_once(&["serving again"]);
    are_served("by the old one again");
}

fn a_new_process_first_and_nobody_notices(lab: &mut Lab) {
    let web = Service::new("web", 10);
    lab.three_backends().publish_all(&web);
    let lab = &*lab;
    let flags = ["--userspace-drain-timeout=5m", "--iptables-sync-period=1s"];
    let mut old = start(lab, 0, &flags);
    under_load(lab, &web.cluster(), |calls| {
        calls.more();
        let mut open = Open::to(lab, &web.cluster());
        let new = start(lab, 1, &[]);
        calls.more();
        compares_everything(&old);
        old.ask_to_end();
        calls.more();
        // Enough that some would be the old process's if it still got any.
        let addresses = web.cluster().into_iter().cycle().take(16);
        let mut fresh = Open::to(lab, &addresses.collect::<Vec<_>>());
        a_goes(lab, &web, calls);
        open.are_served("the old process was asked to end");
        let late = Service::new("late", 11);
        lab.publish(&late, &["b"]);
        for to in late.cluster() {
            comes_to_reach("a Service that came meanwhile", &["b"], || {
                ask(&lab.client, to)
            });
            reaches("its UDP port", &["b"], || udp_ask(&lab.client, to));
        }
        // Its own connections have kept it until now.
        drop(open);
        assert!(old.ended().success(), "the old process ended badly");
        fresh.are_served("the old process is gone");
        calls.more();
        lab.withdraw(&late);
        for to in late.cluster() {
            comes_to_fail("a Service that went", || ask(&lab.client, to));
        }
        new
    });
}

fn an_old_process_ends_first_and_nobody_notices(lab: &mut Lab) {
    let web = Service::new("web", 10);
    lab.three_backends().publish_all(&web);
    let lab = &*lab;
    let mut old = start(lab, 0, &["--userspace-drain-timeout=5m"]);
    under_load(lab, &web.cluster(), |calls| {
        let mut open = Open::to(lab, &web.cluster());
        old.ask_to_end();
        calls.more();
        a_goes(lab, &web, calls);
        let new = start(lab, 1, &[]);
        calls.more();
        open.are_served("a successor is there");
        drop(open);
        assert!(old.ended().success(), "the old process ended badly");
        calls.more();
        new
    });
}

fn without_a_successor_the_cluster_is_followed_until_the_deadline(lab: &mut Lab) {
    let [web, gone] = [Service::new("web", 10), Service::new("gone", 11)];
    lab.three_backends().publish(&web, &["a"]);
    lab.publish(&gone, &["a"]);
    let patience = Duration::from_secs(10);
    let mut tripod = start(lab, 0, &["--userspace-drain-timeout=10s"]);
    let open = Open::to(lab, &web.cluster());
    let begun = Instant::now();
    tripod.ask_to_end();
    lab.publish(&web, &["b"]);
    lab.withdraw(&gone);
    for to in web.cluster() {
        comes_to_reach("an endpoint that came", &["b"], || ask(&lab.client, to));
        reaches("over UDP", &["b"], || udp_ask(&lab.client, to));
    }
    for to in gone.cluster() {
        comes_to_fail("a Service that went", || ask(&lab.client, to));
    }
    assert!(begun.elapsed() < patience, "the test was too slow");
    assert!(tripod.ended().success());
    assert!(begun.elapsed() >= patience, "{:?}", begun.elapsed());
    drop(open);
}

fn a_successor_that_is_killed_leaves_the_addresses_to_the_old_one(lab: &mut Lab) {
    let web = Service::new("web", 10);
    lab.three_backends().publish_all(&web);
    let mut old = start(lab, 0, &["--userspace-drain-timeout=5m"]);
    for asked_to_end in [false, true] {
        let mut new = start(lab, 1, &[]);
        if asked_to_end {
            old.ask_to_end();
        }
        let mut open = Open::to(lab, &web.cluster());
        open.are_served("by the new process");
        new.kill();
        for to in web.cluster() {
            comes_to_reach("the old process", &["a", "b", "c"], || ask(&lab.client, to));
        }
        let late = Service::new("late", 11);
        lab.publish(&late, &["b"]);
        for to in late.cluster() {
            comes_to_reach("what came since", &["b"], || ask(&lab.client, to));
        }
        lab.withdraw(&late);
        for to in late.cluster() {
            comes_to_fail("what went since", || ask(&lab.client, to));
        }
    }
    let _new = start(lab, 1, &[]);
    assert!(old.ended().success());
    for to in web.cluster() {
        reaches("the last one", &["a", "b", "c"], || ask(&lab.client, to));
    }
}

/// One Service is deleted before the new process starts, which never knows of it, and one while
/// both run.
fn connections_to_deleted_services_go_on_while_the_old_process_ends(lab: &mut Lab) {
    let [web, before, meanwhile] = [("web", 10), ("before", 11), ("meanwhile", 12)]
        .map(|(name, number)| Service::new(name, number));
    lab.three_backends();
    for service in [&web, &before, &meanwhile] {
        lab.publish_all(service);
    }
    let flags = ["--userspace-drain-timeout=5m", "--iptables-sync-period=1s"];
    let mut old = start(lab, 0, &flags);
    let deleted = [before.cluster(), meanwhile.cluster()].concat();
    let mut open = Open::to(lab, &deleted);
    let goes = |service: &Service| {
        lab.withdraw(service);
        for to in service.cluster() {
            comes_to_fail("a Service that went", || ask(&lab.client, to));
        }
    };
    goes(&before);
    let new = start(lab, 1, &flags);
    goes(&meanwhile);
    old.ask_to_end();
    compares_everything(&new);
    open.are_served("the new process has compared everything");
    for to in web.cluster() {
        reaches("the other Service", &["a", "b", "c"], || {
            ask(&lab.client, to)
        });
    }
    drop(open);
    assert!(old.ended().success(), "the old process ended badly");
    eventually("nothing of theirs is left", SOON, || {
        let steps = ["ip route show table all", "ip -6 route show table all"];
        let routes = steps.map(|step| lab.node.show(step)).concat();
        let is_left = |to: &&SocketAddr| routes.contains(&format!("local {} ", to.ip()));
        match deleted.iter().find(is_left) {
            Some(to) => Err(format!("{to}: {routes}")),
            None => Ok(()),
        }
    });
}

/// While the first process drains, its sockets come before those of the second one, which could
/// not hand connections to the third.
fn a_third_process_takes_over_when_the_first_has_ended(lab: &mut Lab) {
    let web = Service::new("web", 10);
    lab.three_backends().publish_all(&web);
    let lab = &*lab;
    // Its open connections keep it for that long, and the third process waits meanwhile.
    let mut first = start(lab, 0, &["--userspace-drain-timeout=10s"]);
    under_load(lab, &web.cluster(), |calls| {
        let mut open = Open::to(lab, &web.cluster());
        let mut second = start(lab, 1, &["--userspace-drain-timeout=5m"]);
        first.ask_to_end();
        open.are_served("the first process was asked to end");
        let third = start(lab, 2, &[]);
        assert!(first.ended().success(), "the first process ended badly");
        second.ask_to_end();
        calls.more();
        // Enough that some would be the second process's if it still got any.
        let addresses = web.cluster().into_iter().cycle().take(16);
        let mut fresh = Open::to(lab, &addresses.collect::<Vec<_>>());
        assert!(second.ended().success(), "the second process ended badly");
        fresh.are_served("the second process is gone");
        calls.more();
        third
    });
}

fn a_changed_configuration_file_lets_connections_end(lab: &mut Lab) {
    let web = Service::new("web", 10);
    lab.three_backends().publish(&web, &["a"]);
    let file = "/run/config.yaml";
    let text = |mode: &str| {
        format!(
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n\
             mode: userspace\nclusterCIDR: 10.244.0.0/24,fd00:244::/64\n\
             hostnameOverride: node\nhealthzBindAddress: 127.0.0.1:11000\n\
             metricsBindAddress: 127.0.0.1:12000\n{mode}"
        )
    };
    fs::write(file, text("")).expect("a configuration file");
    let mut command = lab.node.command(tripod_binary());
    command
        .args(["--config", file, "--v=4", "--userspace-drain-timeout=5m"])
        .arg(format!("--userspace-capture={}", lab.capture.flag()))
        .arg("--manifests")
        .arg(lab.manifests());
    let mut tripod = Tripod::spawn(command);
    eventually("it is applied", SOON, || match tripod.logged(&["synced"]) {
        0 => Err(tripod.log()),
        _ => Ok(()),
    });
    let mut open = Open::to(lab, &web.cluster());
    fs::write(file, text("oomScoreAdj: -998\n")).expect("a change");
    eventually("it knows", SOON, || {
        match tripod.logged(&["has changed: ending"]) {
            0 => Err(tripod.log()),
            _ => Ok(()),
        }
    });
    lab.publish(&web, &["b"]);
    for to in web.cluster() {
        comes_to_reach("an endpoint that came", &["b"], || ask(&lab.client, to));
    }
    open.are_served("the file was changed");
    drop(open);
    // This makes a supervisor restart it.
    assert!(!tripod.ended().success());
}
