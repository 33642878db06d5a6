//! Giving way to a process that takes over.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    io,
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd},
    path::Path,
    sync::{Arc, Weak},
    time::Duration,
};

use netlink::isolation;
use tokio::{
    net::TcpListener,
    time::{Instant, timeout},
};

use super::{ANSWER, names};
use crate::{
    backoff::until,
    hold::{
        greet,
        message::{LONGEST, Message, is_spoken},
        sending,
    },
    kernel::socket::records::{Channel, Listener},
    modes::{
        handover::{Handover, Successor},
        userspace::{Association, FlowToPass},
    },
    serve::{self, Listeners},
};

/// How long a successor may take until it serves. One that takes longer may still succeed, but
/// meanwhile no process would capture what it does not.
pub(super) const FIRST_SYNC: Duration = Duration::from_secs(30);

/// When to look for flows that a worker, which was in the middle of receiving, has begun since this
/// process stopped.
const LATE: Duration = Duration::from_millis(50);

/// Gives way to processes that connect from now on. Returns the path of the socket at which they do.
///
/// # Errors
/// When this process cannot listen in the folder.
pub(super) fn listen(handover: Handover, listeners: Listeners) -> io::Result<String> {
    let (name, listener) = open()?;
    tokio::spawn(async move {
        loop {
            match listener.accept().await {
                Ok(channel) if channel.is_same_user() && channel.is_of_this_namespace() => {
                    tokio::spawn(attend(channel, handover.clone(), listeners.clone()));
                }
                Ok(_) => {}
                // Most likely there is no descriptor left.
                Err(_) => tokio::time::sleep(Duration::from_secs(1)).await,
            }
        }
    });
    Ok(name)
}

/// Listens at the first name that no other process in this network namespace has.
fn open() -> io::Result<(String, Listener)> {
    let mut refused = None;
    for path in names(isolation::network_namespace()?) {
        match Listener::open(Path::new(&path)) {
            Ok(listener) => return Ok((path, listener)),
            Err(error) => refused = Some(format!("cannot listen at {path}: {error}")),
        }
    }
    Err(io::Error::other(refused.unwrap_or_default()))
}

/// Serves the process at the other end until it ends.
pub(super) async fn attend(channel: Channel, handover: Handover, listeners: Listeners) {
    let mut buffer = [0; LONGEST];
    match timeout(ANSWER, greet(&channel, &mut buffer)).await {
        Ok(Ok(version)) if is_spoken(version) => {}
        _ => return,
    }
    let mut session = Session {
        ports: Ports::of(&listeners),
        channel,
        handover,
        listeners,
        stage: Stage::Met,
        given: HashMap::new(),
        taken: HashSet::new(),
        passed: PassedOn::default(),
        is_late: false,
    };
    // However the other process ends, this one continues.
    let _ = session.exchange(&mut buffer).await;
    session.ended();
}

/// The connection to a successor.
struct Session {
    channel: Channel,
    handover: Handover,
    listeners: Listeners,
    ports: Ports,
    stage: Stage,
    /// The sockets that it was given, by their numbers.
    given: HashMap<u64, SocketAddr>,
    /// Where it accepts once it serves.
    taken: HashSet<SocketAddr>,
    passed: PassedOn,
    /// Whether it was logged that records cannot be sent yet.
    is_late: bool,
}

/// How far a successor is.
enum Stage {
    /// It has not asked this process to give way.
    Met,
    /// This process gives way; if the successor does not serve at the given time, it serves again.
    Tries(Successor, Instant),
    /// It did not serve in time.
    IsLate,
    /// It serves. At the given time, it gets what began while this process stopped.
    Serves {
        _successor: Successor,
        late: Option<Instant>,
    },
}

impl Session {
    async fn exchange(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        let mut changes = self.listeners.changes();
        self.give_ports().await?;
        self.send(&Message::All, None).await?;
        loop {
            tokio::select! {
                received = self.channel.receive(buffer) => {
                    let Some(received) = received? else {
                        return Ok(());
                    };
                    let record = buffer.get(..received.len).unwrap_or_default();
                    match Message::parse(record) {
                        Some(Message::TakeOver) => self.give_way().await?,
                        Some(Message::Serves) => self.succeeded().await?,
                        Some(Message::Held(number)) => self.taken(number),
                        Some(Message::Port(address)) => self.ports.left(address),
                        _ => return Err(io::ErrorKind::InvalidData.into()),
                    }
                }
                _ = changes.changed() => self.give_ports().await?,
                () = until(self.stage.ends()) => self.next().await?,
            }
        }
    }

    async fn send(&mut self, message: &Message, socket: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let (record, channel) = (message.encode(), &self.channel);
        let send = || channel.send(&record, socket);
        sending::when_possible(&mut self.is_late, "the successor", send).await
    }

    /// Gives the sockets on which this process answers about itself, as far as they were not given.
    async fn give_ports(&mut self) -> io::Result<()> {
        for (address, socket) in self.ports.unsent(&self.listeners) {
            let message = Message::Port(address);
            self.send(&message, Some(socket.as_fd())).await?;
        }
        Ok(())
    }

    async fn give_way(&mut self) -> io::Result<()> {
        let successor = self.handover.give_way().await;
        tracing::info!("another process takes over the service addresses");
        self.stage = Stage::Tries(successor, Instant::now() + FIRST_SYNC);
        // Otherwise another successor has the clients.
        if !self.handover.is_succeeded() {
            self.give_sockets().await?;
            self.pass_flows().await?;
        }
        self.send(&Message::All, None).await
    }

    fn taken(&mut self, number: u64) {
        let Some(address) = self.given.get(&number) else {
            return;
        };
        self.taken.insert(*address);
        self.handover.holding().is_taken(number);
    }

    /// Gives the successor the sockets that it was not given before.
    async fn give_sockets(&mut self) -> io::Result<()> {
        for (number, description, socket) in self.handover.holding().open() {
            let address = description.bound.address;
            if self.given.insert(number, address).is_none() {
                let message = Message::Give(number, description);
                self.send(&message, Some(socket.as_fd())).await?;
            }
        }
        Ok(())
    }

    /// Passes on the UDP flows that were not passed on before.
    async fn pass_flows(&mut self) -> io::Result<()> {
        let is_passed = |number| self.passed.0.contains_key(&number);
        let flows = self.handover.assignments().flows_to_pass(is_passed);
        for FlowToPass { flow, record } in flows {
            let message = Message::Flow(record);
            self.send(&message, Some(flow.as_fd())).await?;
            self.passed.0.insert(flow.number(), Arc::downgrade(&flow));
        }
        Ok(())
    }

    /// Leaves clients to the successor, which serves.
    async fn succeeded(&mut self) -> io::Result<()> {
        let mut successor = match std::mem::replace(&mut self.stage, Stage::IsLate) {
            Stage::Tries(successor, _) => successor,
            _ => self.handover.give_way().await,
        };
        // Otherwise another successor has the clients.
        let is_first = !self.handover.is_succeeded();
        successor.serves();
        let late = is_first.then(|| Instant::now() + LATE);
        self.stage = Stage::Serves {
            _successor: successor,
            late,
        };
        if is_first {
            self.give_sockets().await?;
            self.pass_flows().await?;
            self.passed.leave_to_successor(&self.taken);
            for note in self.handover.assignments().records() {
                self.send(&Message::Note(note), None).await?;
            }
        }
        self.send(&Message::All, None).await
    }

    /// Acts on the end of a stage.
    async fn next(&mut self) -> io::Result<()> {
        match &mut self.stage {
            Stage::Tries(..) => {
                tracing::warn!(
                    "the successor does not serve after {FIRST_SYNC:?}: this process serves until \
                     it does"
                );
                self.stage = Stage::IsLate;
            }
            Stage::Serves { late, .. } => {
                *late = None;
                self.pass_flows().await?;
                self.passed.leave_to_successor(&self.taken);
            }
            Stage::Met | Stage::IsLate => {}
        }
        Ok(())
    }

    fn ended(self) {
        match self.stage {
            Stage::Met => {}
            Stage::IsLate => tracing::info!("the successor exited before it served"),
            Stage::Tries(..) | Stage::Serves { .. } => {
                tracing::info!("the successor has exited: serving again");
            }
        }
    }
}

impl Stage {
    /// When [`Session::next`] is due.
    fn ends(&self) -> Option<Instant> {
        match self {
            Stage::Tries(_, at) => Some(*at),
            Stage::Serves { late, .. } => *late,
            Stage::Met | Stage::IsLate => None,
        }
    }
}

/// Flows that were passed on. This process reads their answers again when this is dropped.
#[derive(Default)]
struct PassedOn(HashMap<u64, Weak<Association>>);

impl PassedOn {
    /// Leaves the answers of flows to the successor whose clients call these addresses.
    fn leave_to_successor(&self, taken: &HashSet<SocketAddr>) {
        let flows = self.0.values().filter_map(Weak::upgrade);
        let is_taken = |flow: &Arc<Association>| {
            let listener = flow.listener();
            listener.is_some_and(|listener| taken.contains(&listener))
        };
        let flows = flows.filter(is_taken);
        flows.for_each(|flow| flow.leave_answers(true));
    }
}

impl Drop for PassedOn {
    fn drop(&mut self) {
        let flows = self.0.values().filter_map(Weak::upgrade);
        flows.for_each(|flow| flow.leave_answers(false));
    }
}

/// The sockets on which this process answers about itself, as the successor knows them.
struct Ports {
    sent: BTreeMap<SocketAddr, Weak<TcpListener>>,
    successor: serve::Successor,
    has_left: bool,
}

impl Ports {
    fn of(listeners: &Listeners) -> Ports {
        Ports {
            sent: BTreeMap::new(),
            successor: listeners.successor(),
            has_left: false,
        }
    }

    /// The sockets that the successor does not know.
    fn unsent(&mut self, listeners: &Listeners) -> Vec<(SocketAddr, Arc<TcpListener>)> {
        let mut open = listeners.open();
        open.retain(|(address, socket)| {
            let now = Arc::downgrade(socket);
            let before = self.sent.insert(*address, Weak::clone(&now));
            !before.is_some_and(|before| before.ptr_eq(&now))
        });
        open
    }

    /// Leaves connections at `address` to the successor.
    fn left(&mut self, address: SocketAddr) {
        if self.successor.answers_at(address) {
            self.has_left = true;
            tracing::info!("another process answers on the ports of this one");
        }
    }
}

impl Drop for Ports {
    fn drop(&mut self) {
        if self.has_left {
            tracing::info!("answering on the ports again: the other process has ended");
        }
    }
}
