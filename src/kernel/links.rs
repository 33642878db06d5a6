//! Network interfaces, as far as others here need them.

use nix::{errno::Errno, libc, net::if_::if_nametoindex};

use super::netlink::{Error, Request, Socket};

/// Index of the interface `name`.
///
/// # Errors
/// When this network namespace has no such interface.
pub fn index(name: &str) -> Result<u32, Error> {
    if_nametoindex(name).map_err(|errno| Error::Refused {
        operation: "find",
        object: format!("interface {name}"),
        errno,
        hint: None,
    })
}

/// Sets the interface of that index up, if it is not.
///
/// # Errors
/// When there is none, or for lack of `CAP_NET_ADMIN`.
pub fn set_up(socket: &mut Socket, index: u32) -> Result<(), Error> {
    let index_field = i32::try_from(index).map_err(|_| Error::Refused {
        operation: "set up",
        object: format!("interface {index}"),
        errno: Errno::ENODEV,
        hint: None,
    })?;
    // struct ifinfomsg: family, padding, type, index, flags, mask of flags.
    let mut header = [0; 16];
    header[4..8].copy_from_slice(&index_field.to_ne_bytes());
    header[8..12].copy_from_slice(&(libc::IFF_UP as u32).to_ne_bytes());
    header[12..16].copy_from_slice(&(libc::IFF_UP as u32).to_ne_bytes());
    let object = format!("interface {index}");
    let request = Request::new(libc::RTM_NEWLINK, 0, "set up", object).header(&header);
    socket.call(&request, |_| Ok(None::<()>)).map(|_| ())
}
