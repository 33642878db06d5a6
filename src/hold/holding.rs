//! The open sockets of the proxy, which other processes may be given: the holder, to which each is
//! sent as it is opened, and a process that takes over. Also the sockets that this process was
//! given.

use std::{
    future::pending,
    io, mem,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use tokio::{sync::watch, time::timeout};

use super::{
    greet,
    inherited::{Held, InheritedSocket, Listening, Origin, Release, Released, Taken},
    inode,
    message::{
        FIRST_OF_HOLDER, LONGEST, LONGEST_LABEL, Message, OLDEST, SocketDescription, is_spoken,
    },
    sending,
    table::{Entry, Flow, Job, Others, Socket, Table},
};
use crate::kernel::socket::records::Channel;

/// Pause before the holder is looked for again.
const AGAIN: Duration = Duration::from_secs(1);

/// How long the holder may take to give what it has. It may hang.
const ANSWER: Duration = Duration::from_secs(5);

/// The open sockets of this process. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Holding(Arc<State>);

#[derive(Debug, Default)]
struct State {
    /// Where the holder listens; `None`: there is none.
    path: Option<PathBuf>,
    table: Mutex<Table>,
    /// Notifies that there is something to send.
    queued: watch::Sender<()>,
    /// Whether the first attempt to get sockets of an ended process is over.
    answered: watch::Sender<bool>,
    /// Notifies that sockets were given.
    arrived: watch::Sender<()>,
    /// Whether this process ends, and the next one has its sockets.
    is_left: AtomicBool,
}

impl Holding {
    /// Has the holder at `path` keep them, from [`Holding::run`] on.
    pub fn at(path: PathBuf) -> Holding {
        Holding(Arc::new(State {
            path: Some(path),
            ..State::default()
        }))
    }

    /// Leaves all sockets to the next process: from now on this one accepts nothing, and what it
    /// closes stays open there.
    pub fn leave(&self) {
        self.0.is_left.store(true, Relaxed);
    }

    /// Whether they are left to the next process.
    pub fn is_left(&self) -> bool {
        self.0.is_left.load(Relaxed)
    }

    /// Has this process accept wherever none of the `others` does.
    pub fn set_turns(&self, others: Others) {
        let mut table = self.0.table.lock();
        let before = mem::replace(&mut table.others, others);
        if before == others {
            return;
        }
        for entry in table.sockets.values_mut() {
            // The next successor takes what it can use.
            entry.is_taken &= others.successors || !before.successors;
            entry.set_turn(others);
        }
        if before.predecessors && !others.predecessors {
            table.have_stopped = true;
            drop(table);
            self.0.arrived.send_replace(());
        }
    }

    /// Records that a successor accepts at the socket of this `number` once it serves.
    pub fn is_taken(&self, number: u64) {
        let mut table = self.0.table.lock();
        let others = table.others;
        if let Some(entry) = table.sockets.get_mut(&number) {
            entry.is_taken = true;
            entry.set_turn(others);
        }
    }

    /// Lets other processes have `socket` until the returned value is dropped. `None`: its label is
    /// too long for a record.
    pub fn hold(
        &self,
        description: SocketDescription,
        socket: Socket,
        is_shared: bool,
    ) -> Option<Held> {
        let state = &self.0;
        if description.label.len() > LONGEST_LABEL {
            return None;
        }
        let inode = socket.upgrade().and_then(|socket| inode(&socket).ok());
        let mut table = state.table.lock();
        let number = table.next;
        table.next += 1;
        let entry = Entry {
            description,
            socket,
            inode,
            held: false,
            is_shared,
            is_taken: false,
        };
        entry.set_turn(table.others);
        table.sockets.insert(number, entry);
        table.known.extend(inode);
        table.missing += 1;
        table.queue(Job::Hold(number));
        drop(table);
        state.queued.send_replace(());
        Some(Held {
            released: Arc::<State>::clone(state),
            number,
        })
    }

    /// Whether the holder has every socket, and at least one.
    pub fn is_complete(&self) -> bool {
        let table = self.0.table.lock();
        table.connected && !table.sockets.is_empty() && table.missing == 0
    }

    /// All open sockets, each with its number, for a process that takes over.
    pub fn open(&self) -> Vec<(u64, SocketDescription, Arc<dyn Listening>)> {
        let table = self.0.table.lock();
        let open = table.sockets.iter();
        let open = open.filter_map(|(number, entry)| {
            Some((*number, entry.description.clone(), entry.socket.upgrade()?))
        });
        open.collect()
    }

    /// Keeps a socket of a process that gives way to this one, until it is taken, of which `taken`
    /// is told.
    pub fn share(&self, description: SocketDescription, socket: OwnedFd, taken: Taken) {
        if !description.matches(&socket) {
            return;
        }
        self.0.table.lock().inherited.push(InheritedSocket {
            description,
            socket,
            origin: Origin::Predecessor(taken),
        });
        self.0.arrived.send_replace(());
    }

    /// Leaves `notes` for the next process; each fits in a record.
    pub fn note(&self, notes: Vec<Vec<u8>>) {
        let state = &self.0;
        let mut table = state.table.lock();
        for note in notes.into_iter().filter(|note| note.len() < LONGEST) {
            table.queue(Job::Note(note));
        }
        drop(table);
        state.queued.send_replace(());
    }

    /// Leaves the sockets of UDP flows to the next process, each with what it must know of the
    /// flow.
    pub fn pass(&self, flows: impl Iterator<Item = Flow<Arc<dyn AsFd + Send + Sync>>>) {
        let state = &self.0;
        let mut table = state.table.lock();
        for flow in flows.filter(|(record, _)| record.len() < LONGEST) {
            table.queue(Job::Flow(flow));
        }
        drop(table);
        state.queued.send_replace(());
    }

    /// The UDP flows of ended processes that came since the last call.
    pub fn take_flows(&self) -> Vec<Flow<OwnedFd>> {
        mem::take(&mut self.0.table.lock().flows)
    }

    /// The notes of the process before this one, once.
    pub fn take_notes(&self) -> Vec<Vec<u8>> {
        mem::take(&mut self.0.table.lock().notes)
    }

    /// Whether the holder was sent everything.
    pub fn is_sent(&self) -> bool {
        self.0.table.lock().queue.is_empty()
    }

    /// Waits until the holder has given what an ended process left there, or there is no
    /// holder, or it takes too long.
    pub async fn answered(&self) {
        let state = &self.0;
        if state.path.is_none() {
            return;
        }
        let mut answered = state.answered.subscribe();
        // Fails only without a sender, which `state` has.
        let _ = timeout(ANSWER, answered.wait_for(|answered| *answered)).await;
    }

    /// The sockets that were given and not taken before, of those that are `wanted`.
    pub fn take_inherited(
        &self,
        wanted: impl Fn(&SocketDescription) -> bool,
    ) -> Vec<InheritedSocket> {
        let mut table = self.0.table.lock();
        let wanted = |one: &mut InheritedSocket| wanted(one.description());
        let taken: Vec<InheritedSocket> = table.inherited.extract_if(.., wanted).collect();
        // The holder also gives those of a predecessor that was killed. One that the predecessor gave
        // before may be open here by now, and closing it would close the open one.
        let is_open = |one: &InheritedSocket| {
            let inode = inode(&one.socket).ok();
            let mut open = table.sockets.values();
            !one.is_shared() && inode.is_some() && open.any(|entry| entry.inode == inode)
        };
        let (open, taken): (Vec<_>, Vec<_>) = taken.into_iter().partition(is_open);
        // Dropping one of them locks the table.
        drop(table);
        drop(open);
        taken
    }

    /// Has flows continue that came after the predecessors stopped.
    pub fn resume(&self) {
        self.0.table.lock().have_stopped = true;
        self.0.arrived.send_replace(());
    }

    /// Whether the predecessors stopped accepting since the last call.
    pub fn have_stopped(&self) -> bool {
        mem::take(&mut self.0.table.lock().have_stopped)
    }

    /// Waits until there is something to take. Flows that come from the holder without listening
    /// sockets are taken with the next ones: a sync for each of thousands would be too many.
    pub async fn arrived(&self) {
        let mut arrived = self.0.arrived.subscribe();
        let some = |_: &()| {
            let table = self.0.table.lock();
            table.have_stopped || !table.inherited.is_empty()
        };
        // Fails only without a sender, which `self` has.
        let _ = arrived.wait_for(some).await;
    }

    /// Talks to the holder for ever, whenever there is one.
    pub async fn run(self) {
        let state = &self.0;
        let Some(path) = &state.path else { return };
        let mut warned = false;
        loop {
            match attend(state, path).await {
                Ok(()) => {
                    warned = false;
                    tracing::info!("the holder ended: looking for another one");
                }
                Err(error) if is_absent(&error) => {}
                Err(error) if mem::replace(&mut warned, true) => tracing::debug!("{error}"),
                Err(error) => tracing::warn!(
                    "{} holds no sockets for this process, so that clients are refused while none \
                     runs; run both from the same image, as the same user, in the same network \
                     namespace: {error}",
                    path.display()
                ),
            }
            state.disconnected();
            state.answered.send_replace(true);
            tokio::time::sleep(AGAIN).await;
        }
    }
}

/// Returns whether there is no holder.
fn is_absent(error: &io::Error) -> bool {
    let kind = error.kind();
    kind == io::ErrorKind::NotFound || kind == io::ErrorKind::ConnectionRefused
}

impl Released for State {
    fn closed(&self, number: u64) {
        // The next process gets it from the holder.
        if self.is_left.load(Relaxed) {
            return;
        }
        let mut table = self.table.lock();
        if let Some(entry) = table.sockets.remove(&number) {
            table.missing -= usize::from(!entry.held);
            if let Some(inode) = entry.inode {
                table.known.remove(&inode);
            }
        }
        self.release(table, number);
    }

    fn unneeded(&self, inode: u64) {
        let mut table = self.table.lock();
        // Another holder has no such number, and one that ended holds nothing.
        if let Some((connection, number)) = table.given.remove(&inode)
            && table.connection == connection
        {
            self.release(table, number);
        }
    }
}

impl State {
    fn release(&self, mut table: MutexGuard<'_, Table>, number: u64) {
        table.queue(Job::Release(number));
        drop(table);
        self.queued.send_replace(());
    }

    /// Records that a holder is connected, and queues all sockets for it.
    fn connected(&self) {
        let mut table = self.table.lock();
        table.connected = true;
        table.connection += 1;
        let mut all: Vec<u64> = table.sockets.keys().copied().collect();
        all.sort_unstable();
        table.queue = all.into_iter().map(Job::Hold).collect();
        let open = table.sockets.values().filter_map(|entry| entry.inode);
        table.known = open.chain(table.given.keys().copied()).collect();
    }

    fn disconnected(&self) {
        let mut table = self.table.lock();
        table.connected = false;
        table.queue.clear();
        table.missing = table.sockets.len();
        for entry in table.sockets.values_mut() {
            entry.held = false;
        }
    }

    /// Acts on a record of the holder, which came with `descriptor`.
    fn act(self: &Arc<Self>, record: &[u8], descriptor: Option<OwnedFd>) -> io::Result<()> {
        let mut table = self.table.lock();
        match Message::parse(record) {
            Some(Message::Held(number)) => {
                let entry = table.sockets.get_mut(&number);
                if entry.is_some_and(|entry| !mem::replace(&mut entry.held, true)) {
                    table.missing -= 1;
                    if table.missing == 0 {
                        let sockets = table.sockets.len();
                        tracing::debug!(sockets, "the holder has all sockets");
                    }
                }
            }
            Some(Message::Give(number, description)) if number >= FIRST_OF_HOLDER => {
                let fits = descriptor.filter(|socket| description.matches(socket));
                let fits = fits.and_then(|socket| Some((inode(&socket).ok()?, socket)));
                let Some((inode, socket)) = fits else {
                    table.queue(Job::Release(number));
                    return Ok(());
                };
                let connection = table.connection;
                // If a connection broke, the holder takes the sockets of this process for those of
                // an ended one. What waits here to be taken is held under the new number.
                if let Some(given) = table.given.get_mut(&inode) {
                    let (of, before) = mem::replace(given, (connection, number));
                    if of == connection {
                        table.queue(Job::Release(before));
                    }
                } else if table.known.contains(&inode) {
                    table.queue(Job::Release(number));
                } else {
                    table.given.insert(inode, (connection, number));
                    let released = Arc::<State>::clone(self);
                    table.inherited.push(InheritedSocket {
                        description,
                        socket,
                        origin: Origin::Holder(Release { released, inode }),
                    });
                    drop(table);
                    self.arrived.send_replace(());
                }
            }
            Some(Message::Note(note)) => table.notes.push(note),
            Some(Message::Flow(record)) => {
                if let Some(socket) = descriptor {
                    table.flows.push((record, socket));
                }
            }
            Some(Message::All) => {
                let sockets = table.inherited.len();
                drop(table);
                tracing::info!(sockets, "connected to the holder; sockets wait there");
                self.answered.send_replace(true);
            }
            _ => {
                return Err(io::Error::other(
                    "it sends something that is not a record of this version",
                ));
            }
        }
        Ok(())
    }
}

/// Talks to the holder until it ends.
async fn attend(state: &Arc<State>, path: &Path) -> io::Result<()> {
    let channel = Channel::connect(path)?;
    if !channel.is_same_user() {
        return Err(io::Error::other("a process of another user listens there"));
    }
    let mut buffer = [0; LONGEST];
    let greeted = timeout(ANSWER, meet(&channel, &mut buffer)).await;
    greeted.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
    state.connected();
    let mut queued = state.queued.subscribe();
    queued.mark_changed();
    let mut is_late = false;
    loop {
        let is_late = &mut is_late;
        let next = state.table.lock().next();
        let idle = next.is_none();
        let sending = async {
            let Some((message, socket)) = &next else {
                return pending().await;
            };
            let descriptor = socket.as_ref().map(|socket| socket.as_fd());
            let record = message.encode();
            sending::when_possible(is_late, "the holder", || channel.send(&record, descriptor))
                .await
        };
        tokio::select! {
            sent = sending => {
                sent?;
                state.table.lock().queue.pop_front();
            }
            received = channel.receive(&mut buffer) => {
                let Some(received) = received? else {
                    return Ok(());
                };
                let record = buffer.get(..received.len).unwrap_or_default();
                state.act(record, received.descriptor)?;
            }
            _ = queued.changed(), if idle => {}
        }
    }
}

/// Greets the other side.
///
/// # Errors
/// When it is no holder that speaks a version of this process.
async fn meet(channel: &Channel, buffer: &mut [u8]) -> io::Result<()> {
    match greet(channel, buffer).await {
        Ok(version) if is_spoken(version) => Ok(()),
        Ok(other) => Err(io::Error::other(format!(
            "it has version {other} of the protocol, and this process none before {OLDEST}; run \
             both from the same image"
        ))),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(io::Error::other(
            "it is not a holder, or it is the holder of another network namespace",
        )),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, sync::Weak};

    use net::Protocol;
    use tokio::sync::mpsc::unbounded_channel;

    use super::*;
    use crate::kernel::socket::bound::BoundAddress;

    fn description(socket: &TcpListener) -> SocketDescription {
        let address = socket.local_addr().unwrap();
        let protocol = Protocol::Tcp;
        SocketDescription {
            bound: BoundAddress { protocol, address },
            label: "web".into(),
        }
    }

    /// Gives `socket` as the holder does.
    fn give(holding: &Holding, number: u64, socket: &TcpListener) {
        let record = Message::Give(number, description(socket)).encode();
        let descriptor = socket.try_clone().unwrap().into();
        holding.0.act(&record, Some(descriptor)).unwrap();
    }

    /// The holder gives the sockets of a predecessor that is killed, while this process opens those
    /// that the predecessor gave.
    #[test]
    fn a_socket_that_is_given_twice_is_taken_once() {
        let socket = Arc::new(TcpListener::bind("127.0.0.1:0").unwrap());
        let description = description(&socket);
        let holding = Holding::at(PathBuf::new());
        holding.0.connected();
        let (sender, _taken) = unbounded_channel();
        let descriptor = socket.try_clone().unwrap().into();
        let taken = Taken { number: 7, sender };
        holding.share(description.clone(), descriptor, taken);
        assert_eq!(holding.take_inherited(|_| true).len(), 1);
        give(&holding, FIRST_OF_HOLDER, &socket);
        let weak: Weak<TcpListener> = Arc::downgrade(&socket);
        let _held = holding.hold(description, weak, true);
        assert_eq!(holding.take_inherited(|_| true).len(), 0);
        let table = holding.0.table.lock();
        assert!(
            matches!(table.queue.back(), Some(Job::Release(FIRST_OF_HOLDER))),
            "the holder need not keep it twice"
        );
    }

    /// What another process left may be a socket that this one took before and serves.
    #[test]
    fn a_socket_that_this_process_serves_is_no_inherited_one() {
        let socket = Arc::new(TcpListener::bind("127.0.0.1:0").unwrap());
        let description = description(&socket);
        let holding = Holding::at(PathBuf::new());
        let state = &holding.0;
        state.connected();
        let given = |number| {
            give(&holding, number, &socket);
            holding.take_inherited(|_| true).len()
        };
        let weak: Weak<TcpListener> = Arc::downgrade(&socket);
        let held = holding.hold(description, weak, false);
        assert_eq!(given(FIRST_OF_HOLDER), 0);
        let queue = |state: &State| mem::take(&mut state.table.lock().queue);
        let released = queue(state);
        assert!(
            matches!(released.back(), Some(Job::Release(FIRST_OF_HOLDER))),
            "the holder need not keep it for another one"
        );
        drop(held);
        assert_eq!(given(FIRST_OF_HOLDER + 1), 1, "it serves there no more");
    }
}
