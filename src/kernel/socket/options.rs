//! Options of TCP connections that are passed on.

use std::{io, time::Duration};

use socket2::{SockRef, Socket, TcpKeepalive};

/// Idle time before the first keep-alive probe, and the time between probes.
const KEEP_ALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// Probes without an answer: a peer that vanished is noticed within two minutes.
const KEEP_ALIVE_PROBES: u32 = 4;

/// Sets TCP_NODELAY: what a client or backend sends is passed on at once. And
/// SO_OOBINLINE: a byte that was sent as urgent stays in its place among the others
/// (RFC 6093 section 5); without it the kernel takes it out of the stream (`tcp(7)`).
///
/// # Errors
/// Those of setsockopt(2).
pub fn set_unaltered(socket: SockRef<'_>) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    socket.set_out_of_band_inline(true)
}

/// Sets keep-alive: a peer that vanished is noticed.
///
/// # Errors
/// Those of setsockopt(2).
pub fn set_keep_alive(socket: SockRef<'_>) -> io::Result<()> {
    socket.set_tcp_keepalive(
        &TcpKeepalive::new()
            .with_time(KEEP_ALIVE_IDLE)
            .with_interval(KEEP_ALIVE_INTERVAL)
            .with_retries(KEEP_ALIVE_PROBES),
    )
}

/// Has the connection be reset when its socket is closed, whatever does it, also the end of the
/// process: what was not sent is dropped, and the peer does not take what it got for all there is
/// (SO_LINGER of zero, `socket(7)`; `__tcp_close` in net/ipv4/tcp.c). What a listener accepts
/// inherits it.
///
/// # Errors
/// Those of setsockopt(2).
pub fn set_reset_on_close(socket: &Socket) -> io::Result<()> {
    socket.set_linger(Some(Duration::ZERO))
}

/// Undoes [`set_reset_on_close`]: what was not sent is still sent after the socket is closed, and
/// then the end.
///
/// # Errors
/// Those of setsockopt(2).
pub fn close_in_order(socket: &Socket) -> io::Result<()> {
    socket.set_linger(None)
}

#[cfg(test)]
mod tests {
    use std::{
        io::Read,
        net::{TcpListener, TcpStream},
    };

    use socket2::SockRef;

    use super::*;

    #[test]
    fn what_is_accepted_is_reset_unless_it_is_closed_in_order() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        set_reset_on_close(&SockRef::from(&listener)).unwrap();
        for in_order in [false, true] {
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (accepted, _) = listener.accept().unwrap();
            if in_order {
                close_in_order(&SockRef::from(&accepted)).unwrap();
            }
            drop(accepted);
            let read = client.read(&mut [0]).map_err(|error| error.kind());
            let reset = Err(io::ErrorKind::ConnectionReset);
            assert_eq!(read, if in_order { Ok(0) } else { reset });
        }
    }
}
