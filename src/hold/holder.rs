//! The holder: keeps sockets of proxies, and gives those of an ended one to another.

use std::{
    collections::{HashMap, VecDeque},
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
    sync::mpsc::UnboundedReceiver,
    time::{MissedTickBehavior, interval, timeout},
};

use super::{
    flows::PassedFlow,
    greet,
    message::{FIRST_OF_HOLDER, LONGEST, Message, OLDEST, is_spoken},
    pool::{HeldSocket, Offer, Pool},
    sending,
};
use crate::kernel::{
    open_files,
    socket::records::{Channel, Listener},
};

/// How long a process that connected may take to say its version.
const GREETING: Duration = Duration::from_secs(5);

/// Pause after a connection could not be accepted: most likely there is no descriptor left.
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
            "cannot listen at {shown}: {error}; run it as root, or give it and the proxy another path \
             with --userspace-holder-socket"
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
                // Its sockets are at addresses of that namespace, and no matter of the proxies here.
                Ok(channel) if !channel.is_of_this_namespace() => tracing::debug!(
                    "a proxy in another network namespace connected; run a holder there, too"
                ),
                Ok(channel) if channel.is_same_user() => {
                    tokio::spawn(serve(channel, Arc::clone(&pool)));
                }
                // Whoever may write to the socket's file is root, or a user whom root has admitted.
                Ok(_) => pool.lock().give_up(
                    "a proxy of another user connected, which must not get them"
                ),
                Err(_) => tokio::time::sleep(AGAIN).await,
            },
            _ = observation.tick() => pool.lock().close_shared(),
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
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
    fn new(pool: Arc<Mutex<Pool>>) -> Session {
        let (number, offers) = pool.lock().join();
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
                            description.bound.address
                        );
                    }
                    return Ok(None);
                };
                if mem::take(&mut self.is_short) {
                    tracing::info!(
                        "sockets are held again, from {} on",
                        description.bound.address
                    );
                }
                if !description.matches(&socket) {
                    tracing::warn!(
                        "a socket is not held: it is not at {}",
                        description.bound.address
                    );
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
    match timeout(GREETING, greet(&channel, &mut buffer)).await {
        Ok(Ok(version)) if is_spoken(version) => {}
        Ok(Ok(other)) => {
            // It serves by sockets of its own, and connects again every second, so that
            // those of a proxy that ends later are closed, too.
            pool.lock().give_up(&format!(
                "a proxy has version {other} of the protocol, and this holder none before \
                 {OLDEST}; run both from the same image"
            ));
            return;
        }
        _ => return,
    }
    tracing::info!("a proxy is connected");
    let mut session = Session::new(pool);
    if let Err(error) = exchange(&channel, &mut buffer, &mut session).await {
        tracing::warn!("the connection of a proxy ends: {error}");
    }
}

async fn exchange(channel: &Channel, buffer: &mut [u8], session: &mut Session) -> io::Result<()> {
    let mut answers = VecDeque::<Sent>::new();
    let (mut reached, mut is_late) = (true, false);
    loop {
        let is_late = &mut is_late;
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
            let record = Message::encode(message);
            sending::when_possible(is_late, "a proxy", || channel.send(&record, descriptor)).await
        };
        tokio::select! {
            sent = sending => {
                match sent {
                    Ok(()) => {}
                    // It may have sent a lot before it ended.
                    Err(error) if is_end(&error) => reached = false,
                    // A proxy that is not told of what it has would never take it. Its sockets are
                    // offered again when it is connected again.
                    Err(error) => return Err(error),
                }
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

/// Returns whether a record could not be sent because the other side has closed the connection.
fn is_end(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
    )
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use net::Protocol;

    use super::{super::message::SocketDescription, *};
    use crate::{kernel::socket::bound::BoundAddress, log::lines};

    #[test]
    fn that_descriptors_are_short_is_logged_once_and_when_it_is_over() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let description = SocketDescription {
            bound: BoundAddress {
                protocol: Protocol::Tcp,
                address: listener.local_addr().unwrap(),
            },
            label: "".into(),
        };
        let mut session = Session::new(Arc::default());
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
