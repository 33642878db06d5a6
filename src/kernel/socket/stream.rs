//! Single reads and writes of a relay, without waiting.

use std::{
    io,
    os::fd::{AsFd, AsRawFd},
};

use nix::sys::socket::{MsgFlags, recv, send};
use tokio::{io::Interest, net::TcpStream};

use super::pipe::Pipe;

/// Where bytes went that were read.
pub enum Read {
    /// So many into the pipe.
    Spliced(usize),
    /// So many into the buffer.
    Copied(usize),
}

/// Reads once, into the pipe if there is one. Urgent data is a barrier: a
/// recv(2) ends before it, so that a short one has not emptied the socket, and
/// a splice(2) does not get over it at all, but says that there is nothing, or
/// that the stream has ended (`__tcp_read_sock` in net/ipv4/tcp.c). Then only
/// the former knows.
///
/// # Errors
/// Those of splice(2) and recv(2); `WouldBlock` when there is nothing.
pub fn read_some(from: &TcpStream, pipe: Option<&mut Pipe>, buffer: &mut [u8]) -> io::Result<Read> {
    from.try_io(Interest::READABLE, || {
        if let Some(pipe) = pipe {
            match pipe.fill_from(from.as_fd()) {
                Ok(0) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                filled => return filled.map(Read::Spliced),
            }
        }
        let flags = MsgFlags::MSG_DONTWAIT;
        Ok(Read::Copied(recv(from.as_raw_fd(), buffer, flags)?))
    })
}

/// Writes what the receiver takes at once.
///
/// # Errors
/// Those of send(2).
pub fn write_some(to: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    to.try_io(Interest::WRITABLE, || {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        Ok(send(to.as_raw_fd(), bytes, flags)?)
    })
}
