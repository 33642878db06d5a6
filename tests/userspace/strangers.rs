//! Processes of other users and of other network namespaces on the same machine: none of them takes
//! part when one process takes over from another.

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};
use std::time::{Duration, Instant};
use std::{fs, io};

use nix::libc;

use super::gap::{are_held, start_holder};
use super::succession::start;
use super::{SOON, comes_to_reach, reaches};
use crate::lab::{
    Capture, Lab, Service, Tripod, ask, ask_within, eventually, tripod_binary, udp, udp_say,
};

on_each_capture!(
    names_that_look_like_predecessors_delay_no_start,
    processes_of_other_network_namespaces_are_left_alone,
    who_takes_the_ports_of_a_killed_process_gets_nothing_redirected,
);

on_local_capture!(a_taken_address_is_reported_and_served_when_it_is_free);

/// A user without privileges.
const STRANGER: u32 = 65534;

/// The time limit of a call that nobody answers.
const SHORT: Duration = Duration::from_millis(500);

const QUICK: &[&str] = &["--userspace-drain-timeout=1s"];

/// Listens in the namespace of the node, as any user may, under names that look like lines of
/// `/proc/net/unix` about sockets of Tripod.
fn forge(lab: &Lab) -> Vec<UnixListener> {
    let sockets = fs::read_dir("/run/tripod/succession").expect("the folder");
    let names = sockets.map(|socket| socket.expect("a socket").path().display().to_string());
    let more = (0..8).map(|number| format!("/run/tripod/succession/process-{number}"));
    let names: BTreeSet<String> = names.chain(more).collect();
    let forged = names.into_iter().map(|path| {
        let name = format!("\n0: 00000002 00000000 00010000 0001 01 7 {path}\n");
        let name = UnixAddr::from_abstract_name(name).expect("a name");
        lab.node
            .enter(|| UnixListener::bind_addr(&name).expect("a listener"))
    });
    forged.collect()
}

fn names_that_look_like_predecessors_delay_no_start(lab: &mut Lab) {
    let web = Service::new("web", 10);
    lab.three_backends().publish_all(&web);
    let lab = &*lab;
    let mut old = start(lab, 0, QUICK);
    eventually("it listens for successors", SOON, || {
        match fs::read_dir("/run/tripod/succession").map(Iterator::count) {
            Ok(1) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    let _strangers = forge(lab);
    let begun = Instant::now();
    let new = start(lab, 1, QUICK);
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    assert_eq!(new.logged(&["another mount namespace"]), 0, "{}", new.log());
    new.logs_once(&["taking over from a running process", "processes=1"]);
    assert!(old.terminate().success());
    for to in web.cluster() {
        reaches("the new one", &["a", "b", "c"], || ask(&lab.client, to));
    }
}

/// All network namespaces of the machine share its folders, like nodes of several clusters that
/// share `/run`.
fn processes_of_other_network_namespaces_are_left_alone(lab: &mut Lab) {
    let web = Service::new("web", 10);
    lab.three_backends().publish_all(&web);
    let lab = &*lab;
    let holder = start_holder(lab);
    let mut ours = start(lab, 0, QUICK);
    are_held(&ours, 8);
    let held = holder.descriptors();
    // The client's machine is another node, with a proxy of its own.
    let mut command = lab.client.command(tripod_binary());
    command
        .args(["--proxy-mode=userspace", "--userspace-capture=local"])
        .args(["--hostname-override=other", "--conntrack-max-per-core=0"])
        .arg(format!("--manifests={}", lab.manifests().display()))
        .args(["--userspace-workers=1", "--userspace-drain-timeout=1s"])
        .args(["--v=4"]);
    let mut theirs = Tripod::spawn(command);
    eventually("the other node is served", SOON, || {
        match theirs.logged(&["synced", "userspace"]) {
            0 => Err(theirs.log()),
            _ => Ok(()),
        }
    });
    assert_eq!(theirs.logged(&["taking over from a running process"]), 0);
    assert_eq!(ours.logged(&["another process takes over"]), 0);
    assert_eq!(theirs.logged(&["the holder has all sockets"]), 0);
    theirs.logs_once(&["holds no sockets", "network namespace"]);
    assert_eq!(holder.descriptors(), held, "none of another node");
    assert!(theirs.terminate().success());
    // The holder's sockets are for the next process here.
    ours.kill();
    let next = start(lab, 0, QUICK);
    next.logs_once(&["connected to the holder", "sockets=8"]);
    for to in web.cluster() {
        reaches("the next one", &["a", "b", "c"], || ask(&lab.node, to));
    }
}

/// Runs `body` on the node as a user without privileges, whose sockets outlive it.
fn as_stranger<T: Send>(lab: &Lab, body: impl FnOnce() -> T + Send) -> T {
    lab.node.enter(|| {
        // The system call affects this thread alone; the C library's function affects the process.
        // SAFETY: it changes numbers of the calling thread.
        let done = unsafe { libc::syscall(libc::SYS_setresuid, STRANGER, STRANGER, STRANGER) };
        assert_eq!(done, 0, "another user");
        body()
    })
}

/// Sockets of another user's program at a port, in both families.
struct Taken {
    tcp: TcpListener,
    udp: UdpSocket,
}

impl Taken {
    fn at(lab: &Lab, port: u16) -> Taken {
        let bound = as_stranger(lab, || {
            let at = ("::", port);
            Ok::<_, io::Error>((TcpListener::bind(at)?, UdpSocket::bind(at)?))
        });
        let (tcp, udp) = bound.expect("a free port");
        tcp.set_nonblocking(true).expect("a listener");
        udp.set_nonblocking(true).expect("a socket");
        Taken { tcp, udp }
    }

    fn has_got_nothing(&self) {
        let accepted = self.tcp.accept().map(drop).unwrap_err();
        assert_eq!(accepted.kind(), io::ErrorKind::WouldBlock);
        let received = self.udp.recv(&mut [0; 16]).unwrap_err();
        assert_eq!(received.kind(), io::ErrorKind::WouldBlock);
    }
}

/// The local ports to which rules redirect.
fn redirected_to(lab: &Lab) -> BTreeSet<u16> {
    let saved = lab.node.show("iptables-save -t nat") + &lab.node.show("ip6tables-save -t nat");
    let rules = saved.lines().filter(|line| line.contains("TRIPOD-US"));
    let ports = rules.filter_map(|rule| {
        let (_, to) = rule.split_once("--to-destination ")?;
        to.rsplit_once(':')?.1.trim().parse().ok()
    });
    ports.collect()
}

fn who_takes_the_ports_of_a_killed_process_gets_nothing_redirected(lab: &mut Lab) {
    if lab.capture == Capture::Local {
        // No port of the node stands for a Service.
        return;
    }
    let web = Service::new("web", 10).with_node_port();
    lab.three_backends().publish_all(&web);
    let lab = &*lab;
    let mut proxy = start(lab, 0, QUICK);
    let flows = web.cluster().map(|to| {
        let socket = udp(&lab.client, to).expect("a socket");
        udp_say(&socket, "name").expect("an answer");
        socket
    });
    let ports = redirected_to(lab);
    assert!(ports.len() >= 4, "{ports:?}");
    proxy.kill();
    let taken: Vec<_> = ports.iter().map(|port| Taken::at(lab, *port)).collect();
    for socket in &flows {
        socket.send(b"secret").expect("sending");
    }
    let node_port = SocketAddr::new(lab.node.addresses[0], web.node_port());
    for to in web.cluster().into_iter().chain([node_port]) {
        for from in [&lab.client, &lab.node] {
            let called = ask_within(from, to, SHORT);
            assert!(called.is_err(), "{to}: {called:?}");
            let socket = udp(from, to).expect("a socket");
            let _ = socket.send(b"secret");
        }
    }
    taken.iter().for_each(Taken::has_got_nothing);
    // The next process has other ports.
    let _next = start(lab, 0, QUICK);
    for to in web.cluster().into_iter().chain([node_port]) {
        reaches("the next one", &["a", "b", "c"], || ask(&lab.client, to));
    }
    taken.iter().for_each(Taken::has_got_nothing);
}

fn a_taken_address_is_reported_and_served_when_it_is_free(lab: &mut Lab) {
    let web = Service::new("web", 10);
    lab.three_backends().publish_all(&web);
    let lab = &*lab;
    let [to, _] = web.cluster();
    // Its port is below those that any program may bind.
    let setting = "/proc/sys/net/ipv4/ip_unprivileged_port_start";
    let lowered = lab.node.enter(|| fs::write(setting, "0"));
    lowered.expect("the setting");
    let taken = Taken::at(lab, to.port());
    let tripod = Tripod::start(lab);
    let user = format!("of user {STRANGER}");
    let status = || {
        let mut command = lab.node.command(tripod_binary());
        let asked = command.arg("status").output().expect("tripod runs");
        (
            asked.status.success(),
            String::from_utf8_lossy(&asked.stdout).into_owned(),
        )
    };
    let (healthy, text) = status();
    assert!(!healthy && text.contains(&user), "{text}");
    tripod.logs(&["not applied", &to.to_string(), &user]);
    assert!(ask_within(&lab.client, to, SHORT).is_err());
    taken.has_got_nothing();
    drop(taken);
    for to in web.cluster() {
        comes_to_reach("it is free", &["a", "b", "c"], || ask(&lab.client, to));
    }
    eventually("it is healthy", SOON, || match status() {
        (true, _) => Ok(()),
        (false, text) => Err(text),
    });
}
