//! Processes of this program next to the measuring one: the backend, and clients that hold idle
//! connections. Each has a separate limit of open files.

use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Child, ChildStdout, ExitCode, Stdio},
    thread,
};

use super::{backend, host::Host, load, processors::Part};

/// Tells a helper its task.
const WORK: &str = "TRIPOD_BENCH_HELPER";

/// A helper; killed when dropped.
pub struct Helper {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Helper {
    /// Starts the backend, and waits until it can be called at `port`.
    pub fn backend(host: &Host, port: u16) -> Helper {
        let mut helper = Part::Backend.run(|| Helper::start(host, &format!("backend {port}")));
        helper.number();
        helper
    }

    /// Starts a client that opens this number of idle connections to `address`.
    pub fn idle(host: &Host, address: SocketAddr, connections: usize) -> Helper {
        Helper::start(host, &format!("idle {address} {connections}"))
    }

    fn start(host: &Host, work: &str) -> Helper {
        let own = std::env::current_exe().expect("own path");
        let mut command = host.command(own);
        command.env(WORK, work).stdin(Stdio::null());
        let mut child = command
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process of this program");
        let output = child.stdout.take().expect("it is piped");
        Helper {
            child,
            output: BufReader::new(output),
        }
    }

    /// Waits until it has done its work. Returns the number that it then prints.
    pub fn number(&mut self) -> usize {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line");
        line.trim().parse().expect("a number")
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Does the work of a helper, if this process is one.
pub fn run() -> Option<ExitCode> {
    let work = std::env::var(WORK).ok()?;
    let words: Vec<&str> = work.split(' ').collect();
    match words[..] {
        ["backend", port] => {
            let listener = backend::listen(port.parse().expect("a port"));
            println!("{port}");
            backend::serve(&listener);
        }
        ["idle", address, connections] => {
            let address = address.parse().expect("an address");
            let held = load::idle(address, connections.parse().expect("a number"));
            println!("{}", held.len());
            loop {
                // Until it is killed.
                thread::park();
            }
        }
        _ => eprintln!("no helper does {work}"),
    }
    Some(ExitCode::FAILURE)
}
