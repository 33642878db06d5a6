//! Opens listening TCP sockets.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;

/// Number of connections that may wait to be accepted: if there is no room, all clients, even those
/// that are no part of a crowd, try again after a second at the earliest.
const BACKLOG: i32 = 1024;

/// Listens on `address`. A wildcard means every address of both families, or of IPv4 if the kernel
/// has no IPv6.
///
/// # Errors
/// When another program has it, it is not this node's, or this process may not
/// use it.
pub(super) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    if !address.ip().is_unspecified() {
        return listen(address);
    }
    match listen(of_both_families(address.port())) {
        Err(error) if has_no_ipv6(&error) => listen(of_ipv4(address.port())),
        done => done,
    }
}

fn of_both_families(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port)
}

fn of_ipv4(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port)
}

/// Returns the addresses that a listener of `address` may be bound to by [`bind`].
pub(super) fn bound_to(address: SocketAddr) -> Vec<SocketAddr> {
    let port = address.port();
    if address.ip().is_unspecified() {
        vec![of_both_families(port), of_ipv4(port)]
    } else {
        vec![address]
    }
}

fn has_no_ipv6(error: &io::Error) -> bool {
    // With the kernel's ipv6.disable=1 there is no such socket; with the sysctl
    // disable_ipv6 there is no such address.
    matches!(
        error.raw_os_error(),
        Some(nix::libc::EAFNOSUPPORT | nix::libc::EADDRNOTAVAIL)
    )
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let kind = Type::STREAM.cloexec().nonblocking();
    let socket = Socket::new(Domain::for_address(address), kind, Some(Protocol::TCP))?;
    // With it, connections of an earlier process in TIME_WAIT do not prevent
    // binding.
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[tokio::test]
    async fn a_wildcard_is_every_address() {
        let listener = bind("0.0.0.0:0".parse().unwrap()).unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut addresses = vec![HERE];
        if listen(SocketAddr::new(Ipv6Addr::LOCALHOST.into(), 0)).is_ok() {
            addresses.push(Ipv6Addr::LOCALHOST.into());
        }
        for address in addresses {
            tokio::net::TcpStream::connect((address, port))
                .await
                .unwrap();
            listener.accept().await.unwrap();
        }
    }
}
