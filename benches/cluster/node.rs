//! A network namespace in which Tripod runs, with a client and two backends.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use nix::sched::{CloneFlags, unshare};
use socket2::{Domain, Protocol, Socket, Type};

use crate::{large::BACKENDS, run};

/// The port of Services, and that of their endpoints.
const PORT: u16 = 80;
const TARGET: u16 = 8080;
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// The address from which clients call, which no endpoint has.
const CLIENT: &str = "10.244.254.1";

/// Runs `body` on a thread with a network namespace that has the backends and a route to
/// every Service.
pub fn in_namespace<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace");
        run("ip link set lo up");
        run(&format!("ip addr add {CLIENT}/32 dev lo"));
        for backend in BACKENDS {
            run(&format!("ip addr add {backend}/32 dev lo"));
        }
        run(&format!("ip route add default dev lo src {CLIENT}"));
        for (setting, value) in [
            ("conf/all/route_localnet", "1"),
            ("ip_local_port_range", "1025 65000"),
        ] {
            let file = format!("/proc/sys/net/ipv4/{setting}");
            std::fs::write(file, value).expect("a setting of the namespace");
        }
        for backend in BACKENDS {
            let listener = TcpListener::bind((backend, TARGET)).expect("a backend");
            std::thread::spawn(move || serve(&listener, backend));
        }
        body()
    })
}

/// Answers with the last octet of its address.
fn serve(listener: &TcpListener, own: Ipv4Addr) {
    for stream in listener.incoming() {
        let _ = stream.and_then(|mut stream| {
            stream.write_all(&own.octets()[3..])?;
            // The client ends the connection by a reset, so that nothing is left in TIME_WAIT.
            let _ = stream.read(&mut [0]);
            Ok(())
        });
    }
}

/// The answer to a call.
pub struct Answer {
    /// The endpoint that answered.
    pub backend: Ipv4Addr,
    /// Time from the beginning of the connection to the first byte.
    pub took: Duration,
}

/// Calls the Service at `ip`, or an endpoint itself, once.
pub fn call(ip: Ipv4Addr) -> Option<Answer> {
    call_within(ip, PATIENCE)
}

/// Does the same with another limit for the connection, and for the answer.
pub fn call_within(ip: Ipv4Addr, patience: Duration) -> Option<Answer> {
    let port = if BACKENDS.contains(&ip) { TARGET } else { PORT };
    let begun = Instant::now();
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).ok()?;
    socket.set_linger(Some(Duration::ZERO)).ok()?;
    let to = SocketAddr::from((ip, port));
    socket.connect_timeout(&to.into(), patience).ok()?;
    socket.set_read_timeout(Some(patience)).ok()?;
    let mut byte = [0];
    TcpStream::from(socket).read_exact(&mut byte).ok()?;
    let backend = BACKENDS.into_iter().find(|b| b.octets()[3] == byte[0])?;
    let took = begun.elapsed();
    Some(Answer { backend, took })
}

/// Calls until `backend` answers, with pauses. Returns when it did, or `None` if that took too
/// long.
pub fn until(ip: Ipv4Addr, backend: Ipv4Addr, pause: Duration, limit: Duration) -> Option<Instant> {
    let begun = Instant::now();
    loop {
        match call(ip) {
            Some(answer) if answer.backend == backend => return Some(Instant::now()),
            _ if begun.elapsed() > limit => return None,
            _ => std::thread::sleep(pause),
        }
    }
}

/// A percentile of the durations, in milliseconds.
pub fn part(sorted: &[Duration], percent: usize) -> Option<f64> {
    let at = (sorted.len() * percent / 100).min(sorted.len().checked_sub(1)?);
    Some(sorted[at].as_secs_f64() * 1000.0)
}
