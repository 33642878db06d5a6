//! Records between two processes over a unix socket, of which each can have a
//! descriptor besides its bytes (SCM_RIGHTS, `unix(7)`).

use std::{
    io::{self, IoSlice, IoSliceMut},
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    path::Path,
};

use nix::{
    cmsg_space,
    sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg},
};
use socket2::{Domain, SockAddr, SockRef, Socket, Type};
use tokio::{
    io::Interest,
    net::{UnixListener, UnixStream},
};

use super::unix;

/// Records keep their bounds, and the end of the connection is noticed.
pub const KIND: Type = Type::SEQPACKET;

/// Descriptors that one record may have at most (`SCM_MAX_FD` in
/// include/net/scm.h): with room for all, none is lost sight of.
const MOST: usize = 253;

/// A connection that carries records.
#[derive(Debug)]
pub struct Channel(UnixStream);

/// What was received.
#[derive(Debug)]
pub struct Received {
    /// How many bytes of the buffer it fills.
    pub len: usize,
    /// The descriptor that came with the bytes; `None` also if this process may open no
    /// more descriptors.
    pub descriptor: Option<OwnedFd>,
}

impl Channel {
    /// Connects to the process that listens at `path`.
    ///
    /// # Errors
    /// Those of connect(2): `NotFound` or `ConnectionRefused` if no process does.
    pub fn connect(path: &Path) -> io::Result<Channel> {
        let socket = Socket::new(Domain::UNIX, KIND.cloexec().nonblocking(), None)?;
        socket.connect(&SockAddr::unix(path)?)?;
        Ok(Channel(UnixStream::from_std(socket.into())?))
    }

    /// Returns both ends of a connection.
    #[cfg(test)]
    pub fn pair() -> io::Result<(Channel, Channel)> {
        let (one, other) = Socket::pair(Domain::UNIX, KIND.cloexec().nonblocking(), None)?;
        let channel = |end: Socket| UnixStream::from_std(end.into()).map(Channel);
        Ok((channel(one)?, channel(other)?))
    }

    /// Returns whether a process of the same user is at the other end (SO_PEERCRED).
    pub fn is_same_user(&self) -> bool {
        let own = nix::unistd::geteuid().as_raw();
        self.0.peer_cred().is_ok_and(|peer| peer.uid() == own)
    }

    /// Sends a record, with a descriptor if there is one. Nothing is sent if it is
    /// cancelled.
    ///
    /// # Errors
    /// Those of sendmsg(2).
    pub async fn send(&self, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let raw: Vec<RawFd> = descriptor.iter().map(AsRawFd::as_raw_fd).collect();
        let control = [ControlMessage::ScmRights(&raw)];
        let control = if raw.is_empty() { &[][..] } else { &control };
        let send = || {
            let (flags, bytes) = (MsgFlags::MSG_NOSIGNAL, [IoSlice::new(bytes)]);
            let sent = sendmsg::<()>(self.0.as_raw_fd(), &bytes, control, flags, None);
            sent.map(drop).map_err(io::Error::from)
        };
        self.0.async_io(Interest::WRITABLE, send).await
    }

    /// Receives a record; `None`: the other end is closed. Of several descriptors of
    /// one record the others are closed. Nothing is lost if it is cancelled.
    ///
    /// # Errors
    /// Those of recvmsg(2), and `InvalidData` for a record that is longer than `buffer`.
    pub async fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<Received>> {
        let mut control = cmsg_space!([RawFd; MOST]);
        let receive = || receive(self.0.as_fd(), buffer, &mut control);
        self.0.async_io(Interest::READABLE, receive).await
    }
}

fn receive(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    control: &mut [u8],
) -> io::Result<Option<Received>> {
    let mut parts = [IoSliceMut::new(buffer)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let got = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(control), flags)?;
    let mut descriptors = Vec::new();
    // An error stands for descriptors that this process may not open any more.
    for message in got.cmsgs().into_iter().flatten() {
        if let ControlMessageOwned::ScmRights(raw) = message {
            // SAFETY: the kernel has opened these descriptors for this process with
            // this very message, so that nothing else owns them.
            descriptors.extend(raw.iter().map(|fd| unsafe { OwnedFd::from_raw_fd(*fd) }));
        }
    }
    if got.flags.contains(MsgFlags::MSG_TRUNC) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok((got.bytes > 0).then(|| Received {
        len: got.bytes,
        descriptor: descriptors.into_iter().next(),
    }))
}

/// Accepts connections that carry records.
#[derive(Debug)]
pub struct Listener(UnixListener);

impl Listener {
    /// Listens at `path`, in a folder that is made for root alone if there is none.
    ///
    /// # Errors
    /// Those of [`unix::listen`].
    pub fn open(path: &Path) -> io::Result<Listener> {
        Listener::over(unix::listen(path, KIND, unix::PRIVATE)?)
    }

    /// Accepts connections of a listening socket of [`KIND`].
    ///
    /// # Errors
    /// When tokio cannot watch it.
    pub fn over(socket: Socket) -> io::Result<Listener> {
        Ok(Listener(UnixListener::from_std(socket.into())?))
    }

    /// Accepts a connection.
    ///
    /// # Errors
    /// Those of accept(2).
    pub async fn accept(&self) -> io::Result<Channel> {
        Ok(Channel(self.0.accept().await?.0))
    }
}

/// Ends listening on a TCP socket, also where another process has a descriptor of it.
/// Connections that were not accepted are reset.
pub fn stop_listening(socket: &impl AsFd) {
    // Fails only for one that does not listen.
    let _ = SockRef::from(socket).shutdown(std::net::Shutdown::Both);
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn records_keep_their_bounds_and_their_descriptors() {
        let (one, other) = Channel::pair().unwrap();
        assert!(one.is_same_user());
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        one.send(b"first", Some(socket.as_fd())).await.unwrap();
        one.send(b"second", None).await.unwrap();
        one.send(b"too long", None).await.unwrap();
        drop(one);
        let mut buffer = [0; 7];
        let first = other.receive(&mut buffer).await.unwrap().unwrap();
        assert_eq!(&buffer[..first.len], b"first");
        let passed = TcpListener::from(first.descriptor.unwrap());
        let address = |socket: &TcpListener| socket.local_addr().unwrap();
        assert_eq!(address(&passed), address(&socket));
        let second = other.receive(&mut buffer).await.unwrap().unwrap();
        assert_eq!(&buffer[..second.len], b"second");
        assert!(second.descriptor.is_none());
        let error = other.receive(&mut buffer).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(other.receive(&mut buffer).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn of_several_descriptors_none_stays_open_unnoticed() {
        let (one, other) = Channel::pair().unwrap();
        let (read, write) = nix::unistd::pipe().unwrap();
        let raw = [write.as_raw_fd(); 3];
        let bytes = [IoSlice::new(b"x")];
        let control = [ControlMessage::ScmRights(&raw)];
        let none = MsgFlags::empty();
        sendmsg::<()>(one.0.as_raw_fd(), &bytes, &control, none, None).unwrap();
        drop(write);
        let received = other.receive(&mut [0; 4]).await.unwrap().unwrap();
        drop(received);
        // The end of the pipe shows that no descriptor of its other side is left.
        assert_eq!(nix::unistd::read(&read, &mut [0; 1]).unwrap(), 0);
    }
}
