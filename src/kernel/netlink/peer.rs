//! The other end of a netlink socket: the kernel. Tests may put something in its place
//! that answers as the kernel would.

use std::{
    io,
    os::fd::{AsRawFd, RawFd},
};

use neli::{
    consts::socket::{Msg, NlFamily},
    socket::NlSocket,
    utils::Groups,
};

/// Netlink protocols that Tripod speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Routing netlink: links, addresses, routes, rules.
    Route,
    /// Subsystems of netfilter: ipset, conntrack, nf_tables, nfacct.
    Netfilter,
    /// Generic netlink: families with a name, IPVS among them.
    Generic,
    /// `sock_diag(7)`: the sockets of all programs.
    SocketDiagnosis,
}

/// What a socket sends its requests to.
pub(super) enum Peer {
    Kernel(NlSocket),
    #[cfg(test)]
    Simulated(Box<dyn simulated::Peer>),
}

impl Peer {
    /// Connects to the kernel, to receive the notifications of `groups` as well.
    pub(super) fn connect(protocol: Protocol, groups: &[u32]) -> io::Result<Peer> {
        #[cfg(test)]
        if let Some(opened) = simulated::open(protocol, groups) {
            return opened.map(Peer::Simulated);
        }
        let family = match protocol {
            Protocol::Route => NlFamily::Route,
            Protocol::Netfilter => NlFamily::Netfilter,
            Protocol::Generic => NlFamily::Generic,
            Protocol::SocketDiagnosis => NlFamily::SockOrInetDiag,
        };
        let socket = NlSocket::connect(family, None, Groups::new_groups(groups))?;
        // Texts in refusals came with Linux 4.12, filtered dumps with 4.20; an
        // older kernel does without, and callers filter what they list anyway.
        let _ = socket.enable_ext_ack(true);
        if protocol == Protocol::Route {
            let _ = socket.enable_strict_checking(true);
        }
        Ok(Peer::Kernel(socket))
    }

    /// Sends a datagram.
    pub(super) fn send(&self, datagram: &[u8]) -> io::Result<()> {
        match self {
            Peer::Kernel(socket) => socket.send(datagram, Msg::empty()).map(drop),
            #[cfg(test)]
            Peer::Simulated(peer) => peer.send(datagram),
        }
    }

    /// Receives a datagram and returns its length, which is more than fits `buffer` if it
    /// was cut (`MSG_TRUNC`). With [`Waits::Never`], it is an error of kind `WouldBlock`
    /// if there is none.
    pub(super) fn receive(&self, buffer: &mut [u8], waits: Waits) -> io::Result<usize> {
        match self {
            Peer::Kernel(socket) => {
                let flags = match waits {
                    Waits::AsTheSocket => Msg::TRUNC,
                    Waits::Never => Msg::TRUNC | Msg::DONTWAIT,
                };
                socket.recv(buffer, flags).map(|(length, _)| length)
            }
            #[cfg(test)]
            Peer::Simulated(peer) => peer.receive(buffer),
        }
    }

    pub(super) fn join(&self, groups: &[u32]) -> io::Result<()> {
        match self {
            Peer::Kernel(socket) => socket.add_mcast_membership(Groups::new_groups(groups)),
            #[cfg(test)]
            Peer::Simulated(peer) => peer.join(groups),
        }
    }

    pub(super) fn leave(&self, groups: &[u32]) -> io::Result<()> {
        match self {
            Peer::Kernel(socket) => socket.drop_mcast_membership(Groups::new_groups(groups)),
            #[cfg(test)]
            Peer::Simulated(peer) => peer.leave(groups),
        }
    }

    pub(super) fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Peer::Kernel(socket) => socket.nonblock(),
            #[cfg(test)]
            Peer::Simulated(_) => Ok(()),
        }
    }

    pub(super) fn port(&self) -> io::Result<u32> {
        match self {
            Peer::Kernel(socket) => socket.pid(),
            #[cfg(test)]
            Peer::Simulated(peer) => Ok(peer.port()),
        }
    }
}

impl AsRawFd for Peer {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Peer::Kernel(socket) => socket.as_raw_fd(),
            #[cfg(test)]
            Peer::Simulated(peer) => peer.as_raw_fd(),
        }
    }
}

/// How long to wait for a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waits {
    /// Until one comes, unless the socket was made non-blocking.
    AsTheSocket,
    /// An error is returned at once if there is none.
    Never,
}

/// What stands in for the kernel in tests of one thread.
#[cfg(test)]
pub(in crate::kernel) mod simulated {
    use std::{cell::RefCell, io, os::fd::AsRawFd};

    use super::Protocol;

    /// The other end of one socket.
    pub(in crate::kernel) trait Peer: AsRawFd + Send + Sync {
        /// Takes a datagram.
        fn send(&self, datagram: &[u8]) -> io::Result<()>;
        /// Gives the next datagram; there has to be one, or the socket only listens.
        fn receive(&self, buffer: &mut [u8]) -> io::Result<usize>;
        fn join(&self, groups: &[u32]) -> io::Result<()>;
        fn leave(&self, groups: &[u32]) -> io::Result<()>;
        fn port(&self) -> u32;
    }

    /// Opens a socket that receives the notifications of some groups.
    pub(in crate::kernel) type Open = Box<dyn Fn(Protocol, &[u32]) -> io::Result<Box<dyn Peer>>>;

    thread_local! {
        static OPEN: RefCell<Option<Open>> = const { RefCell::new(None) };
    }

    /// Has sockets that this thread opens from now on be opened by `open`; `None`: by the
    /// kernel.
    pub(in crate::kernel) fn replace(open: Option<Open>) {
        OPEN.with(|current| *current.borrow_mut() = open);
    }

    /// Returns whether sockets of this thread are not the kernel's.
    pub(in crate::kernel) fn is_replaced() -> bool {
        OPEN.with(|current| current.borrow().is_some())
    }

    pub(super) fn open(protocol: Protocol, groups: &[u32]) -> Option<io::Result<Box<dyn Peer>>> {
        OPEN.with(|open| open.borrow().as_ref().map(|open| open(protocol, groups)))
    }
}
