//! Messages between processes of Tripod on one node, of which one takes over
//! from another.
//!
//! A process in any mode whose first sync is in force in both IP families, or in one of them
//! while the other one fails for long, listens on a unix socket in [`FOLDER`]. One that is
//! about to sync for the first time finds these sockets and sends over each connection, which
//! stays open as long as it runs:
//!
//! ```text
//! successor                              predecessor
//! 4 bytes: sockets for an address ──►    gives way (see `Handover`)
//!                                 ◄──    1 byte: done
//! 1 byte: it serves               ──►    may end
//! end of the connection           ──►    serves again
//! ```
//!
//! Further sockets are for which client has which endpoint ([`assignments`]), the sockets of UDP
//! flows ([`flows`]), and those on which both processes answer about themselves ([`ports`]).
//!
//! Whoever connects can end the service of this node and read which client has which endpoint. The
//! socket's file decides who may: its folder is root's and must be in the mount namespace of the
//! process, which is not the case for another container on the host's network, even if its user is
//! root. An abstract socket would admit that container: neither its user nor its capabilities
//! distinguish it from a successor, since the process in a DaemonSet's new pod is in another pid
//! namespace and has no number here (SO_PEERCRED).
//!
//! The sockets are found by trying their names in this folder, in which nobody else can make any.
//! Service addresses belong to one network namespace, while the folder may be one of several, so a
//! name includes the number of the namespace ([`names`]).

mod assignments;
mod flows;
mod ports;
#[cfg(test)]
mod tests;

use std::{
    fs, io,
    os::unix::{fs::MetadataExt, net::UnixStream as StdStream},
    path::Path,
    time::Duration,
};

use net::{Family, PerFamily};
use netlink::{isolation, unix_listeners};
use socket2::{Socket, Type};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        UnixListener, UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::mpsc::{Receiver, Sender, channel},
    task::JoinSet,
    time::timeout,
};

pub(super) use self::ports::inherit as inherit_ports;
use crate::{
    kernel::socket::{
        records::{self, Channel},
        unix,
    },
    modes::handover::{Handover, Predecessor},
    runner::AfterSync,
    serve::{Listeners, Successors},
    services::{Changes, ServiceMap},
};

/// Where processes of one node listen for those that take over from them. In containers
/// it is a folder of the node.
pub(super) const FOLDER: &str = "/run/tripod/succession/";

/// A socket in that folder, for the rules about which files this process reaches.
pub(super) const FIRST: &str = "/run/tripod/succession/userspace-0";

/// The socket for everything except clients' endpoints, without its number. All modes use the name
/// that released versions look for.
const SOCKET: &str = "userspace-";

/// Maximum number of processes that listen at a time in a network namespace.
const MOST: u64 = 64;

/// How long to wait for a predecessor: it may hang, or be in the middle of a sync, after which it
/// still gives way.
const ANSWER: Duration = Duration::from_secs(5);

/// How long a successor may take until it serves. One that takes longer may still succeed, but
/// meanwhile no process would capture what it does not.
const FIRST_SYNC: Duration = Duration::from_secs(30);

/// How long to wait for a family that fails, once the other one is in force: the node may not be
/// able to serve it. It is shorter than [`FIRST_SYNC`], and several attempts are made meanwhile.
const OTHER_FAMILY: Duration = Duration::from_secs(15);

/// How long to wait for the end of processes that another one has already taken over from. It is
/// longer than the default of `--userspace-drain-timeout` (20 s).
const ONE_LEFT: Duration = Duration::from_secs(30);

/// How often to check whether they have ended.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// Sent when a predecessor has given way, and when a successor serves.
const DONE: u8 = 1;

/// Returns what must complete before the first sync: the processes before this one have given way,
/// and the holder has given it what ended ones left there. Also returns what tells them when this
/// process serves; then `listeners` are shared with the process after this one.
pub(super) fn take_over(
    sockets: usize,
    handover: Handover,
    listeners: Listeners,
) -> (impl Future<Output = ()>, Serving) {
    let (served, serving) = channel(1);
    let holding = handover.holding().cloned();
    if let Some(holding) = &holding {
        tokio::spawn(holding.clone().run());
    }
    let taken_over = async move {
        until_one_is_left().await;
        let predecessors = ask_all(sockets, &handover).await;
        tokio::spawn(once_it_serves(serving, predecessors, handover, listeners));
        if let Some(holding) = holding {
            holding.answered().await;
        }
    };
    let serving = Serving {
        families: PerFamily::default(),
        served: Some(served),
    };
    (taken_over, serving)
}

/// Signals which families this process serves.
pub(super) struct Serving {
    /// Families that were in force. What gives way does so for both.
    families: PerFamily<bool>,
    /// Sends the first of them; dropped when both were in force.
    served: Option<Sender<Family>>,
}

impl AfterSync for Serving {
    fn synced(&mut self, family: Family, _: &ServiceMap, _: &Changes) {
        *self.families.get_mut(family) = true;
        if let Some(served) = &self.served {
            // One that waits to be received is enough.
            let _ = served.try_send(family);
        }
        if self.families.iter().all(|(_, synced)| *synced) {
            // The receiver waits for the sender to be dropped.
            self.served = None;
        }
    }
}

/// A process that has given way to this one, as long as the connection is open.
struct GaveWay {
    read: OwnedReadHalf,
    write: OwnedWriteHalf,
    _follows: Predecessor,
}

/// Waits until at most one process runs before this one, [`ONE_LEFT`] at most: the other one
/// serves meanwhile. A process hands new connections to the sockets that come after its own in the
/// group of an address (`kernel::socket::reuseport`), which are not this process's as long as there
/// are those of another process before its own.
async fn until_one_is_left() {
    let several = || running() > 1;
    if !several() {
        return;
    }
    tracing::info!("waiting until the predecessor of the process that serves now has ended");
    let ended = async {
        while several() {
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    };
    if timeout(ONE_LEFT, ended).await.is_err() {
        tracing::warn!(
            "several Tripod processes still run after {ONE_LEFT:?}: taking over from all of them; \
             new connections may reach the earlier ones until these end"
        );
    }
}

/// Returns how many processes of this user could be taken over from.
fn running() -> usize {
    let own = nix::unistd::geteuid().as_raw();
    let names = present(SOCKET).unwrap_or_default().into_iter();
    let ours = |name: &String| {
        let is_own = fs::metadata(name).is_ok_and(|file| file.uid() == own);
        is_own && unix::is_listened_on(Path::new(name)).unwrap_or(true)
    };
    names.filter(ours).count()
}

/// Has all processes that serve this node give way to this one.
async fn ask_all(sockets: usize, handover: &Handover) -> Vec<GaveWay> {
    let mut connections = JoinSet::new();
    report_unreachable();
    match present(SOCKET) {
        Ok(names) => {
            for name in names {
                connections.spawn(async move { ask(&name, sockets).await });
            }
        }
        Err(error) => tracing::warn!("cannot look for a process to take over from: {error}"),
    }
    let mut predecessors = Vec::new();
    while let Some(joined) = connections.join_next().await {
        let Ok(answered) = joined else { continue };
        match answered {
            Ok(Some((read, write))) => predecessors.push(GaveWay {
                read,
                write,
                _follows: handover.follows(),
            }),
            // It ended meanwhile, or belongs to another user.
            Ok(None) => {}
            Err(error) => {
                tracing::warn!("the process that serves now did not give way: {error}");
            }
        }
    }
    if !predecessors.is_empty() {
        tracing::info!(
            processes = predecessors.len(),
            "taking over from a running process"
        );
        if let Some(assignments) = handover.assignments() {
            assignments::inherit(assignments).await;
            flows::inherit(assignments).await;
        }
    }
    predecessors
}

/// Waits until both families are in force, at most for [`OTHER_FAMILY`] after the first one is.
async fn both_served(mut serving: Receiver<Family>) {
    let Some(first) = serving.recv().await else {
        return;
    };
    // The channel ends when the other family is in force.
    let other = async { while serving.recv().await.is_some() {} };
    if timeout(OTHER_FAMILY, other).await.is_err() {
        tracing::warn!(
            "{first} has been applied for {OTHER_FAMILY:?}, but the other IP family has not: \
             serving without it until its sync succeeds (tripod status says why it fails)"
        );
    }
}

/// Waits until this process is `serving`, and then tells those before it, and listens for those
/// after it.
async fn once_it_serves(
    serving: Receiver<Family>,
    predecessors: Vec<GaveWay>,
    handover: Handover,
    listeners: Listeners,
) {
    both_served(serving).await;
    handover.serves();
    listeners.serve();
    for predecessor in predecessors {
        tokio::spawn(stay(predecessor));
    }
    if let Err(error) = listen(handover).and_then(|()| ports::listen(listeners)) {
        tracing::warn!("another process cannot take over without a gap: {error}");
    }
}

/// Sends that this process serves, and keeps the connection until the predecessor ends.
async fn stay(mut predecessor: GaveWay) {
    if predecessor.write.write_all(&[DONE]).await.is_ok() {
        // It sends nothing more, unless it has not answered yet.
        while predecessor.read.read_u8().await.is_ok() {}
    }
}

impl Successors for Handover {
    fn is_any(&self) -> bool {
        self.has_successor()
    }
}

/// Returns the names that sockets of this `kind` may have in a network namespace. Released versions
/// recognize them all, and have those of namespace 0, which there is none of, in any namespace.
fn names(kind: &str, namespace: u64) -> impl Iterator<Item = String> {
    let first = namespace.saturating_mul(MOST);
    (first..first.saturating_add(MOST)).map(move |number| format!("{FOLDER}{kind}{number}"))
}

/// Returns the paths of sockets of this `kind` that are there and belong to processes in this
/// network namespace, which may have ended.
fn present(kind: &str) -> io::Result<Vec<String>> {
    let is_there = |name: &String| fs::symlink_metadata(name).is_ok();
    let mut found: Vec<_> = names(kind, 0).filter(is_there).collect();
    if !found.is_empty()
        && let Ok(paths) = unix_listeners::paths()
    {
        found.retain(|name| paths.iter().any(|path| path == Path::new(name)));
    }
    found.extend(names(kind, isolation::network_namespace()?).filter(is_there));
    Ok(found)
}

/// Logs which process in this network namespace cannot be taken over from, because its folder is
/// another one.
fn report_unreachable() {
    let Ok(namespace) = isolation::network_namespace() else {
        return;
    };
    // Few processes listen where this one does not see it.
    let Ok(mut paths) = unix_listeners::paths() else {
        return;
    };
    paths.retain(|path| path.starts_with(FOLDER) && fs::symlink_metadata(path).is_err());
    let mut names = names(SOCKET, 0).chain(names(SOCKET, namespace));
    if let Some(name) = names.find(|name| paths.iter().any(|path| path == Path::new(name))) {
        tracing::warn!(
            "a process in this network namespace listens at {name}, but in another mount \
             namespace: to take over, both processes need the folder {FOLDER} of the node"
        );
    }
}

/// Asks the process that listens at `name` to give way, and waits for that, at most for
/// [`ANSWER`]. Returns `None` if it is gone, or belongs to another user.
async fn ask(name: &str, sockets: usize) -> io::Result<Option<(OwnedReadHalf, OwnedWriteHalf)>> {
    let Some(stream) = connect(name)? else {
        return Ok(None);
    };
    let (mut read, mut write) = stream.into_split();
    write.write_u32(u32::try_from(sockets).unwrap_or(1)).await?;
    match timeout(ANSWER, read.read_u8()).await {
        Ok(Ok(_)) => {}
        Ok(Err(_)) => return Ok(None),
        // It still has to give way: otherwise both would write, each against the other.
        Err(_) => tracing::warn!(
            "the running process has not given way after {ANSWER:?}; it does so when its sync \
             ends"
        ),
    }
    Ok(Some((read, write)))
}

/// Returns connections to the processes of this user that listen on a socket of this `kind`. One
/// that cannot be reached may have ended meanwhile.
fn channels(kind: &str) -> impl Iterator<Item = Channel> {
    let names = present(kind).unwrap_or_default().into_iter();
    let channels = names.filter_map(|name| Channel::connect(Path::new(&name)).ok());
    channels.filter(Channel::is_same_user)
}

/// Listens on a socket of this `kind`, and serves each process of this user that connects.
fn serve_channels<F>(kind: &str, serve: impl Fn(Channel) -> F + Send + 'static) -> io::Result<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = records::Listener::over(open(kind, records::KIND)?)?;
    tokio::spawn(async move {
        loop {
            match listener.accept().await {
                Ok(channel) if channel.is_same_user() && channel.is_of_this_namespace() => {
                    drop(tokio::spawn(serve(channel)));
                }
                Ok(_) => {}
                // Most likely there is no descriptor left.
                Err(_) => tokio::time::sleep(Duration::from_secs(1)).await,
            }
        }
    });
    Ok(())
}

/// Reads any `bytes` as what another process sends, for tests and `fuzz/`. Of the first socket
/// single bytes are read, which are not interpreted.
#[cfg(any(test, fuzzing))]
pub(super) fn read_anything(bytes: &[u8]) {
    ports::read_anything(bytes);
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.unwrap_or_else(|error| panic!("a runtime: {error}"));
    runtime.block_on(assignments::read_anything(bytes));
}

/// Returns whether the same user is at the other end, and, if that end has connected, in the same
/// network namespace.
fn is_ours(stream: &UnixStream) -> bool {
    let own = nix::unistd::geteuid().as_raw();
    let is_same_user = stream.peer_cred().is_ok_and(|peer| peer.uid() == own);
    is_same_user && unix::is_of_this_namespace(stream)
}

/// Accepts connections of successors from now on, and gives way to them.
fn listen(handover: Handover) -> io::Result<()> {
    let listener = UnixListener::from_std(open(SOCKET, Type::STREAM)?.into())?;
    assignments::listen(handover.clone())?;
    flows::listen(handover.clone())?;
    tokio::spawn(async move {
        loop {
            match listener.accept().await {
                Ok((stream, _)) if is_ours(&stream) => {
                    tokio::spawn(give_way(stream, handover.clone()));
                }
                Ok(_) => {}
                // Most likely there is no descriptor left.
                Err(_) => tokio::time::sleep(Duration::from_secs(1)).await,
            }
        }
    });
    Ok(())
}

/// Listens on a socket of this name and `kind` at the first number that no other process in this
/// network namespace has.
fn open(name: &str, kind: Type) -> io::Result<Socket> {
    let mut refused = None;
    for path in names(name, isolation::network_namespace()?) {
        match unix::listen(Path::new(&path), kind, unix::PRIVATE) {
            Ok(socket) => return Ok(socket),
            Err(error) => refused = Some(format!("cannot listen at {path}: {error}")),
        }
    }
    Err(io::Error::other(refused.unwrap_or_default()))
}

/// Connects to the process that listens at `name`. Returns `None` if it is gone, or
/// belongs to another user.
fn connect(name: &str) -> io::Result<Option<UnixStream>> {
    let Ok(stream) = StdStream::connect(name) else {
        return Ok(None);
    };
    stream.set_nonblocking(true)?;
    let stream = UnixStream::from_std(stream)?;
    Ok(Some(stream).filter(is_ours))
}

/// Gives way for as long as a successor is connected.
async fn give_way(mut stream: UnixStream, handover: Handover) {
    let Ok(Ok(sockets)) = timeout(ANSWER, stream.read_u32()).await else {
        return;
    };
    let mut successor = handover.give_way(sockets).await;
    tracing::info!("another process takes over the service addresses");
    if stream.write_all(&[DONE]).await.is_err() {
        return;
    }
    let serves = match timeout(FIRST_SYNC, stream.read_u8()).await {
        Ok(serves) => serves.is_ok(),
        Err(_) => {
            tracing::warn!(
                "the successor does not serve after {FIRST_SYNC:?}: this process serves until it \
                 does"
            );
            drop(successor);
            if stream.read_u8().await.is_err() {
                tracing::info!("the successor exited before it served");
                return;
            }
            successor = handover.give_way(sockets).await;
            true
        }
    };
    if serves {
        successor.serves();
        let _ = stream.read_u8().await;
    }
    tracing::info!("the successor has exited: serving again");
}
