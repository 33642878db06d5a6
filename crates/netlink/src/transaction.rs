//! Sending many requests in one datagram which the kernel carries out whole or
//! not at all, as nf_tables does (`net/netfilter/nfnetlink.c`).

use std::{io, os::fd::BorrowedFd};

use nix::{
    errno::Errno,
    libc, setsockopt_impl, sockopt_impl,
    sys::socket::{setsockopt, sockopt},
};

use super::{
    error::{Malformed, Reason},
    parse::Messages,
    request::Request,
    socket::{Socket, TOO_LARGE, uninterrupted},
    system::Waits,
};

/// A datagram of this size fits the usual send buffer (208 KiB), which the
/// kernel accounts with its own overhead.
const USUAL: usize = 128 * 1024;
/// Room for answers: each refusal takes about 1 KiB of it.
const ANSWERS: usize = 4 * 1024 * 1024;
/// `NETLINK_CAP_ACK` of `linux/netlink.h`.
const NETLINK_CAP_ACK: libc::c_int = 10;

sockopt_impl!(
    /// A refusal echoes the header of the request only, not all of it.
    CapAck,
    SetOnly,
    libc::SOL_NETLINK,
    NETLINK_CAP_ACK,
    bool
);

/// A request that the kernel refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Which of the requests, from 0 on.
    pub index: usize,
    /// The error with which the kernel refused the request.
    pub errno: Errno,
    /// The kernel's text about the error; `None`: it gave none.
    pub hint: Option<String>,
}

impl Socket {
    /// Prepares the socket for transactions: answers are short, and there is room for many. A size
    /// that the kernel does not grant stays as it is.
    pub fn expect_many_answers(&self) {
        let _ = setsockopt(&self.descriptor(), CapAck, &true);
        let _ = setsockopt(&self.descriptor(), sockopt::RcvBufForce, &ANSWERS);
    }

    /// Sends `requests` in one datagram, however large, and returns which of
    /// them the kernel refused: if any, nothing was carried out. The first and the
    /// last are the frame (begin and end); the last but one is acknowledged.
    ///
    /// The kernel has handled the datagram when `send` returns, so that all
    /// answers wait in the socket by then.
    ///
    /// # Errors
    /// When the socket failed, or the answer cannot be read: it is unknown what was carried out.
    pub fn transact(
        &mut self,
        requests: impl IntoIterator<Item = Request>,
    ) -> Result<Vec<Refusal>, Reason> {
        let first = self.sequence.wrapping_add(1);
        let (mut datagram, mut starts, mut count) = (Vec::new(), [0, 0], 0);
        for request in requests {
            self.sequence = self.sequence.wrapping_add(1);
            starts = [starts[1], datagram.len()];
            request.write(&mut datagram, 0, self.sequence);
            count += 1;
        }
        // `nlmsg_flags`, after a length of four bytes and a type of two.
        let flags = starts[0] + 6;
        if let Some(flags) = datagram.get_mut(flags..flags + 2) {
            let set = u16::from_ne_bytes([flags[0], flags[1]]) | libc::NLM_F_ACK as u16;
            flags.copy_from_slice(&set.to_ne_bytes());
        }
        self.send_whole(&datagram)?;
        drop(datagram);
        self.outcome(first, count)
    }

    fn send_whole(&self, datagram: &[u8]) -> io::Result<()> {
        if datagram.len() > USUAL {
            // The kernel doubles the number for its overhead. Where it refuses
            // (it takes CAP_NET_ADMIN, as the transaction does), `send` says
            // that the message is too long.
            let _ = setsockopt(&self.descriptor(), sockopt::SndBufForce, &datagram.len());
        }
        uninterrupted(|| self.inner.send(datagram))
    }

    fn outcome(&mut self, first: u32, count: usize) -> Result<Vec<Refusal>, Reason> {
        let (mut refused, mut acknowledged, mut lost) = (Vec::new(), false, None);
        loop {
            let datagram = match self.datagram(Waits::Never) {
                Ok(datagram) => datagram.ok_or(TOO_LARGE)?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // Answers were dropped for lack of room; others still wait.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    lost = Some(error);
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            for message in Messages::new(datagram) {
                let message = message?;
                let index = message.sequence.wrapping_sub(first) as usize;
                if i32::from(message.kind) != libc::NLMSG_ERROR || index >= count {
                    continue;
                }
                let verdict = message.verdict()?;
                match verdict.errno {
                    None => acknowledged |= index + 2 == count,
                    Some(errno) => refused.push(Refusal {
                        index,
                        errno,
                        hint: verdict.hint,
                    }),
                }
            }
        }
        if !refused.is_empty() {
            return Ok(refused);
        }
        match lost {
            Some(error) => Err(error.into()),
            None if acknowledged => Ok(refused),
            None => Err(Malformed("no acknowledgement").into()),
        }
    }

    /// Returns the number by which the kernel identifies this socket
    /// (`nl_pid`); notifications carry the number of the socket whose change
    /// they are about.
    ///
    /// # Errors
    /// When the system call fails.
    pub fn port(&self) -> io::Result<u32> {
        self.inner.port()
    }

    /// Returns the descriptor, to be polled.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as `inner` is, which outlives
        // the borrow of `self`.
        unsafe { BorrowedFd::borrow_raw(self.inner.as_raw_fd()) }
    }
}
