//! One proxy replaces another while clients keep calling.

mod from_kube_proxy;
mod localhost;
mod modes;
mod open_connections;

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use crate::lab::{Host, eventually, say, tcp_from_new_port};

/// Time that a mode may take until it is applied, in a slow guest.
const SOON: Duration = Duration::from_secs(60);

/// A connection that stays open, and who answers on it.
struct Long(TcpStream, String);

impl Long {
    fn open(from: &Host, to: SocketAddr) -> Long {
        let mut stream = tcp_from_new_port(from, to).expect("a connection");
        let name = say(&mut stream, "name").expect("an answer");
        Long(stream, name)
    }

    fn is_served(&mut self, when: &str) {
        let answer = say(&mut self.0, "name");
        assert_eq!(answer.expect(when), self.1, "{when}");
    }
}

/// Calls without a pause, with the number of the call as argument, while `body` runs; no
/// call may fail. `body` can wait for more calls.
fn under_load(call: impl Fn(usize) -> io::Result<String> + Sync, body: impl FnOnce(&Calls)) {
    let calls = Calls::default();
    std::thread::scope(|scope| {
        let caller = scope.spawn(|| {
            let mut failures = Vec::new();
            while !calls.stop.load(Relaxed) {
                let number = calls.made.load(Relaxed);
                if let Err(error) = call(number) {
                    failures.push((number, error));
                }
                calls.made.fetch_add(1, Relaxed);
            }
            failures
        });
        // A failure in `body` must not leave the caller calling.
        let stop = Stop(&calls);
        body(&calls);
        drop(stop);
        let failures = caller.join().expect("the caller does not panic");
        assert!(
            failures.is_empty(),
            "of {} calls {} failed: {:?}",
            calls.made.load(Relaxed),
            failures.len(),
            &failures[..failures.len().min(5)]
        );
    });
}

#[derive(Default)]
struct Calls {
    stop: AtomicBool,
    made: AtomicUsize,
}

impl Calls {
    fn made(&self) -> usize {
        self.made.load(Relaxed)
    }

    /// Waits until `more` more calls have been made.
    fn wait(&self, more: usize) {
        let enough = self.made() + more;
        eventually("some more calls", SOON, || {
            if self.made() >= enough {
                Ok(())
            } else {
                Err(format!("{} of {enough}", self.made()))
            }
        });
    }
}

struct Stop<'a>(&'a Calls);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Relaxed);
    }
}
