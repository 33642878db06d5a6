//! A netlink socket: sends requests, and collects their answers.

use std::{
    fmt, io,
    os::fd::{AsRawFd, RawFd},
};

use nix::{errno::Errno, libc};

use super::{
    error::{Error, Malformed, Reason},
    parse::{Message, Messages},
    request::Request,
    system::{self, Peer, Protocol, Waits},
};

/// The kernel fills at most 32 KiB of a dump into one datagram; a refusal
/// echoes the request, which is at most [`DATAGRAM`] long.
const RECEIVE: usize = 64 * 1024;
/// Requests are packed into one datagram up to this size …
const DATAGRAM: usize = 16 * 1024;
/// … and this number. Each refusal waits in the socket's receive buffer and is
/// accounted there with about 1 KiB: 64 are far from the usual 208 KiB, beyond
/// which the kernel drops answers.
const BATCH: usize = 64;
/// What is wrong with a datagram that does not fit [`RECEIVE`].
pub(super) const TOO_LARGE: Malformed = Malformed("datagram larger than 64 KiB");
/// Number of times that a dump is started when the listed objects change meanwhile.
const ATTEMPTS: u32 = 10;

/// Result of reading notifications.
#[derive(Clone, Copy, Debug)]
pub struct Drained {
    /// Whether some were lost because they came faster than they were read.
    pub lost: bool,
    /// Whether there may be more.
    pub more: bool,
}

/// A blocking netlink socket.
pub struct Socket {
    pub(super) inner: Box<dyn Peer>,
    pub(super) sequence: u32,
    pub(super) buffer: Box<[u8]>,
    private: PrivateErrors,
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Socket").finish_non_exhaustive()
    }
}

/// Meaning of an error number that is not the system's; `None`: unknown.
pub type PrivateErrors = fn(i32) -> Option<&'static str>;

impl Socket {
    /// Opens a socket of that protocol.
    ///
    /// # Errors
    /// When the kernel has no such protocol or no descriptor is free.
    pub fn open(protocol: Protocol) -> Result<Socket, Error> {
        Socket::listen(protocol, &[])
    }

    /// Opens a socket that receives the notifications of `groups` (numbers as
    /// in `RTNLGRP_*`).
    ///
    /// # Errors
    /// The same as for [`Socket::open`]; also for an unknown group.
    pub fn listen(protocol: Protocol, groups: &[u32]) -> Result<Socket, Error> {
        let inner = system::current()
            .connect(protocol, groups)
            .map_err(|error| {
                let object = format!("a netlink socket of protocol {protocol:?}");
                Error::new("open", object, error)
            })?;
        Ok(Socket {
            inner,
            sequence: 0,
            buffer: vec![0; RECEIVE].into_boxed_slice(),
            private: |_| None,
        })
    }

    /// Sets the meanings of a subsystem's private error numbers: they become the hint of
    /// [`Reason::Refused`].
    pub fn explain(&mut self, private: PrivateErrors) {
        self.private = private;
    }

    /// Receives notifications of these groups from now on.
    pub fn join(&self, groups: &[u32]) -> io::Result<()> {
        self.inner.join(groups)
    }

    /// Receives no more notifications of these groups; those in the queue stay.
    pub fn leave(&self, groups: &[u32]) -> io::Result<()> {
        self.inner.leave(groups)
    }

    /// Sends `request` and waits for the kernel's acknowledgement; `parse` sees
    /// each message that answers it, and `None` from it means "not for me".
    ///
    /// # Errors
    /// When the kernel refuses, or its answer cannot be read.
    pub fn call<T>(
        &mut self,
        request: &Request,
        parse: impl FnMut(Message<'_>) -> Result<Option<T>, Malformed>,
    ) -> Result<Vec<T>, Error> {
        let sequence = self.send(std::slice::from_ref(request), libc::NLM_F_ACK as u16)?;
        let gathered = self.gather(sequence, parse);
        let (answers, _) = gathered.map_err(|reason| request.failed(reason))?;
        Ok(answers)
    }

    /// Sends `request` and waits for the kernel's acknowledgement.
    ///
    /// # Errors
    /// When the kernel refuses, or its answer cannot be read.
    pub fn acknowledge(&mut self, request: &Request) -> Result<(), Error> {
        self.call(request, |_| Ok(None::<()>)).map(drop)
    }

    /// Sends `request` as a dump and follows it to its end over as many datagrams as it takes,
    /// again from the start if it was interrupted by a change.
    ///
    /// # Errors
    /// When the kernel refuses, its answer cannot be read, or the listed objects keep changing.
    pub fn dump<T>(
        &mut self,
        request: &Request,
        mut parse: impl FnMut(Message<'_>) -> Result<Option<T>, Malformed>,
    ) -> Result<Vec<T>, Error> {
        for _ in 0..ATTEMPTS {
            let sequence = self.send(std::slice::from_ref(request), libc::NLM_F_DUMP as u16)?;
            match self.gather(sequence, &mut parse) {
                Ok((answers, false)) => return Ok(answers),
                // Some subsystems end an interrupted dump with an error.
                Err(reason) if reason.errno() != Some(Errno::EINTR) => {
                    return Err(request.failed(reason));
                }
                _ => {}
            }
        }
        Err(request.failed(Reason::Unstable(ATTEMPTS)))
    }

    /// Sends all `requests`, many to a datagram, and returns the outcome of each, in order. The
    /// kernel carries them out in order and does not stop at a refused one; `tolerated` are errnos
    /// that count as success ("exists" for an addition, "no such" for a removal).
    ///
    /// Only the last request of a datagram asks for an acknowledgement. The kernel answers a
    /// refusal without being asked, and before it handles the next request: every request that was
    /// not refused by the time the last one is answered has been carried out. That is one answer to
    /// read from the socket instead of 64.
    ///
    /// # Errors
    /// When the socket fails; refusals of the kernel are in the outcomes.
    pub fn batch(
        &mut self,
        requests: &[Request],
        tolerated: &[Errno],
    ) -> Result<Vec<Result<(), Error>>, Error> {
        let mut outcomes = Vec::with_capacity(requests.len());
        let mut rest = requests;
        while !rest.is_empty() {
            let mut size = 0;
            let fitting = rest
                .iter()
                .take(BATCH)
                .take_while(|r| {
                    size += r.len();
                    size <= DATAGRAM
                })
                .count();
            let (chunk, after) = rest.split_at(fitting.max(1));
            rest = after;
            let first = self.send(chunk, libc::NLM_F_ACK as u16)?;
            let private = self.private;
            let mut verdicts: Vec<Result<(), Error>> = chunk.iter().map(|_| Ok(())).collect();
            let mut answered = false;
            while !answered {
                let received = self.receive(|message| {
                    let at = message.sequence.wrapping_sub(first) as usize;
                    if message.kind == libc::NLMSG_ERROR as u16
                        && let (Some(request), Some(verdict)) =
                            (chunk.get(at), verdicts.get_mut(at))
                    {
                        answered |= at + 1 == chunk.len();
                        *verdict = match settle(&message, private) {
                            Err(Reason::Refused { errno, .. }) if tolerated.contains(&errno) => {
                                Ok(())
                            }
                            settled => settled.map_err(|reason| request.failed(reason)),
                        };
                    }
                    Ok(())
                });
                received.map_err(|reason| chunk[0].failed(reason))?;
            }
            outcomes.extend(verdicts);
        }
        Ok(outcomes)
    }

    /// [`Socket::batch`], but the first refusal is the error; the requests
    /// after it have been carried out nevertheless.
    ///
    /// # Errors
    /// When the socket fails or the kernel refused one of the requests.
    pub fn batch_all(&mut self, requests: &[Request], tolerated: &[Errno]) -> Result<(), Error> {
        self.batch(requests, tolerated)?.into_iter().collect()
    }

    /// Sends `requests` in one datagram, the last with `flags`; returns the
    /// sequence number of the first, the others follow it.
    fn send(&mut self, requests: &[Request], flags: u16) -> Result<u32, Error> {
        let mut datagram = Vec::with_capacity(requests.iter().map(Request::len).sum());
        let first = self.sequence.wrapping_add(1);
        for (at, request) in requests.iter().enumerate() {
            self.sequence = self.sequence.wrapping_add(1);
            let flags = if at + 1 == requests.len() { flags } else { 0 };
            request.write(&mut datagram, flags, self.sequence);
        }
        match (
            uninterrupted(|| self.inner.send(&datagram)),
            requests.first(),
        ) {
            (Err(error), Some(request)) => Err(request.failed(error)),
            (Err(error), None) => Err(Error::new("send", "an empty datagram", error)),
            (Ok(()), _) => Ok(first),
        }
    }

    /// Collects the answers to `sequence` up to its acknowledgement or the end
    /// of its dump. Returns also whether the dump was interrupted by a change. An answer that
    /// cannot be read is the error at the end: the kernel refuses the next dump while this one is
    /// not read to its end (EBUSY).
    fn gather<T>(
        &mut self,
        sequence: u32,
        mut parse: impl FnMut(Message<'_>) -> Result<Option<T>, Malformed>,
    ) -> Result<(Vec<T>, bool), Reason> {
        let (mut answers, mut interrupted, mut ended) = (Vec::new(), false, false);
        let mut unreadable = None;
        let private = self.private;
        while !ended {
            self.receive(|message| {
                if message.sequence != sequence || ended {
                    return Ok(());
                }
                interrupted |= message.flags & libc::NLM_F_DUMP_INTR as u16 != 0;
                match i32::from(message.kind) {
                    libc::NLMSG_NOOP => {}
                    libc::NLMSG_ERROR | libc::NLMSG_DONE => {
                        ended = true;
                        settle(&message, private)?;
                    }
                    _ if unreadable.is_some() => {}
                    _ => match parse(message) {
                        Ok(answer) => answers.extend(answer),
                        Err(what) => unreadable = Some(what),
                    },
                }
                Ok(())
            })?;
        }
        match unreadable {
            None => Ok((answers, interrupted)),
            Some(what) => Err(what.into()),
        }
    }

    /// Waits for one datagram and hands its messages to `each`.
    fn receive(
        &mut self,
        mut each: impl FnMut(Message<'_>) -> Result<(), Reason>,
    ) -> Result<(), Reason> {
        let datagram = self.datagram(Waits::ForOne)?;
        for message in Messages::new(datagram.ok_or(TOO_LARGE)?) {
            each(message?)?;
        }
        Ok(())
    }

    /// Receives a datagram; `None`: it is larger than the buffer.
    pub(super) fn datagram(&mut self, waits: Waits) -> io::Result<Option<&[u8]>> {
        let length = uninterrupted(|| self.inner.receive(&mut self.buffer, waits))?;
        Ok(self.buffer.get(..length))
    }

    /// Reads the notifications that wait and calls `each` with each, without
    /// waiting for more. Returns true if some were lost because they came faster
    /// than they were read.
    pub fn drain(&mut self, each: impl FnMut(Message<'_>)) -> io::Result<bool> {
        self.drain_some(usize::MAX, each)
            .map(|drained| drained.lost)
    }

    /// As [`drain`](Self::drain), but reads at most that number of datagrams.
    pub fn drain_some(
        &mut self,
        most: usize,
        mut each: impl FnMut(Message<'_>),
    ) -> io::Result<Drained> {
        let mut lost = false;
        for _ in 0..most {
            match self.datagram(Waits::Never) {
                Ok(Some(datagram)) => Messages::new(datagram).flatten().for_each(&mut each),
                Ok(None) => lost = true,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Drained { lost, more: false });
                }
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => lost = true,
                Err(e) => return Err(e),
            }
        }
        Ok(Drained { lost, more: true })
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.inner.as_raw_fd()
    }
}

/// Repeats a system call until no signal interrupts it.
pub(super) fn uninterrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            outcome => return outcome,
        }
    }
}

/// Reads an `NLMSG_ERROR` or `NLMSG_DONE` as the outcome of a request.
fn settle(message: &Message<'_>, private: PrivateErrors) -> Result<(), Reason> {
    if i32::from(message.kind) == libc::NLMSG_DONE && message.body.len() < 4 {
        return Ok(());
    }
    let verdict = message.verdict()?;
    match verdict.errno {
        None => Ok(()),
        Some(errno) => Err(Reason::Refused {
            errno,
            hint: verdict
                .hint
                .or_else(|| private(verdict.number).map(str::to_owned)),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTM_GETLINK: u16 = 18;
    const RTM_DELROUTE: u16 = 25;

    fn delete_nothing(at: u8) -> Request {
        // `struct rtmsg` for 127.99.0.`at`/32 in table main, which has no such route.
        Request::new(RTM_DELROUTE, 0, "delete", format!("route 127.99.0.{at}/32"))
            .header(&[2, 32, 0, 0, 254, 0, 255, 1, 0, 0, 0, 0])
            .attribute(1, &[127, 99, 0, at])
    }

    #[test]
    fn a_dump_and_a_call_find_the_loopback_link() {
        let mut socket = Socket::open(Protocol::Route).unwrap();
        let dump = Request::new(RTM_GETLINK, 0, "list", "links").header(&[0; 16]);
        let kinds = socket.dump(&dump, |m| Ok(Some(m.kind))).unwrap();
        assert!(!kinds.is_empty() && kinds.iter().all(|kind| *kind == 16));
        let mut header = [0; 16];
        header[4] = 1;
        let one = Request::new(RTM_GETLINK, 0, "get", "link 1").header(&header);
        assert_eq!(socket.call(&one, |m| Ok(Some(m.kind))).unwrap(), [16]);
    }

    #[test]
    fn every_refusal_of_a_batch_names_its_object() {
        let mut socket = Socket::open(Protocol::Route).unwrap();
        let requests: Vec<_> = (0..200).map(delete_nothing).collect();
        let outcomes = socket.batch(&requests, &[]).unwrap();
        assert_eq!(outcomes.len(), 200);
        for (at, outcome) in outcomes.iter().enumerate() {
            let text = outcome.as_ref().unwrap_err().to_string();
            let start = format!("cannot delete route 127.99.0.{at}/32: ");
            assert!(text.starts_with(&start), "{text}");
        }
        // Unprivileged runs are refused with EPERM before the look-up.
        let tolerated = [Errno::ESRCH, Errno::EPERM];
        assert!(socket.batch_all(&requests, &tolerated).is_ok());
    }
}
