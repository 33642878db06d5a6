//! Tries what sockets can do here.

use std::{
    io::Write,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::fd::AsFd,
};

use net::Family;
use nix::{
    fcntl::{SpliceFFlags, splice},
    unistd::{pipe, read},
};
use socket2::{Domain, Socket, Type};

use super::answer::Tried;
use crate::kernel::socket::bind_transparent;

/// Tries to bind a socket of that family to its loopback address.
pub(super) fn sockets(family: Family) -> Tried {
    Ok(TcpListener::bind((family.localhost(), 0)).map(drop)?)
}

/// Returns an address that no host has (RFC 5737, RFC 3849).
pub(super) fn test_address(family: Family) -> IpAddr {
    match family {
        Family::V4 => [192, 0, 2, 1].into(),
        Family::V6 => [0x2001, 0xdb8, 0, 0, 0, 0, 0, 1].into(),
    }
}

/// Tries to bind a socket to an address that no host has.
pub(super) fn transparent(family: Family) -> Tried {
    let attempt = || {
        let address = (test_address(family), 0).into();
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        bind_transparent(&socket, address)
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
