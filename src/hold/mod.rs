//! Sockets that outlive the process that serves them: `tripod hold`, and what the proxy
//! says to it.
//!
//! The *holder* is a small process that keeps descriptors of the proxy's listening
//! sockets. While no proxy runs, the kernel completes connections there and keeps them
//! in the backlog, and datagrams in the buffer; the next proxy gets the sockets and
//! serves what waits. The holder itself never accepts or reads.

mod holder;
mod holding;
mod message;
#[cfg(test)]
mod tests;

use std::os::fd::AsFd;

pub use self::{
    holder::hold,
    holding::{Given, Held, Holding},
    message::Claim,
};
use crate::kernel::socket::listening;

/// Where the holder listens unless a flag says otherwise.
pub const SOCKET: &str = "/run/tripod-holder/holder.sock";

impl Claim {
    /// Returns whether `socket` is what this says.
    fn holds_of(&self, socket: &impl AsFd) -> bool {
        listening::identity(socket)
            .is_some_and(|found| found.protocol == self.protocol && found.address == self.address)
    }
}
