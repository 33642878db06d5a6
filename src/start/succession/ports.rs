//! The ports on which processes answer about themselves, from the one that serves to the
//! one that takes over, as descriptors of their listening sockets:
//!
//! ```text
//! successor                              predecessor
//!                                 ◄──    1 byte and a descriptor, for each socket
//!                                 ◄──    1 byte: these are all that there are now
//! address and port of a socket    ──►    leaves what comes in there to the successor
//! end of the connection           ──►    answers itself again
//! ```
//!
//! Sockets that are opened later follow. A successor answers once it serves, so that at any time
//! one of them answers, and never one that serves nothing. It requests the sockets as soon as it
//! starts: with `bindAddressHardFail` it would end if it could not bind.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::SocketAddr,
    os::fd::AsFd,
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{net::TcpListener, time::timeout};

use super::{channels, serve_channels};
use crate::{
    hold::bytes::{append_ip, take, take_ip},
    kernel::socket::records::Channel,
    serve::Listeners,
};

/// The socket, without its number.
pub(super) const SOCKET: &str = "ports-";

/// Goes with a descriptor.
const ONE: u8 = 1;
/// There are no others now.
const ALL: u8 = 2;

/// The longest record: an IPv6 address preceded by its length, and a port.
const LONGEST: usize = 19;

/// How long the process that serves may take to give its sockets.
const ANSWER: Duration = Duration::from_secs(2);

/// Has `listeners` receive the sockets of the process that serves now, if there is one. Returns
/// when they are there.
pub(in crate::start) async fn inherit(listeners: &Listeners) {
    let channels: Vec<_> = channels(SOCKET).collect();
    listeners.has_predecessors(channels.len());
    for channel in channels {
        match timeout(ANSWER, receive_all(&channel, listeners)).await {
            Ok(Ok(())) => {
                tokio::spawn(take_over(channel, listeners.clone()));
                continue;
            }
            Ok(Err(error)) => tracing::warn!("{REFUSED}: {error}"),
            Err(_) => tracing::warn!("{REFUSED} within {ANSWER:?}"),
        }
        let listeners = listeners.clone();
        tokio::spawn(async move { listeners.predecessor_ended().await });
    }
}

const REFUSED: &str = "the running process did not pass on its ports; they are bound when it has \
     ended";

/// Stores sockets until all existing ones have come.
async fn receive_all(channel: &Channel, listeners: &Listeners) -> io::Result<()> {
    while receive(channel, listeners).await? != ALL {}
    Ok(())
}

/// Stores a socket, if one comes. Returns the first byte of the record.
async fn receive(channel: &Channel, listeners: &Listeners) -> io::Result<u8> {
    let mut buffer = [0; LONGEST];
    let received = channel.receive(&mut buffer).await?;
    let received = received.ok_or(io::ErrorKind::UnexpectedEof)?;
    if let Some(socket) = received.descriptor {
        listeners.give(socket);
    }
    Ok(buffer[0])
}

/// Reports where this process answers, as soon as it does, until the other one ends.
async fn take_over(channel: Channel, listeners: Listeners) {
    let mut reported = BTreeSet::new();
    let mut changes = listeners.changes();
    loop {
        changes.mark_unchanged();
        for address in listeners.taken_over() {
            if reported.insert(address) && channel.send(&record(address), None).await.is_err() {
                break;
            }
        }
        tokio::select! {
            received = receive(&channel, &listeners) => if received.is_err() {
                break;
            },
            _ = changes.changed() => {}
        }
    }
    listeners.predecessor_ended().await;
}

fn record(address: SocketAddr) -> Vec<u8> {
    let mut record = Vec::with_capacity(LONGEST);
    append_ip(&mut record, address.ip());
    record.extend(address.port().to_be_bytes());
    record
}

fn address(mut record: &[u8]) -> Option<SocketAddr> {
    let ip = take_ip(&mut record)?;
    let port = u16::from_be_bytes(take(&mut record)?);
    Some(SocketAddr::new(ip, port))
}

/// Reads any `bytes` as a record of a successor, for tests and `fuzz/`.
#[cfg(any(test, fuzzing))]
pub(in crate::start) fn read_anything(bytes: &[u8]) {
    if let Some(read) = address(bytes) {
        assert_eq!(address(&record(read)), Some(read));
    }
}

/// Gives `listeners` to each process that asks.
pub(super) fn listen(listeners: Listeners) -> io::Result<()> {
    serve_channels(SOCKET, move |channel| {
        let listeners = listeners.clone();
        async move {
            // However the other process ends, this one goes on.
            let _ = give(channel, listeners).await;
        }
    })
}

/// Gives `listeners` to the process at the other end, and leaves connections to it where it
/// answers, until it ends.
async fn give(channel: Channel, listeners: Listeners) -> io::Result<()> {
    let mut sent: BTreeMap<SocketAddr, Weak<TcpListener>> = BTreeMap::new();
    let mut changes = listeners.changes();
    let mut successor = listeners.successor();
    let mut buffer = [0; LONGEST];
    let (mut is_first, mut has_left) = (true, false);
    loop {
        changes.mark_unchanged();
        for (address, socket) in listeners.open() {
            let socket_now = Arc::downgrade(&socket);
            let before = sent.insert(address, Weak::clone(&socket_now));
            if !before.is_some_and(|before| before.ptr_eq(&socket_now)) {
                channel.send(&[ONE], Some(socket.as_fd())).await?;
            }
        }
        if std::mem::take(&mut is_first) {
            channel.send(&[ALL], None).await?;
        }
        tokio::select! {
            received = channel.receive(&mut buffer) => {
                let Some(received) = received? else {
                    break;
                };
                let address = address(&buffer[..received.len]);
                if successor.answers_at(address.ok_or(io::ErrorKind::InvalidData)?) {
                    has_left = true;
                    tracing::info!("another process answers on the ports of this one");
                }
            }
            _ = changes.changed() => {}
        }
    }
    if has_left {
        tracing::info!("answering on the ports again: the other process has ended");
    }
    Ok(())
}

#[cfg(test)]
mod tests;
