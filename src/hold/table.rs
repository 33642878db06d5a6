//! The sockets that the holder should have, as far as the proxy knows, and the messages for it.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    fmt,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Weak},
};

use super::{
    inherited::{InheritedSocket, Listening},
    message::{Message, SocketDescription},
};

/// A socket that other processes may have while it is open.
pub(super) type Socket = Weak<dyn Listening>;

/// A flow's socket, and what the next process must know of it.
pub(super) type Flow<Socket> = (Vec<u8>, Socket);

#[derive(Default)]
pub(super) struct Table {
    pub(super) next: u64,
    pub(super) sockets: HashMap<u64, Entry>,
    /// The inodes of those, and of sockets of ended processes that it had when it connected again.
    pub(super) known: HashSet<u64>,
    /// The sockets of ended processes that it has, by their inodes: under which number the holder
    /// gave each of them, on which connection.
    pub(super) given: HashMap<u64, (u64, u64)>,
    /// Number of these sockets that the holder does not have.
    pub(super) missing: usize,
    /// Messages for the holder.
    pub(super) queue: VecDeque<Job>,
    /// Number of the connection; 0: there was none yet.
    pub(super) connection: u64,
    pub(super) connected: bool,
    pub(super) inherited: Vec<InheritedSocket>,
    /// Which other processes may accept at the sockets of this one.
    pub(super) others: Others,
    /// Whether the predecessors stopped accepting since that was asked last.
    pub(super) have_stopped: bool,
    /// UDP flows of an ended process.
    pub(super) flows: Vec<Flow<OwnedFd>>,
    /// Notes of the process before.
    pub(super) notes: Vec<Vec<u8>>,
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").finish_non_exhaustive()
    }
}

/// Other processes that may accept connections at sockets of this one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Others {
    /// Predecessors that have not stopped.
    pub predecessors: bool,
    /// Successors that serve.
    pub successors: bool,
}

pub(super) struct Entry {
    pub(super) description: SocketDescription,
    pub(super) socket: Socket,
    /// `None`: it was closed before the holder was to have it.
    pub(super) inode: Option<u64>,
    /// Whether the holder confirmed that it has it.
    pub(super) held: bool,
    /// Whether a process that gave way to this one gave it.
    pub(super) is_shared: bool,
    /// Whether a process that takes over accepts there once it serves.
    pub(super) is_taken: bool,
}

/// A socket that goes with a record.
pub(super) type Sent = Arc<dyn AsFd + Send + Sync>;

impl Entry {
    /// Has this process accept there, unless another one does.
    pub(super) fn set_turn(&self, others: Others) {
        if let Some(socket) = self.socket.upgrade() {
            let predecessors = self.is_shared && others.predecessors;
            socket.leave(predecessors || self.is_taken && others.successors);
        }
    }
}

pub(super) enum Job {
    Hold(u64),
    Release(u64),
    Note(Vec<u8>),
    Flow(Flow<Sent>),
}

impl Table {
    pub(super) fn queue(&mut self, job: Job) {
        if self.connected {
            self.queue.push_back(job);
        }
    }

    /// Returns the next record, with its socket if it has one.
    pub(super) fn next(&self) -> Option<(Message, Option<Sent>)> {
        Some(match self.queue.front()? {
            Job::Release(number) => (Message::Release(*number), None),
            Job::Note(note) => (Message::Note(note.clone()), None),
            Job::Flow((record, socket)) => {
                (Message::Flow(record.clone()), Some(Arc::clone(socket)))
            }
            Job::Hold(number) => {
                let entry = self.sockets.get(number);
                match entry.and_then(|entry| Some((entry, entry.socket.upgrade()?))) {
                    Some((entry, socket)) => {
                        let message = Message::Hold(*number, entry.description.clone());
                        (message, Some(socket))
                    }
                    // It was closed meanwhile.
                    None => (Message::Release(*number), None),
                }
            }
        })
    }
}
