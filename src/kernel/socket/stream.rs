//! Relayed TCP connections: single reads and writes that do not wait, and the readiness between
//! them, without system calls that are known to yield nothing.

use std::{
    cell::Cell,
    io,
    net::{SocketAddr, TcpStream},
    os::fd::{AsFd, BorrowedFd},
    pin::pin,
    rc::Rc,
    task::{Context, Poll, Waker, ready},
};

use rustix::{
    io::Errno,
    net::{RecvFlags, SendFlags, SocketFlags, acceptfrom_with, recv, send},
};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::io::{Interest, Ready, unix::AsyncFd};

use super::{pipe::Pipe, set_unaltered};

/// EPOLLIN, EPOLLOUT and EPOLLPRI.
const WATCHED: Interest = Interest::READABLE
    .add(Interest::WRITABLE)
    .add(Interest::PRIORITY);

/// Result of a read from a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// This many bytes were read into the pipe.
    Spliced(usize),
    /// Bytes were read into the buffer.
    Copied {
        /// 0 at the stream's end.
        length: usize,
        /// Whether the stream ends after them: no other read is needed to know.
        last: bool,
    },
}

/// Whether more data follows the written bytes at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follows {
    /// Nothing that is known yet.
    Nothing,
    /// The end of the stream, which then goes into the same segment (MSG_MORE, send(2)).
    End,
}

/// Accepts a connection of a non-blocking `listener`; returns it with the peer's address. It does
/// not block either.
///
/// # Errors
/// Those of accept4(2).
pub fn accept(listener: impl AsFd) -> io::Result<(TcpStream, SocketAddr)> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (socket, peer) = acceptfrom_with(listener, flags)?;
    let peer = peer.ok_or(io::ErrorKind::AddrNotAvailable)?.try_into()?;
    Ok((socket.into(), peer))
}

/// A connection, watched by the runtime of the thread that uses it.
#[derive(Debug)]
pub struct Stream {
    /// `None` while it is not watched.
    watched: Option<AsyncFd<Rc<TcpStream>>>,
    socket: Rc<TcpStream>,
    /// Whether its peer has sent urgent data.
    urgent: Cell<bool>,
}

impl Stream {
    /// Watches `socket`, which must be non-blocking.
    ///
    /// # Errors
    /// Those of epoll_ctl(2).
    pub fn new(socket: TcpStream) -> io::Result<Stream> {
        let mut stream = Stream {
            watched: None,
            socket: Rc::new(socket),
            urgent: Cell::new(false),
        };
        stream.watch()?;
        Ok(stream)
    }

    /// Watches it again, after [`Stream::unwatch`].
    ///
    /// # Errors
    /// Those of epoll_ctl(2).
    pub fn watch(&mut self) -> io::Result<()> {
        // SAFETY: the `AsyncFd` owns the stream with others, which always answers with the
        // same descriptor, and it is taken out of the epoll before it can be closed.
        let watched = unsafe { AsyncFd::register_with_interest(Rc::clone(&self.socket), WATCHED) };
        self.watched = Some(watched.map_err(|error| error.into_parts().1)?);
        Ok(())
    }

    /// Stops watching the socket, so that something else can receive from it. Returns the socket,
    /// which is closed only when the returned reference is dropped as well. Until it is watched
    /// again, it is never reported as ready.
    pub fn unwatch(&mut self) -> Rc<TcpStream> {
        self.watched = None;
        Rc::clone(&self.socket)
    }

    fn watched(&self) -> io::Result<&AsyncFd<Rc<TcpStream>>> {
        self.watched.as_ref().ok_or(io::ErrorKind::NotFound.into())
    }

    /// Connects to `address`, after `prepare` has set up the socket.
    ///
    /// # Errors
    /// Those of `prepare`, socket(2), setsockopt(2), connect(2) and epoll_ctl(2).
    pub async fn connect(
        address: SocketAddr,
        prepare: impl FnOnce(&Socket) -> io::Result<()>,
    ) -> io::Result<Stream> {
        let domain = Domain::for_address(address);
        let kind = Type::STREAM.nonblocking().cloexec();
        let socket = Socket::new(domain, kind, Some(Protocol::TCP))?;
        set_unaltered(SockRef::from(&socket))?;
        prepare(&socket)?;
        match socket.connect(&address.into()) {
            Err(e) if Errno::from_io_error(&e) != Some(Errno::INPROGRESS) => return Err(e),
            Ok(()) | Err(_) => {}
        }
        let stream = Stream::new(socket.into())?;
        let ready = stream
            .ready(Interest::WRITABLE.add(Interest::ERROR))
            .await?;
        // connect(2): EPOLLERR reports a failure, and SO_ERROR has the reason.
        if (ready.is_error() || ready.is_write_closed())
            && let Some(error) = stream.socket.take_error()?
        {
            return Err(error);
        }
        Ok(stream)
    }

    /// Returns the local address and port.
    ///
    /// # Errors
    /// Those of getsockname(2).
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Waits until one of the states in `interest` is reached.
    ///
    /// # Errors
    /// When the runtime ends.
    pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        Ok(self.watched()?.ready(interest).await?.ready())
    }

    /// Reads once, into the pipe if there is one.
    ///
    /// Urgent data is a barrier: a recv(2) ends before it, so a short one has not emptied the
    /// socket; a splice(2) does not get past it at all, but reports that there is nothing, or that
    /// the stream has ended (`__tcp_read_sock` in net/ipv4/tcp.c). Then only recv(2) can tell.
    /// Otherwise, a short read has taken everything, and epoll(7) reports when there is more.
    ///
    /// # Errors
    /// Those of splice(2) and recv(2).
    pub fn poll_read(
        &self,
        cx: &mut Context<'_>,
        mut pipe: Option<&mut Pipe>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<Read>> {
        loop {
            let mut guard = ready!(self.watched()?.poll_read_ready(cx))?;
            if let Some(pipe) = &mut pipe {
                match pipe.fill_from(&*self.socket) {
                    Ok(0) => {}
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                    filled => return Poll::Ready(filled.map(Read::Spliced)),
                }
            }
            match recv(&*self.socket, &mut *buffer, RecvFlags::DONTWAIT) {
                Err(Errno::AGAIN) => guard.clear_ready(),
                Err(error) => return Poll::Ready(Err(error.into())),
                Ok((length, _)) => {
                    let emptied = 0 < length && length < buffer.len() && !self.has_urgent();
                    let last = emptied && guard.ready().is_read_closed() && !self.has_failed();
                    if emptied {
                        guard.clear_ready();
                    }
                    return Poll::Ready(Ok(Read::Copied { length, last }));
                }
            }
        }
    }

    /// Waits until something can be written.
    ///
    /// # Errors
    /// When the runtime ends.
    pub fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.watched()?.poll_write_ready(cx).map_ok(drop)
    }

    /// Writes as much as the peer's window takes at once.
    ///
    /// # Errors
    /// Those of send(2); `WouldBlock` when it takes nothing.
    pub fn write_some(&self, bytes: &[u8], follows: Follows) -> io::Result<usize> {
        let mut flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        flags.set(SendFlags::MORE, follows == Follows::End);
        self.watched()?.try_io(Interest::WRITABLE, |socket| {
            Ok(send(&**socket, bytes, flags)?)
        })
    }

    /// Does the same, even if the socket is not watched, or its readiness is not known yet.
    ///
    /// # Errors
    /// Those of send(2); `WouldBlock` when it takes nothing.
    pub fn write_unwatched(&self, bytes: &[u8]) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        Ok(send(&*self.socket, bytes, flags)?)
    }

    /// Moves the content of `pipe` to the peer, as far as its window takes it at once.
    ///
    /// # Errors
    /// Those of splice(2); `WouldBlock` when it takes nothing.
    pub fn drain(&self, pipe: &mut Pipe) -> io::Result<usize> {
        self.watched()?
            .try_io(Interest::WRITABLE, |socket| pipe.drain_to(&**socket))
    }

    /// Returns whether its peer ever sent urgent data (EPOLLPRI, `tcp_poll` in net/ipv4/tcp.c,
    /// until it is read).
    fn has_urgent(&self) -> bool {
        // The end of the stream is also reported as this readiness.
        if !self.urgent.get()
            && self.is(Interest::PRIORITY)
            && let Some(watched) = &self.watched
        {
            let ready = pin!(watched.ready(Interest::PRIORITY));
            let at_once = ready.poll(&mut Context::from_waker(Waker::noop()));
            if let Poll::Ready(Ok(guard)) = at_once {
                self.urgent.set(guard.ready().is_priority());
            }
        }
        self.urgent.get()
    }

    /// Returns whether there is an error to be read.
    fn has_failed(&self) -> bool {
        self.is(Interest::ERROR)
    }

    /// Returns whether the runtime knows that the state `interest` is reached.
    fn is(&self, interest: Interest) -> bool {
        // Runs only then.
        let watched = self.watched.as_ref();
        watched.is_some_and(|watched| watched.try_io(interest, |_| Ok(())).is_ok())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, io::Write, net::TcpListener, time::Duration};

    use tokio::time::timeout;

    use super::*;

    /// Returns a connection over loopback: the stream under test, and its peer.
    async fn pair() -> (Stream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let stream = Stream::connect(address, |_| Ok(())).await.unwrap();
        (stream, listener.accept().unwrap().0)
    }

    /// Reads until there is nothing more, or the stream has ended.
    async fn read_all(stream: &Stream) -> (Vec<Read>, Vec<u8>) {
        let (mut reads, mut bytes) = (Vec::new(), Vec::new());
        let mut buffer = [0; 64];
        loop {
            let step = poll_fn(|cx| stream.poll_read(cx, None, &mut buffer));
            match timeout(Duration::from_millis(200), step).await {
                Err(_) => return (reads, bytes),
                Ok(read) => {
                    let read = read.unwrap();
                    reads.push(read);
                    match read {
                        Read::Copied { length: 0, .. } => return (reads, bytes),
                        Read::Copied { length, .. } => bytes.extend(&buffer[..length]),
                        Read::Spliced(_) => unreachable!("no pipe was given"),
                    }
                }
            }
        }
    }

    #[tokio::test]
    async fn a_short_read_stands_before_urgent_data_and_not_at_the_end_of_it() {
        let (stream, mut peer) = pair().await;
        peer.write_all(b"before").unwrap();
        assert_eq!(
            SockRef::from(&peer).send_out_of_band(b"!").unwrap(),
            1,
            "one byte is urgent"
        );
        peer.write_all(b"after").unwrap();
        assert_eq!(read_all(&stream).await.1, b"before!after");
    }

    #[tokio::test]
    async fn an_end_that_is_there_is_seen_with_the_last_bytes() {
        let (stream, mut peer) = pair().await;
        peer.write_all(b"all").unwrap();
        let last = |last| Read::Copied { length: 3, last };
        assert_eq!(read_all(&stream).await.0, [last(false)]);
        peer.write_all(b"end").unwrap();
        drop(peer);
        stream.ready(Interest::READABLE).await.unwrap();
        assert_eq!(read_all(&stream).await.0[0], last(true));
    }

    #[tokio::test]
    async fn a_reset_after_the_last_bytes_is_no_end() {
        let (stream, mut peer) = pair().await;
        peer.write_all(b"cut").unwrap();
        SockRef::from(&peer)
            .set_linger(Some(Duration::ZERO))
            .unwrap();
        drop(peer);
        stream.ready(Interest::ERROR).await.unwrap();
        let read = poll_fn(|cx| stream.poll_read(cx, None, &mut [0; 64])).await;
        if let Ok(Read::Copied { last, .. }) = read {
            assert!(!last);
        }
    }

    #[tokio::test]
    async fn who_refuses_is_told_from_who_answers() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let refused = Stream::connect(address, |_| Ok(())).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }
}
