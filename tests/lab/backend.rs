//! Backends: real processes, so that a client sees the kernel's behaviour when one dies, and
//! nothing is staged.
//!
//! A backend waits for the first words: a client sends one line, which determines the rest of the
//! connection; see [`serve`]. Over UDP it answers `<name> <the question>`; to `who`, as over TCP,
//! with its name, the caller's address as it sees it, and the port that was called; to `peer` with
//! its name, and the caller's address and port.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use nix::sys::signal::Signal;

use super::call;
use super::host::Host;
use super::manifests::BACKEND_PORT;
use super::pattern::{send_pattern, verify_pattern};
use super::process::Group;

/// Environment variable with the backend's name inside its process.
const NAME: &str = "TRIPOD_LAB_BACKEND";

/// Ports of backends, TCP and UDP; the second one shows whether ports are distinguished.
const PORTS: [u16; 2] = [BACKEND_PORT, BACKEND_PORT + 1];

const READY: &str = "backend is ready";

/// A pod with a backend process in it.
#[derive(Debug)]
pub struct Backend {
    process: Option<Group>,
    host: Host,
}

impl Backend {
    pub fn start(host: Host) -> Backend {
        let mut backend = Backend {
            process: None,
            host,
        };
        backend.restart();
        backend
    }

    pub fn name(&self) -> &str {
        self.host.name()
    }

    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Returns its own address and port, IPv4.
    pub fn direct(&self) -> SocketAddr {
        SocketAddr::new(self.host.addresses[0], BACKEND_PORT)
    }

    /// Sends SIGKILL: the kernel closes the open sockets of the process.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Sends SIGSTOP: the kernel still accepts connections for the process, but nothing answers.
    pub fn freeze(&self) {
        if let Some(process) = &self.process {
            process.signal(Signal::SIGSTOP);
        }
    }

    pub fn restart(&mut self) {
        self.kill();
        self.process = Some(answer_in(&self.host));
    }

    /// Blocks all packets from this pod, even resets: its routes become blackholes. Works without
    /// netfilter.
    pub fn blackhole(&self) {
        self.host.ip(&[
            "route del default",
            "route del 10.244.0.0/24",
            "route add blackhole default",
            "route del ::/0",
            "route del fd00:244::/64",
            "route add blackhole ::/0",
        ]);
    }

    /// Undoes [`Backend::blackhole`].
    pub fn heal(&self) {
        self.host.ip(&[
            "route del blackhole default",
            "route add 10.244.0.0/24 dev eth0",
            "route add default via 10.244.0.1",
            "route del blackhole ::/0",
            "route add fd00:244::/64 dev eth0",
            "route add ::/0 via fd00:244::1",
        ]);
    }

    /// Reads the counts of the backend, directly from `node` and not through Tripod.
    pub fn counts(&self, node: &Host) -> Counts {
        let mut stream = call::tcp(node, self.direct()).expect("asking a backend for its counts");
        let line = call::say(&mut stream, "counts").expect("a backend's counts");
        let mut numbers = line.split(' ').filter_map(|word| word.parse().ok());
        let mut next = || {
            numbers
                .next()
                .unwrap_or_else(|| panic!("counts, not {line:?}"))
        };
        Counts {
            accepted: next(),
            ended: next(),
            reset: next(),
            drained: next(),
        }
    }
}

/// Starts a backend process in `host`; it answers with the host's name.
pub fn answer_in(host: &Host) -> Group {
    let exe = std::env::current_exe().expect("the path of the test binary");
    let mut command = host.command(exe);
    command
        .args([
            "--exact",
            "lab::backend::process",
            "--ignored",
            "--nocapture",
        ])
        .env(NAME, host.name())
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut process = Group::spawn(&mut command).expect("starting a backend");
    let output = process.child().stdout.take().expect("it is piped");
    let mut output = BufReader::new(output);
    let ready = output
        .by_ref()
        .lines()
        .map_while(Result::ok)
        .any(|line| line.contains(READY));
    assert!(ready, "backend {} did not start", host.name());
    // Kept open: the test harness inside ends if it cannot write its "has been running for over 60
    // seconds".
    process.child().stdout = Some(output.into_inner());
    process
}

/// Totals since the backend's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections that were accepted.
    pub accepted: u64,
    /// Connections whose client ended them properly.
    pub ended: u64,
    /// Connections that the client's side reset.
    pub reset: u64,
    /// Bytes of the pattern that arrived after the backend had ended its own direction.
    pub drained: u64,
}

static ACCEPTED: AtomicU64 = AtomicU64::new(0);
static ENDED: AtomicU64 = AtomicU64::new(0);
static RESET: AtomicU64 = AtomicU64::new(0);
static DRAINED: AtomicU64 = AtomicU64::new(0);

#[test]
#[ignore = "the body of a backend process, not a test"]
fn process() {
    let Ok(name) = std::env::var(NAME) else {
        return;
    };
    let sockets = PORTS.map(|port| {
        // Both families: Linux maps IPv4 into this address unless told otherwise.
        let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
        let udp = UdpSocket::bind(any).expect("binding UDP");
        (port, udp, listen(any, None).expect("listening"))
    });
    // Only if the kernel supports it.
    let any = (Ipv6Addr::UNSPECIFIED, BACKEND_PORT).into();
    let sctp = listen(any, Some(SCTP.into())).ok();
    println!("\n{READY}");
    std::thread::scope(|scope| {
        let name = &name;
        for (port, udp, tcp) in sockets {
            scope.spawn(move || answer_datagrams(&udp, port, name));
            scope.spawn(move || accept(&tcp, port, name));
        }
        if let Some(sctp) = sctp {
            scope.spawn(move || accept(&sctp, BACKEND_PORT, name));
        }
    });
}

/// `IPPROTO_SCTP`. Sockets of one association are used like those of TCP.
const SCTP: i32 = 132;

fn listen(at: SocketAddr, protocol: Option<socket2::Protocol>) -> io::Result<TcpListener> {
    let socket = socket2::Socket::new(socket2::Domain::IPV6, socket2::Type::STREAM, protocol)?;
    socket.set_reuse_address(true)?;
    socket.bind(&at.into())?;
    socket.listen(4096)?;
    Ok(socket.into())
}

fn accept(listener: &TcpListener, port: u16, name: &str) {
    for stream in listener.incoming().flatten() {
        ACCEPTED.fetch_add(1, Relaxed);
        let name = name.to_owned();
        // There may be thousands of connections, each on a separate thread: small stacks.
        let _ = std::thread::Builder::new()
            .stack_size(192 * 1024)
            .spawn(move || {
                match serve(stream, port, &name) {
                    Ok(()) => ENDED.fetch_add(1, Relaxed),
                    Err(_) => RESET.fetch_add(1, Relaxed),
                };
            });
    }
}

/// Describes who answers, the address that it sees, and the port that was called.
fn who(name: &str, peer: SocketAddr, port: u16) -> String {
    format!("{name} {} {port}\n", peer.ip().to_canonical())
}

fn answer_datagrams(socket: &UdpSocket, port: u16, name: &str) {
    let mut buffer = vec![0; 65_536];
    let mut subscribed = Vec::new();
    loop {
        let Ok((n, from)) = socket.recv_from(&mut buffer) else {
            continue;
        };
        let mut answer = format!("{name} ").into_bytes();
        answer.extend_from_slice(&buffer[..n]);
        // The answer is at least as long as the question, so that large datagrams are tested in
        // both directions.
        if buffer[..n].trim_ascii_end() == b"who" {
            answer = who(name, from, port).into_bytes();
            answer.resize(answer.len().max(n), b' ');
        }
        if &buffer[..n] == b"peer" {
            answer = format!("{name} {from}").into_bytes();
        }
        match &buffer[..n] {
            b"subscribe" => subscribed.push(from),
            b"notify" => {
                for subscriber in &subscribed {
                    let _ = socket.send_to(&answer, subscriber);
                }
            }
            _ => {}
        }
        let _ = socket.send_to(&answer, from);
    }
}

fn serve(mut stream: TcpStream, port: u16, name: &str) -> io::Result<()> {
    // Not for SCTP, which would not delay small messages anyway.
    let _ = stream.set_nodelay(true);
    loop {
        let line = read_line(&mut stream)?;
        let (word, count) = line.split_once(' ').unwrap_or((&line, "0"));
        let count: u64 = count.parse().unwrap_or(0);
        match word {
            // The client is done.
            "" => return Ok(()),
            "name" => writeln!(stream, "{name}")?,
            "who" => {
                let answer = who(name, stream.peer_addr()?, port);
                stream.write_all(answer.as_bytes())?;
            }
            "peer" => {
                let peer = stream.peer_addr()?;
                writeln!(stream, "{peer}")?;
            }
            "counts" => {
                let [accepted, ended, reset, drained] =
                    [&ACCEPTED, &ENDED, &RESET, &DRAINED].map(|count| count.load(Relaxed));
                writeln!(stream, "{accepted} {ended} {reset} {drained}")?;
            }
            // Sends everything back until the client ends its direction.
            "echo" => {
                writeln!(stream, "{name}")?;
                let mut reader = stream.try_clone()?;
                io::copy(&mut reader, &mut stream)?;
                return Ok(());
            }
            // Reads to the end, then reports the number of bytes.
            "sink" => {
                let seen = verify_pattern(&mut stream, None)?;
                writeln!(stream, "{seen}")?;
                return Ok(());
            }
            // Sends, ends its direction, and continues to read.
            "source" => {
                send_pattern(&mut stream, count)?;
                stream.shutdown(Shutdown::Write)?;
                let seen = verify_pattern(&mut stream, None)?;
                DRAINED.fetch_add(seen, Relaxed);
                return Ok(());
            }
            // Reads to the end, and only then sends.
            "late" => {
                io::copy(&mut stream, &mut io::sink())?;
                send_pattern(&mut stream, count)?;
                return Ok(());
            }
            // Sends and reads at the same time, then reports the number of bytes read.
            "pump" => {
                let mut writer = stream.try_clone()?;
                let sender = std::thread::spawn(move || send_pattern(&mut writer, count));
                let seen = verify_pattern(&mut stream, Some(count))?;
                sender
                    .join()
                    .map_err(|_| io::Error::other("sender panicked"))??;
                writeln!(stream, "{seen}")?;
            }
            // Never reads again.
            "stall" => loop {
                std::thread::park();
            },
            // Reads that many of the following bytes, and resets.
            "spurn" => {
                io::copy(&mut (&stream).take(count), &mut io::sink())?;
                socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
                return Ok(());
            }
            "reset" => {
                socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
                return Ok(());
            }
            _ => return Err(io::Error::other(format!("no such command: {line:?}"))),
        }
    }
}

/// Reads byte by byte, so that nothing after the line is taken from the stream.
fn read_line(stream: &mut TcpStream) -> io::Result<String> {
    let mut line = Vec::new();
    let mut byte = [0];
    while stream.read(&mut byte)? == 1 && byte[0] != b'\n' {
        line.push(byte[0]);
    }
    String::from_utf8(line).map_err(io::Error::other)
}

impl Drop for Backend {
    fn drop(&mut self) {
        // Before its namespace is removed, which a living process would keep.
        self.kill();
    }
}
