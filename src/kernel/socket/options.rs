//! Options of relayed connections.

use std::{io, net::SocketAddr, time::Duration};

use socket2::{SockRef, Socket, TcpKeepalive};

/// Idle time before the first keep-alive probe, and the time between probes.
const KEEP_ALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// Probes without an answer: a peer that vanished is noticed within two minutes.
const KEEP_ALIVE_PROBES: u32 = 4;

/// Sets TCP_NODELAY, so that bytes of a client or backend are forwarded at once, and SO_OOBINLINE,
/// so that a byte that was sent as urgent keeps its place among the others (RFC 6093 section 5);
/// otherwise the kernel would take it out of the stream (`tcp(7)`).
///
/// # Errors
/// Those of setsockopt(2).
pub fn set_unaltered(socket: SockRef<'_>) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    socket.set_out_of_band_inline(true)
}

/// Sets keep-alive, to notice a peer that vanished.
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

/// Binds `socket` to the address of a client. Others may be bound to it as well: one client port
/// may communicate with many endpoints.
///
/// # Errors
/// Errors of setsockopt(2) and bind(2).
pub fn bind_transparent(socket: &Socket, client: SocketAddr) -> io::Result<()> {
    match client {
        SocketAddr::V4(_) => socket.set_ip_transparent_v4(true)?,
        SocketAddr::V6(_) => socket.set_ip_transparent_v6(true)?,
    }
    socket.set_reuse_address(true)?;
    socket.bind(&client.into())
}
