//! Taking over from a process that serves.

use std::{collections::BTreeSet, io, net::SocketAddr, os::fd::OwnedFd, path::Path};

use tokio::{
    sync::{
        mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
        oneshot,
    },
    task::JoinSet,
    time::{Instant, timeout},
};

use super::{ANSWER, present};
use crate::{
    backoff::until,
    hold::{
        Taken, greet,
        message::{LONGEST, Message, VERSION, is_spoken},
    },
    kernel::socket::records::Channel,
    modes::handover::{Handover, Predecessor as Follows},
    serve::Listeners,
};

/// A process that serves when this one starts.
pub struct Predecessor {
    /// The path of its socket.
    name: String,
    commands: UnboundedSender<Command>,
}

enum Command {
    /// Give way, and signal when that is done.
    TakeOver(Handover, oneshot::Sender<()>),
    /// The first sync of this process is applied.
    Serves,
}

/// Connects to the processes that serve this node, and has `listeners` receive the sockets on which
/// they answer about themselves. Returns when those are there: with `bindAddressHardFail` this
/// process would end if it could not bind.
pub async fn meet(listeners: &Listeners) -> Vec<Predecessor> {
    meet_where(listeners, |_| true).await
}

/// Connects to the processes that began to serve while this one started, apart from those that it
/// has `met`: before they served, it could not find them. `own` is its socket. Of two processes that
/// find each other, the one whose socket was opened later, and has the higher number, takes over.
pub(super) async fn meet_others(
    own: &str,
    met: &[Predecessor],
    listeners: &Listeners,
) -> Vec<Predecessor> {
    let mut is_earlier = true;
    let is_met = |name: &str| {
        let mut of_name = met.iter().filter(|one| one.name == name);
        // Another process may have opened the socket of one that has ended.
        of_name.any(|one| !one.commands.is_closed())
    };
    meet_where(listeners, |name| {
        is_earlier &= name != own;
        is_earlier && !is_met(name)
    })
    .await
}

/// Connects to the processes at those sockets for which `is_wanted` holds.
async fn meet_where(
    listeners: &Listeners,
    mut is_wanted: impl FnMut(&str) -> bool,
) -> Vec<Predecessor> {
    let names = match present() {
        Ok(names) => names,
        Err(error) => {
            tracing::warn!("cannot look for a process to take over from: {error}");
            return Vec::new();
        }
    };
    let mut meetings = JoinSet::new();
    for name in names.into_iter().filter(|name| is_wanted(name)) {
        // One that cannot be reached has ended.
        let Ok(channel) = Channel::connect(Path::new(&name)) else {
            continue;
        };
        if channel.is_same_user() {
            let listeners = listeners.clone();
            meetings.spawn(async move { Predecessor::meet(name, channel, &listeners).await });
        }
    }
    meetings.join_all().await
}

impl Predecessor {
    pub(super) async fn meet(name: String, channel: Channel, listeners: &Listeners) -> Predecessor {
        let (commands, receiver) = unbounded_channel();
        let (met, meets) = oneshot::channel();
        let (sender, taken) = unbounded_channel();
        listeners.has_predecessors(1);
        let session = Session {
            channel,
            listeners: listeners.clone(),
            awaits: Some(met),
            taking_over: None,
            reported: BTreeSet::new(),
            taken,
            sender,
        };
        tokio::spawn(session.run(receiver));
        if timeout(ANSWER, meets).await.is_err() {
            tracing::warn!(
                "the running process did not pass on its ports within {ANSWER:?}; they are bound \
                 when it has ended"
            );
        }
        Predecessor { name, commands }
    }

    /// Has it give way, and waits for that, at most for [`ANSWER`]. Returns whether it is there.
    pub(super) async fn give_way(&self, handover: &Handover) -> bool {
        let (done, answer) = oneshot::channel();
        let command = Command::TakeOver(handover.clone(), done);
        if self.commands.send(command).is_err() {
            return false;
        }
        match timeout(ANSWER, answer).await {
            Ok(answer) => answer.is_ok(),
            // It still has to give way: otherwise both would write, each against the other.
            Err(_) => {
                tracing::warn!(
                    "the running process has not given way after {ANSWER:?}; it does so when its \
                     sync ends"
                );
                true
            }
        }
    }

    /// Tells it that this process serves.
    pub(super) fn serves(&self) {
        // It fails if that process has ended.
        let _ = self.commands.send(Command::Serves);
    }
}

/// The connection to a predecessor.
struct Session {
    channel: Channel,
    listeners: Listeners,
    /// Is told of the next [`Message::All`].
    awaits: Option<oneshot::Sender<()>>,
    taking_over: Option<TakingOver>,
    /// Where the predecessor knows that this process answers about itself.
    reported: BTreeSet<SocketAddr>,
    /// Numbers of its sockets that this process has taken.
    taken: UnboundedReceiver<u64>,
    sender: UnboundedSender<u64>,
}

/// What there is once the predecessor was asked to give way.
struct TakingOver {
    handover: Handover,
    follows: Follows,
    notes: Vec<Vec<u8>>,
    /// When this process accepts although the predecessor did not say that it stopped; `None`: this
    /// process does not serve yet.
    accepts_at: Option<Instant>,
}

impl Session {
    async fn run(mut self, commands: UnboundedReceiver<Command>) {
        if let Err(error) = self.exchange(commands).await {
            tracing::warn!("the connection to the running process ended: {error}");
        }
        self.stopped();
        self.taking_over = None;
        self.listeners.predecessor_ended().await;
    }

    /// Serves the connection until the predecessor ends.
    async fn exchange(&mut self, mut commands: UnboundedReceiver<Command>) -> io::Result<()> {
        let mut buffer = [0; LONGEST];
        let version = match timeout(ANSWER, greet(&self.channel, &mut buffer)).await {
            Ok(Ok(version)) => version,
            // It has ended.
            Ok(Err(error)) if error.kind() == io::ErrorKind::InvalidData => return Ok(()),
            Ok(Err(error)) => return Err(error),
            Err(_) => return Err(io::ErrorKind::TimedOut.into()),
        };
        if !is_spoken(version) {
            return Err(io::Error::other(format!(
                "it has version {version} of the protocol, and this process {VERSION}; it serves \
                 until it is ended"
            )));
        }
        let mut changes = self.listeners.changes();
        changes.mark_changed();
        loop {
            let accepts_at = self.taking_over.as_ref().and_then(|one| one.accepts_at);
            tokio::select! {
                received = self.channel.receive(&mut buffer) => {
                    let Some(received) = received? else {
                        return Ok(());
                    };
                    let record = buffer.get(..received.len).unwrap_or_default();
                    self.act(record, received.descriptor)?;
                }
                Some(command) = commands.recv() => self.command(command).await?,
                Some(number) = self.taken.recv() => self.report_taken(number).await?,
                _ = changes.changed() => self.report_ports().await?,
                () = until(accepts_at) => {
                    tracing::warn!(
                        "the running process did not say that it stopped accepting connections \
                         after {ANSWER:?}: accepting next to it"
                    );
                    self.stopped();
                }
            }
        }
    }

    async fn command(&mut self, command: Command) -> io::Result<()> {
        match command {
            Command::TakeOver(handover, done) => {
                self.awaits = Some(done);
                let follows = handover.follows();
                self.taking_over = Some(TakingOver {
                    handover,
                    follows,
                    notes: Vec::new(),
                    accepts_at: None,
                });
                self.channel.send(&Message::TakeOver.encode(), None).await
            }
            Command::Serves => {
                // Where it accepts from then on.
                while let Ok(number) = self.taken.try_recv() {
                    self.report_taken(number).await?;
                }
                if let Some(taking_over) = &mut self.taking_over {
                    taking_over.accepts_at = Some(Instant::now() + ANSWER);
                }
                self.channel.send(&Message::Serves.encode(), None).await
            }
        }
    }

    fn act(&mut self, record: &[u8], descriptor: Option<OwnedFd>) -> io::Result<()> {
        match (Message::parse(record), &mut self.taking_over, descriptor) {
            (Some(Message::Port(_)), _, Some(socket)) => self.listeners.give(socket),
            (Some(Message::Give(number, description)), Some(taking_over), Some(socket)) => {
                let sender = self.sender.clone();
                let holding = taking_over.handover.holding();
                holding.share(description, socket, Taken { number, sender });
            }
            (Some(Message::Flow(flow)), Some(taking_over), Some(socket)) => {
                taking_over.inherit(&flow, socket);
            }
            (Some(Message::Note(note)), Some(taking_over), _) => taking_over.notes.push(note),
            // There is no descriptor if this process may open no more.
            (Some(Message::Port(_) | Message::Give(..) | Message::Flow(_)), _, None) => {}
            (Some(Message::All), ..) => self.all(),
            _ => {
                return Err(io::Error::other(
                    "it sends something that is not a record of this version",
                ));
            }
        }
        Ok(())
    }

    /// Acts on the end of what was asked for.
    fn all(&mut self) {
        if let Some(awaits) = self.awaits.take() {
            // Nobody may wait any more.
            let _ = awaits.send(());
        } else {
            self.stopped();
        }
    }

    fn stopped(&mut self) {
        if let Some(taking_over) = &mut self.taking_over {
            taking_over.stopped();
        }
    }

    async fn report_taken(&self, number: u64) -> io::Result<()> {
        let record = Message::Held(number).encode();
        self.channel.send(&record, None).await
    }

    /// Tells the predecessor where this process answers about itself, as soon as it does.
    async fn report_ports(&mut self) -> io::Result<()> {
        for address in self.listeners.taken_over() {
            if self.reported.insert(address) {
                let record = Message::Port(address).encode();
                self.channel.send(&record, None).await?;
            }
        }
        Ok(())
    }
}

impl TakingOver {
    /// Accepts connections in place of the predecessor, which has stopped.
    fn stopped(&mut self) {
        self.accepts_at = None;
        self.give();
        self.follows.stopped();
    }

    /// Has clients keep their endpoints.
    fn give(&mut self) {
        let assignments = self.handover.assignments();
        assignments.inherit(std::mem::take(&mut self.notes));
        assignments.give();
    }

    /// Takes over a UDP flow, which continues when the predecessor has stopped.
    fn inherit(&self, record: &[u8], socket: OwnedFd) {
        let (assignments, holding) = (self.handover.assignments(), self.handover.holding());
        assignments.inherit_flow(record, socket, true);
        if !self.follows.accepts() {
            assignments.give();
            holding.resume();
        }
    }
}
