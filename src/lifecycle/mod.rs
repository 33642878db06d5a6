//! One process after the other serves this node: a process takes over from the one that serves,
//! and gives way to the next one.
//!
//! A process whose first sync is applied in both IP families, or in one of them while the other one
//! fails for long, listens on a unix socket in [`FOLDER`] (`successor`). One that starts finds
//! these sockets, and connects to each (`predecessor`). The connection stays open as long as both
//! run; `hold/message.rs` has the records that go over it.
//!
//! The processes share the listening sockets, and one of them at a time accepts connections and
//! receives datagrams there: local ports and rules stay valid,
//! and no connection waits at a socket that nobody serves. The end of the connection says that a
//! process has ended, however it ended.
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
//! name includes the number of the namespace.

mod draining;
mod predecessor;
mod successor;
#[cfg(test)]
mod tests;

use std::{fs, io, path::Path, time::Duration};

use net::{Family, PerFamily};
use netlink::{isolation, unix_listeners};
use tokio::{
    sync::mpsc::{Receiver, Sender, channel},
    task::JoinSet,
    time::timeout,
};

pub use self::{
    draining::{Until, drained},
    predecessor::{Predecessor, meet},
};
use crate::{
    modes::handover::Handover,
    runner::AfterSync,
    serve::Listeners,
    services::{Changes, ServiceMap},
};

/// Where processes of one node listen for those that take over from them. In containers
/// it is a folder of the node.
pub const FOLDER: &str = "/run/tripod/succession/";

/// A socket in that folder, for the rules about which files this process reaches.
pub const FIRST: &str = "/run/tripod/succession/process-0";

/// Maximum number of processes that listen at a time in a network namespace.
const MOST: u64 = 64;

/// How long to wait for an answer of another process: it may hang, or be in the middle of a sync,
/// after which it still answers.
const ANSWER: Duration = Duration::from_secs(5);

/// How long to wait for a family that fails, once the other one is applied: the node may not be
/// able to serve it. It is shorter than [`successor::FIRST_SYNC`], and several attempts are made
/// meanwhile.
const OTHER_FAMILY: Duration = Duration::from_secs(15);

/// Returns what must complete before the first sync: the `predecessors` have given way, and the
/// holder has given what ended ones left there. Also returns what tells them when this process
/// serves; then `listeners` are shared with the process after this one.
pub fn take_over(
    predecessors: Vec<Predecessor>,
    handover: Handover,
    listeners: Listeners,
) -> (impl Future<Output = ()>, Serving) {
    let (served, serving) = channel(1);
    let holding = handover.holding().clone();
    tokio::spawn(holding.clone().run());
    let taken_over = async move {
        report_unreachable();
        let predecessors = have_give_way(predecessors, &handover).await;
        tokio::spawn(once_it_serves(serving, predecessors, handover, listeners));
        holding.answered().await;
    };
    let serving = Serving {
        families: PerFamily::default(),
        served: Some(served),
    };
    (taken_over, serving)
}

/// Has the `predecessors` give way. Returns those that did.
async fn have_give_way(predecessors: Vec<Predecessor>, handover: &Handover) -> Vec<Predecessor> {
    let mut giving_way = JoinSet::new();
    for predecessor in predecessors {
        let handover = handover.clone();
        giving_way
            .spawn(async move { predecessor.give_way(&handover).await.then_some(predecessor) });
    }
    let gave_way = giving_way.join_all().await;
    let predecessors: Vec<Predecessor> = gave_way.into_iter().flatten().collect();
    if !predecessors.is_empty() {
        let processes = predecessors.len();
        tracing::info!(processes, "taking over from a running process");
    }
    predecessors
}

/// Signals which families this process serves.
pub struct Serving {
    /// Families that were applied. A process gives way for both.
    families: PerFamily<bool>,
    /// Sends the first of them; dropped when both were applied.
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

/// Waits until both families are applied, at most for [`OTHER_FAMILY`] after the first one is.
async fn both_served(mut serving: Receiver<Family>) {
    let Some(first) = serving.recv().await else {
        return;
    };
    // The channel ends when the other family is applied.
    let other = async { while serving.recv().await.is_some() {} };
    if timeout(OTHER_FAMILY, other).await.is_err() {
        tracing::warn!(
            "{first} has been applied for {OTHER_FAMILY:?}, but the other IP family has not: \
             serving without it until its sync succeeds (tripod status says why it fails)"
        );
    }
}

/// Waits until this process is `serving`, and then tells those before it, and listens for those
/// after it. Processes that began to serve since it started give way as well: two that start
/// together do not find each other, and would each repair what the other one writes.
async fn once_it_serves(
    serving: Receiver<Family>,
    predecessors: Vec<Predecessor>,
    handover: Handover,
    listeners: Listeners,
) {
    both_served(serving).await;
    handover.serves();
    listeners.serve();
    predecessors.iter().for_each(Predecessor::serves);
    match successor::listen(handover.clone(), listeners.clone()) {
        Ok(own) => {
            let others = predecessor::meet_others(&own, &predecessors, &listeners).await;
            let others = have_give_way(others, &handover).await;
            others.iter().for_each(Predecessor::serves);
        }
        Err(error) => tracing::warn!("another process cannot take over without a gap: {error}"),
    }
}

/// The names that sockets may have in a network namespace.
fn names(namespace: u64) -> impl Iterator<Item = String> {
    let first = namespace.saturating_mul(MOST);
    (first..first.saturating_add(MOST)).map(|number| format!("{FOLDER}process-{number}"))
}

/// The paths of sockets that are there and belong to processes in this network namespace, which may
/// have ended.
///
/// # Errors
/// When the number of this namespace cannot be read.
fn present() -> io::Result<Vec<String>> {
    let is_there = |name: &String| fs::symlink_metadata(name).is_ok();
    Ok(names(isolation::network_namespace()?)
        .filter(is_there)
        .collect())
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
    let mut names = names(namespace);
    if let Some(name) = names.find(|name| paths.iter().any(|path| path == Path::new(name))) {
        tracing::warn!(
            "a process in this network namespace listens at {name}, but in another mount \
             namespace: to take over, both processes need the folder {FOLDER} of the node"
        );
    }
}
