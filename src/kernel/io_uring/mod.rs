//! io_uring (`io_uring(7)`): one system call receives and sends for many connections.
//!
//! A ring is for one thread. Before it is used it is restricted for good to its purpose, receiving,
//! sending and cancelling, so that a process with a filter of system calls cannot bypass the filter
//! through it.

mod buffers;

use std::{
    fmt, io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::atomic::{Ordering::SeqCst, fence},
};

use io_uring::{
    IoUring, cqueue, opcode,
    register::Restriction,
    squeue::{Entry, Flags},
    types::Fd,
};
use nix::{
    errno::Errno,
    sys::{
        eventfd::{EfdFlags, EventFd},
        socket::MsgFlags,
    },
};
use tokio::io::{Interest, unix::AsyncFd};

use self::buffers::Buffers;
pub use self::buffers::{Buffer, SIZE};

/// Requests that can wait for the next system call.
const REQUESTS: u32 = 256;

/// Completions that can wait; the kernel keeps what does not fit. It also finds requests to be
/// cancelled by a table whose size follows from this (`io_ring_ctx_alloc` in io_uring/io_uring.c).
const COMPLETIONS: u32 = 4096;

/// The only group of buffers.
const GROUP: u16 = 0;

/// A ring with its buffers.
pub struct Ring {
    // Dropped before the buffers, which the kernel writes to for this ring alone.
    ring: IoUring,
    buffers: Buffers,
    event: EventFd,
}

/// The result of a request.
#[derive(Debug)]
pub struct Completion {
    /// The token given with the request.
    pub token: u64,
    /// Number of bytes that were received or sent.
    pub result: Result<usize, Errno>,
    /// The buffer with the received bytes.
    pub buffer: Option<Buffer>,
    /// Whether this is the last completion of the request.
    pub last: bool,
}

impl Ring {
    /// Makes a ring that is restricted, and not yet in use: see [`Ring::enable`].
    ///
    /// # Errors
    /// Those of io_uring_setup(2), io_uring_register(2), eventfd(2) and mmap(2).
    pub fn new() -> io::Result<Ring> {
        let ring = IoUring::builder()
            .setup_cqsize(COMPLETIONS)
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_r_disabled()
            .build(REQUESTS)?;
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let buffers = Buffers::new()?;
        let submitter = ring.submitter();
        submitter.register_eventfd(event.as_raw_fd())?;
        buffers.register(&submitter, GROUP)?;
        submitter.register_restrictions(&mut [
            Restriction::sqe_op(opcode::RecvMulti::CODE),
            Restriction::sqe_op(opcode::Send::CODE),
            Restriction::sqe_op(opcode::AsyncCancel::CODE),
            Restriction::sqe_flags_allowed(Flags::BUFFER_SELECT.bits()),
        ])?;
        Ok(Ring {
            ring,
            buffers,
            event,
        })
    }

    /// Lets this thread, and no other, use the ring from now on.
    ///
    /// # Errors
    /// Those of io_uring_register(2) and of io_uring_enter(2), which may be forbidden by itself.
    pub fn enable(&mut self) -> io::Result<()> {
        self.buffers.provide_all();
        self.ring.submitter().register_enable_rings()?;
        // There is no request with this token.
        self.cancel(u64::MAX, u64::MAX)?;
        self.submit()?;
        self.completed();
        Ok(())
    }

    /// Returns a descriptor that becomes readable when there are completions, except between
    /// [`Ring::awake`] and [`Ring::rest`]. It is watched for edges: it need not be read. It belongs
    /// to the runtime of this thread.
    ///
    /// # Errors
    /// Those of fcntl(2) and epoll_ctl(2).
    pub fn event(&self) -> io::Result<AsyncFd<OwnedFd>> {
        let event = self.event.as_fd().try_clone_to_owned()?;
        // SAFETY: the `AsyncFd` owns the descriptor, always answers with the same one, and
        // nothing else can close it.
        let watched = unsafe { AsyncFd::register_with_interest(event, Interest::READABLE) };
        watched.map_err(|error| error.into_parts().1)
    }

    /// Receives from a connection repeatedly, until it fails, ends, or is cancelled. The descriptor
    /// must stay open until the request has been submitted.
    ///
    /// # Errors
    /// Those of io_uring_enter(2).
    pub fn receive(&mut self, from: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        let entry = opcode::RecvMulti::new(Fd(from.as_raw_fd()), GROUP).build();
        // SAFETY: it names no memory except the registered buffers.
        unsafe { self.push(&entry.user_data(token)) }
    }

    /// Sends the first bytes of `buffer`, as many as the peer's window takes at once. The
    /// descriptor must stay open until the request has been submitted.
    ///
    /// # Errors
    /// Those of io_uring_enter(2).
    pub fn send(
        &mut self,
        to: BorrowedFd<'_>,
        buffer: &Buffer,
        length: usize,
        token: u64,
    ) -> io::Result<()> {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        let bytes = self.bytes(buffer, length);
        let entry = opcode::Send::new(
            Fd(to.as_raw_fd()),
            bytes.as_ptr(),
            // No buffer is as large as that.
            u32::try_from(length).unwrap_or(u32::MAX),
        )
        .flags(flags.bits());
        // SAFETY: the memory is there as long as the ring, and is not written to before
        // the buffer is given back.
        unsafe { self.push(&entry.build().user_data(token)) }
    }

    /// Cancels the request with the token `request`, which then also completes.
    ///
    /// # Errors
    /// Those of io_uring_enter(2).
    pub fn cancel(&mut self, request: u64, token: u64) -> io::Result<()> {
        let entry = opcode::AsyncCancel::new(request).build().user_data(token);
        // SAFETY: it names no memory.
        unsafe { self.push(&entry) }
    }

    /// # Safety
    /// The memory and descriptors that `entry` names must live until it has completed.
    unsafe fn push(&mut self, entry: &Entry) -> io::Result<()> {
        if self.ring.submission().is_full() {
            self.submit()?;
        }
        // SAFETY: the caller's.
        let pushed = unsafe { self.ring.submission().push(entry) };
        pushed.map_err(|_| Errno::EAGAIN.into())
    }

    /// Submits all requests, and has the kernel do the work that it has deferred for this thread.
    ///
    /// # Errors
    /// Those of io_uring_enter(2).
    pub fn submit(&mut self) -> io::Result<()> {
        self.ring.submitter().submit().map(drop)
    }

    /// Returns the next completion.
    pub fn completed(&mut self) -> Option<Completion> {
        let entry = self.ring.completion().next()?;
        let buffer = cqueue::buffer_select(entry.flags());
        let buffer = buffer.map(|number| self.buffers.taken(number));
        Some(Completion {
            token: entry.user_data(),
            result: usize::try_from(entry.result()).map_err(|_| Errno::from_raw(-entry.result())),
            buffer,
            last: !cqueue::more(entry.flags()),
        })
    }

    /// Returns whether there are requests to submit, or completions to take.
    pub fn has_work(&mut self) -> bool {
        let queue = self.ring.submission();
        let work = !queue.is_empty() || queue.cq_overflow();
        drop(queue);
        work || !self.ring.completion().is_empty()
    }

    /// Returns whether the kernel has deferred work for this thread (IORING_SQ_TASKRUN). It may say
    /// so even when all of it was done (`__io_run_local_work` in io_uring/io_uring.c).
    pub fn may_have_put_off(&mut self) -> bool {
        self.ring.submission().taskrun()
    }

    /// Number of buffers that are free to receive into.
    pub fn free_buffers(&self) -> usize {
        self.buffers.provided()
    }

    /// Makes the descriptor of [`Ring::event`] readable.
    pub fn wake(&self) {
        // Fails only after 2^64 writes.
        let _ = self.event.write(1);
    }

    /// Suppresses events until [`Ring::rest`]: this thread checks by itself.
    pub fn awake(&mut self) {
        self.ring.completion().disable_eventfd();
    }

    /// Makes the ring report completions from now on. Returns whether there are some already.
    ///
    /// # Errors
    /// Those of io_uring_enter(2).
    pub fn rest(&mut self) -> io::Result<bool> {
        self.ring.completion().enable_eventfd();
        // The kernel first marks the work as pending, and then checks whether to report it
        // (`io_req_local_work_add` in io_uring/io_uring.c).
        fence(SeqCst);
        self.submit()?;
        Ok(self.has_work())
    }

    /// Returns the first bytes of a buffer.
    pub fn bytes(&self, buffer: &Buffer, length: usize) -> &[u8] {
        &self.buffers.bytes(buffer)[..length]
    }

    /// Gives a buffer back, for the kernel to receive into it again.
    pub fn give_back(&mut self, buffer: Buffer) {
        self.buffers.provide(buffer);
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").finish_non_exhaustive()
    }
}

/// Unwraps a result of io_uring; where there is no io_uring, prints that the test is skipped and
/// returns `None`.
#[cfg(test)]
pub(crate) fn or_skip<T>(made: io::Result<T>) -> Option<T> {
    let skipped = |error| {
        testing::skip(format!("io_uring cannot be used here: {error}"));
    };
    made.map_err(skipped).ok()
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::{TcpListener, TcpStream},
    };

    use super::*;

    /// Returns a connection over loopback.
    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    /// Returns a ring for this thread; `None` where there can be none.
    fn ring() -> Option<Ring> {
        let mut ring = or_skip(Ring::new())?;
        ring.enable().unwrap();
        Some(ring)
    }

    fn wait(ring: &mut Ring) -> Completion {
        loop {
            ring.submit().unwrap();
            match ring.completed() {
                Some(completion) => return completion,
                None => std::thread::yield_now(),
            }
        }
    }

    #[test]
    fn what_comes_is_received_sent_and_cancelled() {
        let Some(mut ring) = ring() else { return };
        let (near, mut far) = pair();
        ring.receive(near.as_fd(), 7).unwrap();
        ring.submit().unwrap();
        for round in 0..200_u32 {
            let message = round.to_be_bytes();
            far.write_all(&message).unwrap();
            let got = wait(&mut ring);
            assert_eq!((got.token, got.result, got.last), (7, Ok(4), false));
            let buffer = got.buffer.expect("a buffer");
            assert_eq!(ring.bytes(&buffer, 4), message);
            ring.send(near.as_fd(), &buffer, 4, 8).unwrap();
            let sent = wait(&mut ring);
            assert_eq!((sent.token, sent.result, sent.last), (8, Ok(4), true));
            ring.give_back(buffer);
            let mut answer = [0; 4];
            far.read_exact(&mut answer).unwrap();
            assert_eq!(answer, message);
        }
        ring.cancel(7, 9).unwrap();
        let mut ended = [wait(&mut ring), wait(&mut ring)].map(|c| (c.token, c.result, c.last));
        ended.sort_by_key(|(token, ..)| *token);
        assert_eq!(ended, [(7, Err(Errno::ECANCELED), true), (9, Ok(0), true)]);
    }

    #[test]
    fn an_end_and_a_reset_are_told_apart() {
        let Some(mut ring) = ring() else { return };
        for (reset, expected) in [(false, Ok(0)), (true, Err(Errno::ECONNRESET))] {
            let (near, far) = pair();
            ring.receive(near.as_fd(), 1).unwrap();
            ring.submit().unwrap();
            if reset {
                let linger = Some(std::time::Duration::ZERO);
                socket2::SockRef::from(&far).set_linger(linger).unwrap();
            }
            drop(far);
            let end = wait(&mut ring);
            assert_eq!((end.result, end.last), (expected, true));
        }
    }

    #[test]
    fn buffers_that_are_not_given_back_are_not_written_to() {
        let Some(mut ring) = ring() else { return };
        let (near, mut far) = pair();
        ring.receive(near.as_fd(), 1).unwrap();
        ring.submit().unwrap();
        far.set_nonblocking(true).unwrap();
        let mut kept = Vec::new();
        let end = loop {
            // As much as fits into the socket buffers.
            let _ = far.write(&[b'x'; 1 << 16]);
            let got = wait(&mut ring);
            match (got.buffer, got.result) {
                (Some(buffer), Ok(length)) => kept.push((buffer, length)),
                (_, result) => break (result, got.last),
            }
        };
        assert_eq!(end, (Err(Errno::ENOBUFS), true));
        for (buffer, length) in kept {
            assert!(ring.bytes(&buffer, length).iter().all(|byte| *byte == b'x'));
            ring.give_back(buffer);
        }
        ring.receive(near.as_fd(), 2).unwrap();
        assert!(wait(&mut ring).buffer.is_some());
    }

    #[test]
    fn nothing_but_what_it_is_for_can_be_done_through_it() {
        let Some(mut ring) = ring() else { return };
        for entry in [
            opcode::Nop::new().build(),
            opcode::OpenAt::new(Fd(nix::libc::AT_FDCWD), c"/".as_ptr()).build(),
        ] {
            // SAFETY: everything it names is static.
            unsafe { ring.push(&entry) }.unwrap();
            assert_eq!(wait(&mut ring).result, Err(Errno::EACCES));
        }
        let errno = ring.ring.submitter().register_files(&[0]).unwrap_err();
        assert_eq!(errno.raw_os_error(), Some(nix::libc::EACCES));
    }
}
