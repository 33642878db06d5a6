//! UDP flows with their sockets, from a process that has given way to the one that takes over: the
//! endpoint sees the same source port as before. On a connection of its own, so that versions
//! without it work together with others:
//!
//! ```text
//! successor                              predecessor
//!                                 ◄──    a record and a descriptor, for each flow
//!                                 ◄──    number 0: these are all that there are now
//! numbers of flows                ──►    leaves their answers to the successor
//! end of the connection           ──►    reads all answers again
//! ```
//!
//! Flows that begin before the successor serves follow when it does. Until a flow's number comes,
//! the predecessor reads the answers: nothing is lost if the successor does not go on with it.

use std::{
    collections::HashMap,
    io,
    os::fd::AsFd,
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    time::timeout,
};

use super::{channels, serve_channels};
use crate::{
    kernel::socket::records::Channel,
    modes::{
        handover::Handover,
        userspace::{Assignments, Association, FlowToPass, LONGEST_FLOW, Reader},
    },
};

/// The socket, without its number.
pub(super) const SOCKET: &str = "flows-";

/// Bytes of a number.
const NUMBER: usize = size_of::<u64>();

/// The number that says that there are no others now.
const ALL: [u8; NUMBER] = [0; NUMBER];

/// Maximum number of numbers in one record.
const MOST: usize = LONGEST_FLOW / NUMBER;

/// How long passing on all existing flows may take: the node may be busy. Clients whose flows have
/// not come by then keep their endpoints, which see another source port.
const TIME: Duration = Duration::from_secs(5);

/// Takes over the flows of running processes. Returns when those that exist now are there.
pub(super) async fn inherit(assignments: &Arc<Assignments>) {
    for channel in channels(SOCKET) {
        let (sender, taken) = unbounded_channel();
        let all = receive_all(&channel, assignments, &sender);
        match timeout(TIME, all).await {
            Ok(Ok(flows)) => {
                tracing::debug!(flows, "UDP flows keep their sockets");
                tokio::spawn(go_on(channel, Arc::clone(assignments), sender, taken));
            }
            Ok(Err(error)) => tracing::warn!("{LOST}: {error}"),
            Err(_) => tracing::warn!("{LOST} within {TIME:?}"),
        }
    }
}

const LOST: &str = "the running process did not pass on all sockets of UDP flows: clients keep \
                    their endpoints, which see another source port; no action is needed";

/// Takes over flows until all existing ones have come. Returns how many there were.
pub(super) async fn receive_all(
    channel: &Channel,
    assignments: &Assignments,
    taken: &UnboundedSender<u64>,
) -> io::Result<usize> {
    let mut flows = 0;
    while receive(channel, assignments, taken).await? == Came::Flow {
        flows += 1;
    }
    Ok(flows)
}

/// What a record of the predecessor holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Came {
    Flow,
    All,
}

async fn receive(
    channel: &Channel,
    assignments: &Assignments,
    taken: &UnboundedSender<u64>,
) -> io::Result<Came> {
    let mut buffer = [0; LONGEST_FLOW];
    let received = channel.receive(&mut buffer).await?;
    let received = received.ok_or(io::ErrorKind::UnexpectedEof)?;
    let record = buffer.get(..received.len).unwrap_or_default();
    if record == ALL {
        return Ok(Came::All);
    }
    // There is none if this process may open no more descriptors.
    if let Some(socket) = received.descriptor {
        assignments.inherit_flow(record, socket, taken);
    }
    Ok(Came::Flow)
}

/// Reports which flows this process has taken over, and takes over those that follow, until the
/// other process ends.
pub(super) async fn go_on(
    channel: Channel,
    assignments: Arc<Assignments>,
    sender: UnboundedSender<u64>,
    mut taken: UnboundedReceiver<u64>,
) {
    let mut numbers = Vec::with_capacity(MOST);
    loop {
        numbers.clear();
        let done = tokio::select! {
            received = receive(&channel, &assignments, &sender) => {
                if matches!(received, Ok(Came::All)) {
                    assignments.give_passed();
                }
                received.map(drop)
            }
            _ = taken.recv_many(&mut numbers, MOST) => {
                let record: Vec<u8> = numbers.iter().flat_map(|one| one.to_be_bytes()).collect();
                channel.send(&record, None).await
            }
        };
        if done.is_err() {
            return;
        }
    }
}

/// Passes on flows to each process that asks.
pub(super) fn listen(handover: Handover) -> io::Result<()> {
    let Some(assignments) = handover.assignments().cloned() else {
        return Ok(());
    };
    serve_channels(SOCKET, move |channel| {
        let (assignments, handover) = (Arc::clone(&assignments), handover.clone());
        async move {
            // However the other process ends, this one goes on.
            let _ = pass_on(&channel, &assignments, &handover).await;
        }
    })
}

/// Flows that were passed on. This process reads their answers again when this is dropped.
#[derive(Default)]
struct PassedOn(HashMap<u64, Weak<Association>>);

impl Drop for PassedOn {
    fn drop(&mut self) {
        let flows = self.0.values().filter_map(Weak::upgrade);
        flows.for_each(|flow| flow.leave_answers(Reader::ThisProcess));
    }
}

impl PassedOn {
    /// Sends the flows that were not sent before.
    async fn send(&mut self, channel: &Channel, assignments: &Assignments) -> io::Result<()> {
        for FlowToPass { flow, record } in
            assignments.flows_to_pass(|number| self.0.contains_key(&number))
        {
            channel.send(&record, Some(flow.as_fd())).await?;
            self.0.insert(flow.number(), Arc::downgrade(&flow));
        }
        channel.send(&ALL, None).await
    }

    /// Leaves the answers of flows to the other process.
    fn leave(&self, numbers: &[u8]) {
        let numbers = numbers.as_chunks::<NUMBER>().0.iter();
        let flows = numbers.filter_map(|number| self.0.get(&u64::from_be_bytes(*number)));
        let flows = flows.filter_map(Weak::upgrade);
        flows.for_each(|flow| flow.leave_answers(Reader::Successor));
    }
}

/// Passes on flows to the process at the other end, and leaves to it the answers of those that
/// it goes on with, until it ends.
pub(super) async fn pass_on(
    channel: &Channel,
    assignments: &Assignments,
    handover: &Handover,
) -> io::Result<()> {
    let mut passed = PassedOn::default();
    passed.send(channel, assignments).await?;
    let mut buffer = [0; LONGEST_FLOW];
    let mut serves = std::pin::pin!(handover.until_succeeded());
    let mut follow = true;
    loop {
        tokio::select! {
            received = channel.receive(&mut buffer) => {
                let Some(received) = received? else {
                    return Ok(());
                };
                passed.leave(buffer.get(..received.len).unwrap_or_default());
            }
            () = &mut serves, if follow => {
                follow = false;
                passed.send(channel, assignments).await?;
            }
        }
    }
}

#[cfg(test)]
mod tests;
