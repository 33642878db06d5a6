//! Records between two processes over a unix socket; each can carry a descriptor in addition to its
//! bytes (SCM_RIGHTS, `unix(7)`).

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use rustix::{
    cmsg_space,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
    },
};
use socket2::{Domain, SockAddr, SockRef, Socket, Type};
use tokio::{
    io::Interest,
    net::{UnixListener, UnixStream},
};

use super::unix;

/// This type keeps the bounds of records, and reports the end of the connection.
const KIND: Type = Type::SEQPACKET;

/// Maximum number of descriptors in one record (`SCM_MAX_FD` in include/net/scm.h): with room for
/// all, none is leaked.
const MOST: usize = 253;

/// A connection that carries records.
#[derive(Debug)]
pub struct Channel(UnixStream);

/// A received record.
#[derive(Debug)]
pub struct Received {
    /// Number of bytes in the buffer.
    pub len: usize,
    /// The descriptor that came with the bytes; `None` also if this process may open no
    /// more descriptors.
    pub descriptor: Option<OwnedFd>,
}

impl Channel {
    /// Connects to the process that listens at `path`.
    ///
    /// # Errors
    /// Those of connect(2): `NotFound` or `ConnectionRefused` if no process listens.
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

    /// Returns whether the process that has connected is in the same network namespace as this one.
    pub fn is_of_this_namespace(&self) -> bool {
        unix::is_of_this_namespace(&self.0)
    }

    /// Sends a record, optionally with a descriptor. If this is cancelled, nothing is sent.
    ///
    /// # Errors
    /// Those of sendmsg(2).
    pub async fn send(&self, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let send = || {
            let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if descriptor.is_some() {
                control.push(SendAncillaryMessage::ScmRights(descriptor.as_slice()));
            }
            let bytes = [IoSlice::new(bytes)];
            sendmsg(&self.0, &bytes, &mut control, SendFlags::NOSIGNAL)?;
            Ok(())
        };
        self.0.async_io(Interest::WRITABLE, send).await
    }

    /// Receives a record; `None` if the other end is closed. Of several descriptors in one record
    /// all but the first are closed. If this is cancelled, nothing is lost.
    ///
    /// # Errors
    /// Those of recvmsg(2), and `InvalidData` for a record that is longer than `buffer`.
    pub async fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<Received>> {
        let receive = || receive(self.0.as_fd(), buffer);
        self.0.async_io(Interest::READABLE, receive).await
    }
}

fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Option<Received>> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MOST))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(buffer)];
    let got = recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    // The kernel opens some even if it cannot open all that were sent (`scm_detach_fds` in
    // net/core/scm.c). Those that are not returned are closed.
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let descriptors: Vec<OwnedFd> = rights.flatten().collect();
    if got.flags.contains(ReturnFlags::TRUNC) {
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
    /// Listens at `path`. A missing folder is created, for root alone.
    ///
    /// # Errors
    /// Those of [`unix::listen`].
    pub fn open(path: &Path) -> io::Result<Listener> {
        let socket = unix::listen(path, KIND, unix::PRIVATE)?;
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

/// Stops listening on a TCP socket, even if another process has a descriptor of it. Connections
/// that were not accepted are reset.
pub fn stop_listening(socket: &impl AsFd) {
    // Fails only for a socket that does not listen.
    let _ = SockRef::from(socket).shutdown(std::net::Shutdown::Both);
}

#[cfg(test)]
mod tests {
    use std::{
        net::TcpListener,
        os::fd::{AsRawFd, RawFd},
    };

    use nix::sys::{
        resource::{Resource, getrlimit, setrlimit},
        socket::{ControlMessage, MsgFlags, sendmsg},
    };

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

    /// Sends a record with the descriptors `raw`.
    fn send_all(channel: &Channel, raw: &[RawFd]) {
        let bytes = [IoSlice::new(b"x")];
        let control = [ControlMessage::ScmRights(raw)];
        let none = MsgFlags::empty();
        sendmsg::<()>(channel.0.as_raw_fd(), &bytes, &control, none, None).unwrap();
    }

    #[tokio::test]
    async fn of_several_descriptors_none_stays_open_unnoticed() {
        let (one, other) = Channel::pair().unwrap();
        let (read, write) = nix::unistd::pipe().unwrap();
        send_all(&one, &[write.as_raw_fd(); 3]);
        drop(write);
        let received = other.receive(&mut [0; 4]).await.unwrap().unwrap();
        drop(received);
        // The end of the pipe shows that no descriptor of its other side is left.
        assert_eq!(nix::unistd::read(&read, &mut [0; 1]).unwrap(), 0);
    }

    const NAME: &str = "kernel::socket::records::tests::none_stays_open_if_not_all_can_be_opened";

    /// Runs in a separate process, because the limit applies to a process.
    #[test]
    fn none_stays_open_if_not_all_can_be_opened() {
        const VARIABLE: &str = "TRIPOD_TEST_OF_DESCRIPTORS";
        if std::env::var_os(VARIABLE).is_some() {
            return testing::block_on(receive_at_the_limit());
        }
        let mut test = std::process::Command::new(std::env::current_exe().unwrap());
        test.args(["--exact", NAME, "--nocapture"]);
        let output = test.env(VARIABLE, "1").output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(printed.contains("1 passed"), "{output:?}");
    }

    async fn receive_at_the_limit() {
        let (one, other) = Channel::pair().unwrap();
        let (read, write) = nix::unistd::pipe().unwrap();
        let raw = [write.as_raw_fd(); 3];
        for room in 0..4 {
            send_all(&one, &raw);
            // The lowest free numbers; there is `room` for them.
            let free: Vec<_> = (0..room).map(|_| read.try_clone().unwrap()).collect();
            let first = read.try_clone().unwrap();
            let limit = first.as_raw_fd() as u64;
            drop((free, first));
            let (before, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
            setrlimit(Resource::RLIMIT_NOFILE, limit, most).unwrap();
            let received = other.receive(&mut [0; 4]).await.unwrap().unwrap();
            setrlimit(Resource::RLIMIT_NOFILE, before, most).unwrap();
            assert_eq!(received.descriptor.is_some(), room > 0, "{room}");
        }
        drop(write);
        assert_eq!(nix::unistd::read(&read, &mut [0; 1]).unwrap(), 0);
    }
}
