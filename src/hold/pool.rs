//! What the holder keeps that no proxy serves, and to whom it is offered.

use std::{collections::BTreeMap, mem, os::fd::OwnedFd};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::{
    flows::{PassedFlow, PassedFlows},
    message::SocketDescription,
    others::Others,
};

/// A socket that is held. Dropping it closes the holder's descriptor, and with it the socket, so
/// that connections that wait are reset, unless a proxy has a descriptor, too: one that serves
/// there although its connection to the holder broke continues.
#[derive(Debug)]
pub(super) struct HeldSocket {
    pub(super) description: SocketDescription,
    pub(super) socket: OwnedFd,
}

/// What a proxy is given.
#[derive(Debug)]
pub(super) enum Offer {
    Socket(HeldSocket),
    Flow(PassedFlow),
    /// A note of the proxy before.
    Note(Vec<u8>),
    /// There is nothing more now.
    All,
}

/// What all connections share.
#[derive(Debug, Default)]
pub(super) struct Pool {
    /// Sockets that no proxy serves.
    pub(super) unserved: Vec<HeldSocket>,
    /// The notes of the last proxy that recorded any.
    pub(super) notes: Vec<Vec<u8>>,
    /// UDP flows that no proxy has taken yet.
    flows: PassedFlows,
    /// What the connected proxies are sent, in the order in which they came.
    pub(super) proxies: BTreeMap<u64, UnboundedSender<Offer>>,
    next: u64,
    /// Which processes have sockets at the addresses of `unserved`.
    others: Others,
}

impl Pool {
    /// Closes all sockets that no proxy serves, because a proxy that cannot take them is about to
    /// serve. If both listen at an address (SO_REUSEPORT), the kernel would send a share of the
    /// connections to sockets from which none is accepted.
    pub(super) fn give_up(&mut self, why: &str) {
        self.flows = PassedFlows::default();
        let sockets = self.unserved.len();
        // Such a proxy may come again every second.
        if sockets == 0 {
            tracing::debug!("nothing is held for a proxy that connected: {why}");
            return;
        }
        self.unserved.clear();
        tracing::warn!(sockets, "closing the sockets that wait for a proxy: {why}");
    }

    /// Closes the sockets that no proxy serves at addresses where another process waits for
    /// clients: a proxy that does not talk to this holder.
    pub(super) fn close_shared(&mut self) {
        self.flows.expire();
        if self.unserved.is_empty() || !self.proxies.is_empty() {
            self.others.clear();
            return;
        }
        let held = self.unserved.iter();
        let shared = match self
            .others
            .observe(held.map(|held| (held.description.bound, &held.socket)))
        {
            Ok(shared) if shared.is_empty() => return,
            Ok(shared) => shared,
            Err(error) => {
                tracing::debug!("cannot look for sockets of other processes: {error}");
                return;
            }
        };
        let before = self.unserved.len();
        self.unserved
            .retain(|held| !shared.contains(&held.description.bound));
        tracing::warn!(
            sockets = before - self.unserved.len(),
            "closing sockets, because a process that does not use this holder serves at their \
             addresses; give the proxy the path of this holder (--userspace-holder-socket)"
        );
    }

    /// Offers what no proxy serves to a new one. Returns its number and the offers.
    pub(super) fn join(&mut self) -> (u64, UnboundedReceiver<Offer>) {
        let (send, offers) = unbounded_channel();
        let sockets = mem::take(&mut self.unserved).into_iter();
        let notes = self.notes.iter().cloned().map(Offer::Note);
        let flows = self.flows.take().into_iter().map(Offer::Flow);
        let all = sockets.map(Offer::Socket).chain(flows).chain(notes);
        for offer in all.chain([Offer::All]) {
            // It does not fail: the receiver exists.
            let _ = send.send(offer);
        }
        let number = self.next;
        self.next += 1;
        self.proxies.insert(number, send);
        (number, offers)
    }

    /// Offers a socket that is not served any more to the proxy that came last, or keeps it for the
    /// next one. A socket that the proxy has closed is dropped.
    pub(super) fn add(&mut self, held: HeldSocket) {
        if !held.description.matches(&held.socket) {
            return;
        }
        let Some(last) = self.proxies.values().next_back() else {
            self.unserved.push(held);
            return;
        };
        if let Err(refused) = last.send(Offer::Socket(held))
            && let Offer::Socket(held) = refused.0
        {
            self.unserved.push(held);
        }
    }

    /// Offers a flow to the proxy that came last, or keeps it for the next one.
    pub(super) fn pass(&mut self, flow: PassedFlow) {
        match self.proxies.values().next_back() {
            Some(last) => {
                // If it cannot be sent, its socket is closed, and the flow ends.
                let _ = last.send(Offer::Flow(flow));
            }
            None => self.flows.add(flow),
        }
    }
}
