//! The TCP sockets on which this process answers requests about itself: probes, metrics,
//! health-check node ports. A successor gets them as descriptors.
//!
//! Such a socket has one queue: whichever process accepts a connection answers it, and no client is
//! refused while the processes change. Both keep it open, so that one continues when the other
//! ends.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, SocketAddr, TcpListener as StdListener},
    os::fd::OwnedFd,
    sync::{Arc, Weak},
    time::Duration,
};

use net::Protocol;
use parking_lot::Mutex;
use socket2::SockRef;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
};

use super::{
    http::Listener,
    tcp::{bind, bound_to},
};
use crate::kernel::socket::listening::identity;

/// How long this process, once it serves, may take to open the ports that it was given: those that
/// are not open then are not needed.
const SETTLES: Duration = Duration::from_secs(2);

/// How long a client may go without receiving a byte of its answer (`tcp(7)`, TCP_USER_TIMEOUT,
/// which counts a closed window too). It also limits how long the kernel continues to send after
/// this side is closed.
const TAKES_NOTHING: Duration = Duration::from_secs(10);

/// Which process accepts connections, and where.
#[derive(Debug, Default)]
struct Turn {
    /// Whether the desired state of this process is applied.
    serves: bool,
    /// Number of processes that may give sockets to this one and have not ended.
    predecessors: usize,
    /// Addresses at which other processes accept, each with the number of these processes.
    taken: BTreeMap<SocketAddr, usize>,
}

#[derive(Debug, Default)]
struct Sockets {
    open: BTreeMap<SocketAddr, Open>,
    /// Sockets that this process was given and has not opened.
    inherited: BTreeMap<SocketAddr, StdListener>,
}

#[derive(Debug)]
struct Open {
    socket: Weak<TcpListener>,
    is_inherited: bool,
}

#[derive(Debug, Default)]
struct State {
    sockets: Mutex<Sockets>,
    /// Why an address cannot be served, by the address and its purpose.
    refused: Mutex<BTreeMap<(SocketAddr, &'static str), String>>,
    turn: watch::Sender<Turn>,
    /// Counts changes of the open sockets.
    changed: watch::Sender<u64>,
}

/// The sockets of this process, which can be passed to others.
#[derive(Clone, Debug, Default)]
pub struct Listeners(Arc<State>);

impl Listeners {
    /// Listens on `address`: on the socket that this process was given, or on a new one.
    ///
    /// # Errors
    /// When another program has the address, it is not this node's, or this process may not
    /// use it.
    pub(super) fn listen(&self, address: SocketAddr) -> io::Result<Listening> {
        let mut sockets = self.0.sockets.lock();
        let mut places = bound_to(address).into_iter();
        let inherited = places.find_map(|place| sockets.inherited.remove(&place));
        let is_inherited = inherited.is_some();
        let socket = match inherited {
            Some(socket) => TcpListener::from_std(socket)?,
            None => bind(address)?,
        };
        let address = socket.local_addr()?;
        let socket = Arc::new(socket);
        sockets
            .open
            .retain(|_, open| open.socket.strong_count() > 0);
        let open = Open {
            socket: Arc::downgrade(&socket),
            is_inherited,
        };
        sockets.open.insert(address, open);
        drop(sockets);
        self.0.changed.send_modify(|count| *count += 1);
        Ok(Listening {
            socket,
            address,
            is_inherited,
            state: Arc::clone(&self.0),
        })
    }

    /// Records why `what` cannot be served at `address`; `None` if it is served now.
    pub(super) fn set_refused(&self, what: &'static str, address: SocketAddr, why: Option<String>) {
        let mut refused = self.0.refused.lock();
        match why {
            Some(why) => refused.insert((address, what), why),
            None => refused.remove(&(address, what)),
        };
    }

    /// Returns the reason for each address at which probes or metrics cannot be served as
    /// configured.
    pub(super) fn refused(&self) -> Vec<String> {
        self.0.refused.lock().values().cloned().collect()
    }

    /// Waits while another process has taken over from this one: during that time, this one opens
    /// no ports.
    pub(super) async fn in_charge(&self) {
        let mut turn = self.0.turn.subscribe();
        // Fails only if the sender is gone, which `self` holds.
        let _ = turn.wait_for(|turn| turn.taken.is_empty()).await;
    }

    /// Stores a socket of the predecessor. This process accepts on it once it serves, or once the
    /// predecessor has ended. Anything but a listening TCP socket is closed.
    pub fn give(&self, socket: OwnedFd) {
        let found = identity(&socket).filter(|found| found.protocol == Protocol::Tcp);
        let Some(address) = found.map(|found| found.address) else {
            return;
        };
        let mut sockets = self.0.sockets.lock();
        let open = sockets.open.get(&address);
        let socket = StdListener::from(socket);
        // The runtime accepts only nonblocking sockets.
        let is_usable = socket.set_nonblocking(true).is_ok();
        if is_usable && open.is_none_or(|open| open.socket.strong_count() == 0) {
            sockets.inherited.entry(address).or_insert(socket);
        }
    }

    /// Accepts on the sockets that this process was given, because its desired state is applied.
    pub fn serve(&self) {
        self.0.turn.send_modify(|turn| turn.serves = true);
        self.0.changed.send_modify(|count| *count += 1);
    }

    /// Records that this number of processes may pass sockets to this one.
    pub fn has_predecessors(&self, count: usize) {
        self.0.turn.send_modify(|turn| turn.predecessors += count);
    }

    /// Records that one of them has ended, or passes no sockets. If it is the last, this process
    /// accepts on the sockets that it was given, and closes those that it does not use, once it
    /// serves.
    pub async fn predecessor_ended(&self) {
        self.0.turn.send_modify(|turn| {
            turn.predecessors = turn.predecessors.saturating_sub(1);
        });
        let mut turn = self.0.turn.subscribe();
        if turn.borrow_and_update().predecessors > 0 {
            return;
        }
        let _ = turn.wait_for(|turn| turn.serves).await;
        tokio::time::sleep(SETTLES).await;
        self.0.sockets.lock().inherited.clear();
    }

    /// Returns the open sockets, each with the address that it is bound to.
    pub fn open(&self) -> Vec<(SocketAddr, Arc<TcpListener>)> {
        let sockets = self.0.sockets.lock();
        let open = sockets.open.iter();
        open.filter_map(|(address, open)| Some((*address, open.socket.upgrade()?)))
            .collect()
    }

    /// Returns the addresses at which this process answers in place of the one that passed the
    /// sockets.
    pub fn taken_over(&self) -> Vec<SocketAddr> {
        if !self.0.turn.borrow().serves {
            return Vec::new();
        }
        let sockets = self.0.sockets.lock();
        let ours = sockets
            .open
            .iter()
            .filter(|(_, open)| open.is_inherited && open.socket.strong_count() > 0);
        ours.map(|(address, _)| *address).collect()
    }

    /// Returns a receiver that is notified whenever [`Listeners::open`] or
    /// [`Listeners::taken_over`] may have changed.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changed.subscribe()
    }

    /// Adds another process, which does not answer at any address yet.
    pub fn successor(&self) -> Successor {
        Successor {
            listeners: self.clone(),
            taken: Vec::new(),
        }
    }
}

#[cfg(test)]
impl Listeners {
    /// Uses the socket at `address` that was passed for the rest of the test.
    pub(crate) fn use_inherited(&self, address: SocketAddr) {
        std::mem::forget(self.listen(address).expect("it was given"));
    }

    /// Returns whether no other process has taken over.
    pub(crate) fn is_in_charge(&self) -> bool {
        self.0.turn.borrow().taken.is_empty()
    }
}

/// The addresses at which another process answers in place of this one, until this is dropped.
#[derive(Debug)]
pub struct Successor {
    listeners: Listeners,
    taken: Vec<SocketAddr>,
}

impl Successor {
    /// Records that it answers at `address`. Returns whether it is the first such address.
    pub fn answers_at(&mut self, address: SocketAddr) -> bool {
        self.taken.push(address);
        let turn = &self.listeners.0.turn;
        turn.send_modify(|turn| *turn.taken.entry(address).or_default() += 1);
        self.taken.len() == 1
    }
}

impl Drop for Successor {
    fn drop(&mut self) {
        self.listeners.0.turn.send_modify(|turn| {
            for address in &self.taken {
                let count = turn.taken.remove(address).unwrap_or_default();
                if count > 1 {
                    turn.taken.insert(*address, count - 1);
                }
            }
        });
    }
}

/// A listening socket, on which this process accepts while it is its turn.
#[derive(Debug)]
pub(super) struct Listening {
    socket: Arc<TcpListener>,
    address: SocketAddr,
    is_inherited: bool,
    state: Arc<State>,
}

impl Listening {
    pub(super) fn socket(&self) -> &Arc<TcpListener> {
        &self.socket
    }

    fn is_its_turn(&self, turn: &Turn) -> bool {
        let accepts = !self.is_inherited || turn.serves || turn.predecessors == 0;
        accepts && !turn.taken.contains_key(&self.address)
    }
}

impl Listener for Listening {
    type Stream = TcpStream;

    async fn next(&self) -> io::Result<(TcpStream, IpAddr)> {
        let mut turn = self.state.turn.subscribe();
        loop {
            // Fails only if the sender is gone, which `self` holds.
            let _ = turn.wait_for(|turn| self.is_its_turn(turn)).await;
            tokio::select! {
                biased;
                _ = turn.changed() => {}
                accepted = self.socket.accept() => {
                    let (stream, peer) = accepted?;
                    // If this fails, the connection's lifetime is the limit.
                    let _ = SockRef::from(&stream).set_tcp_user_timeout(Some(TAKES_NOTHING));
                    return Ok((stream, peer.ip()));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{net::TcpStream as Client, os::fd::AsFd};

    use super::*;

    fn any() -> SocketAddr {
        "127.0.0.1:0".parse().unwrap()
    }

    /// Passes the open sockets of `from` to a successor.
    fn given(from: &Listeners) -> Listeners {
        let to = Listeners::default();
        to.has_predecessors(1);
        for (_, socket) in from.open() {
            to.give(socket.as_fd().try_clone_to_owned().unwrap());
        }
        to
    }

    /// Returns whether `listening` accepts a connection that was made before.
    async fn accepts(listening: &Listening) -> bool {
        let next = tokio::time::timeout(Duration::from_millis(100), listening.next());
        next.await.is_ok()
    }

    #[tokio::test]
    async fn one_process_accepts_at_a_time_and_nothing_is_refused() {
        let old = Listeners::default();
        let olds = old.listen(any()).unwrap();
        let address = olds.address;
        assert!(bind(address).is_err(), "no other gets the port");
        let new = given(&old);
        let news = new.listen(address).unwrap();
        let call = || Client::connect(address).unwrap();

        let _first = call();
        assert!(!accepts(&news).await, "it does not serve yet");
        assert!(new.taken_over().is_empty());
        assert!(accepts(&olds).await);

        new.serve();
        assert_eq!(new.taken_over(), [address]);
        let mut successor = old.successor();
        assert!(successor.answers_at(address));
        let _second = call();
        assert!(!accepts(&olds).await);
        assert!(accepts(&news).await);

        // It ends without having accepted the last connection.
        let _third = call();
        drop((news, new, successor));
        assert!(accepts(&olds).await);
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_left_alone_answers_and_closes_what_it_has_no_use_for() {
        let old = Listeners::default();
        let [used, unused] = [old.listen(any()).unwrap(), old.listen(any()).unwrap()];
        let addresses = [used.address, unused.address];
        let new = given(&old);
        new.has_predecessors(1);
        let news = new.listen(addresses[0]).unwrap();
        drop((used, unused, old));
        new.predecessor_ended().await;
        assert!(!accepts(&news).await, "the other one answers");
        let alone = tokio::spawn({
            let new = new.clone();
            async move { new.predecessor_ended().await }
        });
        let _call = Client::connect(addresses[0]).unwrap();
        assert!(news.next().await.is_ok(), "probes are answered");
        assert!(Client::connect(addresses[1]).is_ok());
        new.serve();
        alone.await.unwrap();
        assert!(Client::connect(addresses[1]).is_err(), "it is closed");
        assert!(Client::connect(addresses[0]).is_ok());
    }

    #[tokio::test]
    async fn while_another_process_has_taken_over_no_port_is_opened() {
        let old = Listeners::default();
        old.in_charge().await;
        let mut successor = old.successor();
        let address = "192.0.2.1:1".parse().unwrap();
        successor.answers_at(address);
        successor.answers_at(address);
        let waits = tokio::spawn({
            let old = old.clone();
            async move { old.in_charge().await }
        });
        tokio::task::yield_now().await;
        assert!(!waits.is_finished());
        drop(successor);
        waits.await.unwrap();
    }

    #[test]
    fn what_does_not_listen_is_not_taken() {
        let listeners = Listeners::default();
        let (pipe, _other) = nix::unistd::pipe().unwrap();
        listeners.give(pipe);
        assert!(listeners.0.sockets.lock().inherited.is_empty());
    }
}
