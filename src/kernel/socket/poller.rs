//! One task per thread that watches many sockets. A task for each socket would cost a kilobyte,
//! which is a lot for a socket that is seldom used.

use std::{io, os::fd::AsFd, sync::Arc, time::Duration};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use parking_lot::Mutex;
use slab::Slab;
use tokio::{
    io::{Interest, unix::AsyncFd},
    task::spawn_local,
    time::sleep,
};

/// Number of sockets that are served in one turn of the task.
const TURN: usize = 64;

/// Identifies a watched socket.
pub type Token = usize;

/// The state of a socket after it was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remaining {
    /// It was read until it had nothing more.
    Nothing,
    /// It may have more, and is served again in its turn.
    More,
    /// It has something that must wait: it is read again after 50 ms.
    Waiting,
    /// It will never have anything more.
    Ended,
}

/// How long a socket that has to wait is left alone.
const PAUSE: Duration = Duration::from_millis(50);

/// Watches sockets, which can be added and removed at any time.
pub struct Poller<S> {
    epoll: Epoll,
    sockets: Mutex<Slab<Arc<S>>>,
}

impl<S: AsFd + 'static> Poller<S> {
    /// Watches nothing yet.
    ///
    /// # Errors
    /// Those of epoll_create1(2).
    pub fn new() -> io::Result<Self> {
        Ok(Poller {
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            sockets: Mutex::new(Slab::new()),
        })
    }

    /// Watches `socket` too.
    ///
    /// # Errors
    /// Those of epoll_ctl(2).
    pub fn add(&self, socket: Arc<S>) -> io::Result<Token> {
        let mut sockets = self.sockets.lock();
        let place = sockets.vacant_entry();
        let token = place.key();
        let event = EpollEvent::new(EpollFlags::EPOLLIN, token as u64);
        self.epoll.add(socket.as_fd(), event)?;
        place.insert(socket);
        Ok(token)
    }

    /// Returns the watched socket of this token; `None` if there is none.
    pub fn get(&self, token: Token) -> Option<Arc<S>> {
        self.sockets.lock().get(token).cloned()
    }

    /// Returns all watched sockets.
    #[cfg(test)]
    pub fn all(&self) -> Vec<Arc<S>> {
        let sockets = self.sockets.lock();
        sockets
            .iter()
            .map(|(_, socket)| Arc::clone(socket))
            .collect()
    }

    /// Stops watching a socket and returns it; `None` if it is not watched.
    pub fn remove(&self, token: Token) -> Option<Arc<S>> {
        let socket = self.sockets.lock().try_remove(token)?;
        // Fails only for a descriptor that is not watched.
        let _ = self.epoll.delete(socket.as_fd());
        Some(socket)
    }

    /// Has a socket served at once that waits, if it has something.
    pub fn wake(&self, token: Token) {
        if let Some(socket) = self.get(token) {
            self.watch(token, &socket, EpollFlags::EPOLLIN);
        }
    }

    /// Watches a socket for these events; without any, leaves it alone for now.
    fn watch(&self, token: Token, socket: &Arc<S>, flags: EpollFlags) {
        let sockets = self.sockets.lock();
        if sockets
            .get(token)
            .is_some_and(|there| Arc::ptr_eq(there, socket))
        {
            let mut event = EpollEvent::new(flags, token as u64);
            // Fails only for a descriptor that is not watched.
            let _ = self.epoll.modify(socket.as_fd(), &mut event);
        }
    }

    /// Passes each socket that has something to `serve`, forever. Runs inside a worker's runtime. A
    /// socket that may have more is passed again after the others, and after the worker's other
    /// tasks.
    pub async fn run(self: Arc<Self>, serve: impl AsyncFn(&Arc<S>) -> Remaining) {
        // A second descriptor of the same epoll(7).
        let epoll = self.epoll.0.try_clone();
        let epoll = epoll.and_then(|fd| {
            // SAFETY: the `AsyncFd` owns the descriptor, always answers with the
            // same one, and nothing else can close it.
            let registered = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
            registered.map_err(|error| error.into_parts().1)
        });
        let epoll = match epoll {
            Ok(epoll) => epoll,
            Err(error) => {
                tracing::error!("a worker cannot watch its listeners: {error}");
                return;
            }
        };
        let mut events = [EpollEvent::empty(); TURN];
        loop {
            let Ok(mut ready) = epoll.readable().await else {
                return;
            };
            let count = self
                .epoll
                .wait(&mut events, EpollTimeout::ZERO)
                .unwrap_or(0);
            let mut all = count < TURN;
            for event in events.iter().take(count) {
                // It may have been removed meanwhile, and its place taken by another, which then
                // has nothing.
                let place = usize::try_from(event.data()).unwrap_or(usize::MAX);
                let Some(socket) = self.get(place) else {
                    continue;
                };
                match serve(&socket).await {
                    Remaining::Nothing => {}
                    Remaining::More => all = false,
                    Remaining::Ended => {
                        // Requesting no events is not enough: EPOLLHUP is reported anyway
                        // (epoll_ctl(2)).
                        let _ = self.epoll.delete(socket.as_fd());
                    }
                    Remaining::Waiting => {
                        self.pause(place, socket);
                        // Until it is read again, it stays in the list of ready sockets, and no
                        // event adds it again (`ep_modify`).
                        all = false;
                    }
                }
            }
            if all {
                // Anything that arrived at one of them in the meantime made the epoll ready again
                // (`ep_poll_callback` in fs/eventpoll.c).
                ready.clear_ready();
            }
            tokio::task::yield_now().await;
        }
    }

    /// Leaves a socket alone for a while.
    fn pause(self: &Arc<Self>, token: Token, socket: Arc<S>) {
        self.watch(token, &socket, EpollFlags::empty());
        let poller = Arc::clone(self);
        spawn_local(async move {
            sleep(PAUSE).await;
            poller.watch(token, &socket, EpollFlags::EPOLLIN);
        });
    }
}

impl<S> std::fmt::Debug for Poller<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Poller").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::{net::UdpSocket, time::Duration};

    use tokio::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn sockets_are_served_while_they_are_watched() {
        tokio::task::LocalSet::new()
            .run_until(async {
                let poller = Arc::new(Poller::new().unwrap());
                let (send, mut served) = mpsc::unbounded_channel();
                spawn_local(Arc::clone(&poller).run(async move |s: &Arc<UdpSocket>| {
                    let mut bytes = [0; 8];
                    let n = s.recv(&mut bytes).unwrap();
                    send.send(String::from_utf8_lossy(&bytes[..n]).into_owned())
                        .unwrap();
                    Remaining::More
                }));
                let socket = || {
                    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
                    socket.set_nonblocking(true).unwrap();
                    Arc::new(socket)
                };
                let (a, b) = (socket(), socket());
                let say = |to: &UdpSocket, text: &str| {
                    a.send_to(text.as_bytes(), to.local_addr().unwrap())
                        .unwrap();
                };
                let of_a = poller.add(Arc::clone(&a)).unwrap();
                poller.add(Arc::clone(&b)).unwrap();
                // Two in one socket: served again until it has nothing left.
                for text in ["1", "2"] {
                    say(&a, text);
                }
                let mut got = vec![served.recv().await, served.recv().await];
                say(&b, "3");
                got.push(served.recv().await);
                assert_eq!(got, ["1", "2", "3"].map(|text| Some(text.to_owned())));

                assert!(poller.remove(of_a).is_some_and(|s| Arc::ptr_eq(&s, &a)));
                assert!(poller.remove(of_a).is_none());
                say(&a, "4");
                say(&b, "5");
                assert_eq!(served.recv().await.as_deref(), Some("5"));
                // Another socket takes its place, and must not get the events that waited there.
                let c = socket();
                assert_eq!(poller.add(Arc::clone(&c)).unwrap(), of_a);
                say(&c, "6");
                assert_eq!(served.recv().await.as_deref(), Some("6"));
                let more = tokio::time::timeout(Duration::ZERO, served.recv()).await;
                assert!(more.is_err(), "{more:?}");
            })
            .await;
    }
}
