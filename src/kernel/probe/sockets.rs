//! Tries what sockets can do here.

use std::{
    io::Write,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream},
    os::fd::AsFd,
};

use net::Family;
use nix::{
    fcntl::{SpliceFFlags, splice},
    unistd::{pipe, read},
};
use socket2::{Domain, Protocol, Socket, Type};

use super::answer::Tried;

fn domain(family: Family) -> Domain {
    match family {
        Family::V4 => Domain::IPV4,
        Family::V6 => Domain::IPV6,
    }
}

/// Tries to bind a socket of that family to its loopback address.
pub(super) fn sockets(family: Family) -> Tried {
    let address = match family {
        Family::V4 => SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        Family::V6 => SocketAddr::from((Ipv6Addr::LOCALHOST, 0)),
    };
    Ok(TcpListener::bind(address).map(drop)?)
}

/// Tries to bind a socket to an address that no host has (RFC 5737, RFC 3849).
pub(super) fn transparent(family: Family) -> Tried {
    let attempt = || {
        let socket = Socket::new(domain(family), Type::STREAM, Some(Protocol::TCP))?;
        let address: SocketAddr = match family {
            Family::V4 => {
                socket.set_ip_transparent_v4(true)?;
                SocketAddr::from((Ipv4Addr::new(192, 0, 2, 1), 0))
            }
            Family::V6 => {
                socket.set_ip_transparent_v6(true)?;
                SocketAddr::from((Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1), 0))
            }
        };
        socket.bind(&address.into())
    };
    Ok(attempt()?)
}

/// Tries to bind two sockets to one address.
pub(super) fn reuse_port() -> Tried {
    let attempt = || {
        let first = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
        first.set_reuse_port(true)?;
        first.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())?;
        let second = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
        second.set_reuse_port(true)?;
        second.bind(&first.local_addr()?)
    };
    Ok(attempt()?)
}

/// Tries whether splice(2) moves bytes from a socket into a pipe without a copy.
pub(super) fn splicing() -> Tried {
    let attempt = || {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let mut sender = TcpStream::connect(listener.local_addr()?)?;
        let (receiver, _) = listener.accept()?;
        sender.write_all(b"x")?;
        let (out, into) = pipe()?;
        splice(
            receiver.as_fd(),
            None,
            into.as_fd(),
            None,
            1,
            SpliceFFlags::empty(),
        )?;
        read(&out, &mut [0; 1])?;
        Ok::<_, std::io::Error>(())
    };
    Ok(attempt()?)
}
