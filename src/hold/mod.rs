//! Sockets that outlive the process that serves them: `tripod hold`, and what the proxy
//! says to it.
//!
//! The *holder* is a small process that keeps descriptors of the proxy's listening
//! sockets. While no proxy runs, the kernel completes connections there and keeps them
//! in the backlog, and datagrams in the buffer; the next proxy gets the sockets and
//! serves what waits. The holder itself never accepts or reads. A proxy that ends also
//! leaves the sockets of its UDP flows there.

pub mod bytes;
mod flows;
mod holder;
mod holding;
mod inherited;
pub(crate) mod message;
mod others;
mod pool;
#[cfg(test)]
pub(crate) mod recorded;
pub(crate) mod sending;
mod table;
#[cfg(test)]
mod tests;

use std::{io, os::fd::AsFd};

use nix::sys::stat::fstat;

#[cfg(fuzzing)]
pub use self::message::read_anything;
use self::message::{Message, VERSION};
pub use self::{
    holder::{MOST_NOTES, hold},
    holding::Holding,
    inherited::{Held, InheritedSocket, Listening, Release, Taken},
    message::SocketDescription,
    table::Others,
};
use crate::kernel::socket::{listening, records::Channel};

/// Where the holder listens unless a flag says otherwise.
pub const SOCKET: &str = "/run/tripod-holder/holder.sock";

impl SocketDescription {
    /// Returns whether `socket` is what this says.
    fn matches(&self, socket: &impl AsFd) -> bool {
        listening::identity(socket) == Some(self.bound)
    }
}

/// Returns what identifies a socket, however many descriptors it has.
///
/// # Errors
/// Those of the kernel.
fn inode(socket: &impl AsFd) -> io::Result<u64> {
    Ok(fstat(socket.as_fd())?.st_ino)
}

/// Exchanges versions, which each side sends first. Returns that of the other side.
///
/// # Errors
/// Those of the channel, and `InvalidData` where the other side says something else.
pub(crate) async fn greet(channel: &Channel, buffer: &mut [u8]) -> io::Result<u16> {
    let hello = Message::Hello(VERSION).encode();
    channel.send(&hello, None).await?;
    let received = channel.receive(buffer).await?;
    let len = received.map_or(0, |received| received.len);
    match buffer.get(..len).and_then(Message::parse) {
        Some(Message::Hello(version)) => Ok(version),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}
