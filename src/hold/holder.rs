//! The holder: keeps sockets of proxies, and gives those of an ended one to another.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    error::Error,
    future::pending,
    io, mem,
    os::fd::{AsFd, OwnedFd},
    path::Path,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    time::{MissedTickBehavior, interval, timeout},
};

use super::{
    flows::{PassedFlow, PassedFlows},
    greet,
    message::{
        FIRST_OF_HOLDER, FLOWS_SINCE, LONGEST, Message, OLDEST, SocketDescription, is_spoken,
    },
    others::Others,
};
use crate::{
    kernel::{
        open_files,
        socket::{
            bound::BoundAddress,
            records::{self, Channel, Listener},
        },
    },
    net::Protocol,
};

/// How long a process that connected may take to say its version.
const GREETING: Duration = Duration::from_secs(5);

/// Pause after a connection could not be accepted: most likely there is no descriptor
/// left.
const AGAIN: Duration = Duration::from_secs(1);

/// How often other processes are looked for while sockets wait for a proxy.
const OBSERVATION_PERIOD: Duration = Duration::from_secs(1);

/// Maximum number of notes of one proxy that are kept: 64 MiB.
pub const MOST_NOTES: usize = 1 << 16;

/// Keeps sockets of the proxies that connect at `path`, until SIGTERM or SIGINT.
///
/// # Errors
/// When it cannot listen there.
pub async fn hold(path: &Path) -> Result<(), Box<dyn Error>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let limit = open_files::raise_limit();
    let shown = path.display();
    let listener = Listener::open(path).map_err(|error| {
        format!(
            "cannot listen at {shown}: {error}; --userspace-holder-socket names another path, for \
             the proxy too"
        )
    })?;
    tracing::info!(
        limit,
        "holding listening sockets of proxies that connect at {shown}"
    );
    let pool = Arc::new(Mutex::new(Pool::default()));
    let mut observation = interval(OBSERVATION_PERIOD);
    observation.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(channel) if channel.is_same_user() => {
                    tokio::spawn(serve(channel, Arc::clone(&pool)));
                }
                // Whoever may write to the socket's file is root, or a user whom root has admitted.
                Ok(_) => pool.lock().give_up("a proxy of another user can have no share of them"),
                Err(_) => tokio::time::sleep(AGAIN).await,
            },
            _ = observation.tick() => pool.lock().close_shared(),
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
        }
    }
}

/// A socket that is held.
#[derive(Debug)]
struct HeldSocket {
    description: SocketDescription,
    socket: OwnedFd,
}

impl HeldSocket {
    fn bound(&self) -> BoundAddress {
        BoundAddress {
            protocol: self.description.protocol,
            address: self.description.address,
        }
    }

    /// Closes it, even if a proxy that is ending still has a descriptor. Connections that wait are
    /// reset.
    fn close(self) {
        if self.description.protocol == Protocol::Tcp {
            records::stop_listening(&self.socket);
        }
    }
}

/// What a proxy is given.
#[derive(Debug)]
enum Offer {
    Socket(HeldSocket),
    Flow(PassedFlow),
    /// A note of the proxy before.
    Note(Vec<u8>),
    /// There is nothing more now.
    All,
}

/// What all connections share.
#[derive(Debug, Default)]
struct Pool {
    /// Sockets that no proxy serves.
    unserved: Vec<HeldSocket>,
    /// The notes of the last proxy that recorded any.
    notes: Vec<Vec<u8>>,
    /// UDP flows that no proxy has taken yet.
    flows: PassedFlows,
    /// The proxies that are connected, in the order in which they came.
    proxies: BTreeMap<u64, Proxy>,
    next: u64,
    /// Which processes have sockets at the addresses of `unserved`.
    others: Others,
}

/// A proxy that is connected.
#[derive(Debug)]
struct Proxy {
    version: u16,
    offers: UnboundedSender<Offer>,
}

impl Pool {
    /// Closes all sockets that no proxy serves, because a proxy that cannot take them is about to
    /// serve. If both listen at an address (SO_REUSEPORT), the kernel would send a share of the
    /// connections to sockets from which none is accepted.
    fn give_up(&mut self, why: &str) {
        self.flows = PassedFlows::default();
        let sockets = self.unserved.len();
        // Such a proxy may come again every second.
        if sockets == 0 {
            tracing::debug!("a proxy connected, for which nothing is held: {why}");
            return;
        }
        self.unserved.drain(..).for_each(HeldSocket::close);
        tracing::warn!(sockets, "closing the sockets that wait for a proxy: {why}");
    }

    /// Closes the sockets that no proxy serves at addresses where another process waits for
    /// clients: a proxy that does not talk to this holder.
    fn close_shared(&mut self) {
        self.flows.expire();
        if self.unserved.is_empty() || !self.proxies.is_empty() {
            self.others.clear();
            return;
        }
        let held = self.unserved.iter();
        let shared = match self
            .others
            .observe(held.map(|held| (held.bound(), &held.socket)))
        {
            Ok(shared) if shared.is_empty() => return,
            Ok(shared) => shared,
            Err(error) => {
                tracing::debug!("cannot look for sockets of other processes: {error}");
                return;
            }
        };
        let (close, keep) = mem::take(&mut self.unserved)
            .into_iter()
            .partition(|held| shared.contains(&held.bound()));
        self.unserved = keep;
        let close: Vec<HeldSocket> = close;
        tracing::warn!(
            sockets = close.len(),
            "closing sockets at whose addresses a process serves that does not use this holder; \
             have the proxy name it (--userspace-holder-socket)"
        );
        close.into_iter().for_each(HeldSocket::close);
    }

    /// Offers what no proxy serves to a new one. Returns its number and the offers.
    fn join(&mut self, version: u16) -> (u64, UnboundedReceiver<Offer>) {
        let (send, offers) = unbounded_channel();
        let sockets = mem::take(&mut self.unserved).into_iter();
        let notes = self.notes.iter().cloned().map(Offer::Note);
        let flows = if version >= FLOWS_SINCE {
            self.flows.take()
        } else {
            Vec::new()
        };
        let flows = flows.into_iter().map(Offer::Flow);
        let all = sockets.map(Offer::Socket).chain(flows).chain(notes);
        for offer in all.chain([Offer::All]) {
            // It does not fail: the receiver exists.
            let _ = send.send(offer);
        }
        let number = self.next;
        self.next += 1;
        let proxy = Proxy {
            version,
            offers: send,
        };
        self.proxies.insert(number, proxy);
        (number, offers)
    }

    /// Offers a socket that is not served any more to the proxy that came last, or keeps it for the
    /// next one. A socket that the proxy has closed is dropped.
    fn add(&mut self, held: HeldSocket) {
        if !held.description.matches(&held.socket) {
            return;
        }
        let Some(last) = self.proxies.values().next_back() else {
            self.unserved.push(held);
            return;
        };
        if let Err(refused) = last.offers.send(Offer::Socket(held))
            && let Offer::Socket(held) = refused.0
        {
            self.unserved.push(held);
        }
    }

    /// Offers a flow to the proxy that came last, or keeps it for the next one.
    fn pass(&mut self, flow: PassedFlow) {
        match self.proxies.values().next_back() {
            Some(last) if last.version >= FLOWS_SINCE => {
                // If it cannot be sent, its socket is closed, and the flow ends.
                let _ = last.offers.send(Offer::Flow(flow));
            }
            Some(_) => {}
            None => self.flows.add(flow),
        }
    }
}

/// What a proxy is sent.
#[derive(Debug)]
struct Sent {
    message: Message,
    /// A descriptor that is sent along and not kept.
    socket: Option<OwnedFd>,
}

impl From<Message> for Sent {
    fn from(message: Message) -> Sent {
        Sent {
            message,
            socket: None,
        }
    }
}

/// The sockets of one proxy, which are offered to another when this is dropped.
#[derive(Debug)]
struct Session {
    pool: Arc<Mutex<Pool>>,
    number: u64,
    offers: UnboundedReceiver<Offer>,
    sockets: HashMap<u64, HeldSocket>,
    notes: Vec<Vec<u8>>,
    flows: Vec<PassedFlow>,
    next_number: u64,
    /// Whether it was logged that sockets come without their descriptors: then all later ones do,
    /// too.
    is_short: bool,
}

impl Session {
    fn new(pool: Arc<Mutex<Pool>>, version: u16) -> Session {
        let (number, offers) = pool.lock().join(version);
        Session {
            pool,
            number,
            offers,
            sockets: HashMap::new(),
            notes: Vec::new(),
            flows: Vec::new(),
            next_number: FIRST_OF_HOLDER,
            is_short: false,
        }
    }

    /// Acts on a record that came with `descriptor`. Returns the answer.
    ///
    /// # Errors
    /// When it is none that a proxy sends.
    fn act(&mut self, record: &[u8], descriptor: Option<OwnedFd>) -> io::Result<Option<Message>> {
        match Message::parse(record) {
            Some(Message::Hold(number, description)) if number < FIRST_OF_HOLDER => {
                let Some(socket) = descriptor else {
                    if !mem::replace(&mut self.is_short, true) {
                        tracing::warn!(
                            "the socket at {} and later ones are not held: this process may open no \
                             more descriptors; raise the limit (ulimit -n)",
                            description.address
                        );
                    }
                    return Ok(None);
                };
                if mem::take(&mut self.is_short) {
                    tracing::info!("sockets are held again, from {} on", description.address);
                }
                if !description.matches(&socket) {
                    tracing::warn!("a socket is not held: it is not at {}", description.address);
                    return Ok(None);
                }
                self.sockets.insert(
                    number,
                    HeldSocket {
                        description,
                        socket,
                    },
                );
                Ok(Some(Message::Held(number)))
            }
            Some(Message::Release(number)) => {
                self.sockets.remove(&number);
                Ok(None)
            }
            Some(Message::Note(note)) => {
                if self.notes.len() < MOST_NOTES {
                    self.notes.push(note);
                }
                Ok(None)
            }
            Some(Message::Flow(record)) => {
                // There is no descriptor if this process may open no more; the endpoint then sees
                // another port.
                let flow = descriptor.map(|socket| PassedFlow { record, socket });
                self.flows.extend(flow);
                Ok(None)
            }
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Keeps sockets that are offered under a number of this connection, except those of flows.
    /// Returns what is sent.
    fn give(&mut self, offer: Offer) -> Sent {
        match offer {
            Offer::Socket(held) => {
                let number = self.next_number;
                self.next_number += 1;
                let message = Message::Give(number, held.description.clone());
                self.sockets.insert(number, held);
                message.into()
            }
            Offer::Flow(PassedFlow { record, socket }) => Sent {
                message: Message::Flow(record),
                socket: Some(socket),
            },
            Offer::Note(note) => Message::Note(note).into(),
            Offer::All => Message::All.into(),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let mut pool = self.pool.lock();
        pool.proxies.remove(&self.number);
        if !self.notes.is_empty() {
            pool.notes = mem::take(&mut self.notes);
        }
        for (_, held) in self.sockets.drain() {
            pool.add(held);
        }
        self.flows.drain(..).for_each(|flow| pool.pass(flow));
        while let Ok(offer) = self.offers.try_recv() {
            match offer {
                Offer::Socket(held) => pool.add(held),
                Offer::Flow(flow) => pool.pass(flow),
                Offer::Note(_) | Offer::All => {}
            }
        }
        let (sockets, proxies) = (pool.unserved.len(), pool.proxies.len());
        tracing::info!(
            sockets,
            proxies,
            "a proxy ended; sockets wait for the next one"
        );
    }
}

/// Serves one proxy until it ends.
async fn serve(channel: Channel, pool: Arc<Mutex<Pool>>) {
    let mut buffer = [0; LONGEST];
    let version = match timeout(GREETING, greet(&channel, &mut buffer)).await {
        Ok(Ok(version)) if is_spoken(version) => version,
        Ok(Ok(other)) => {
            // It serves by sockets of its own, and connects again every second, so that
            // those of a proxy that ends later are closed, too.
            pool.lock().give_up(&format!(
                "a proxy has version {other} of the records, this holder none before {OLDEST}; \
                 run both from the same image"
            ));
            return;
        }
        _ => return,
    };
    tracing::info!("a proxy is connected");
    let mut session = Session::new(pool, version);
    if let Err(error) = exchange(&channel, &mut buffer, &mut session).await {
        tracing::warn!("the connection of a proxy ends: {error}");
    }
}

async fn exchange(channel: &Channel, buffer: &mut [u8], session: &mut Session) -> io::Result<()> {
    let mut answers = VecDeque::<Sent>::new();
    let mut reached = true;
    loop {
        let sending = async {
            let Some(Sent { message, socket }) = answers.front().filter(|_| reached) else {
                return pending().await;
            };
            let held = match message {
                Message::Give(number, _) => session.sockets.get(number),
                _ => None,
            };
            let held = held.map(|held| &held.socket).or(socket.as_ref());
            let descriptor = held.map(AsFd::as_fd);
            channel.send(&Message::encode(message), descriptor).await
        };
        tokio::select! {
            sent = sending => {
                // A proxy that cannot be sent anything may have sent a lot before it ended.
                reached &= sent.is_ok();
                answers.pop_front();
            }
            received = channel.receive(buffer) => {
                let received = match received {
                    Ok(Some(received)) => received,
                    Ok(None) => return Ok(()),
                    // It ended without reading all; what it sent before is received after this
                    // error (`unix_release_sock` and `sock_error` in the kernel).
                    Err(error) if error.kind() == io::ErrorKind::ConnectionReset => continue,
                    Err(error) => return Err(error),
                };
                let record = buffer.get(..received.len).unwrap_or_default();
                let answer = session.act(record, received.descriptor)?;
                answers.extend(answer.map(Sent::from));
            }
            Some(offer) = session.offers.recv() => {
                answers.push_back(session.give(offer));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::log::lines;

    #[test]
    fn that_descriptors_are_short_is_logged_once_and_when_it_is_over() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let description = SocketDescription {
            protocol: Protocol::Tcp,
            address: listener.local_addr().unwrap(),
            label: String::new(),
        };
        let mut session = Session::new(Arc::default(), OLDEST);
        let log = lines(0, || {
            for (number, is_there) in [(1, false), (2, false), (3, true), (4, true)] {
                let record = Message::Hold(number, description.clone()).encode();
                let socket = is_there.then(|| listener.try_clone().unwrap().into());
                let answer = session.act(&record, socket).unwrap();
                assert_eq!(answer.is_some(), is_there, "{number}");
            }
        });
        let [short, over] = &log[..] else {
            panic!("{log:#?}");
        };
        assert!(short.contains("ulimit -n"), "{short}");
        assert!(over.contains("sockets are held again"), "{over}");
    }
}
