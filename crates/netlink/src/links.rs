//! Network interfaces: their index, kind and state, and dummy links.

use nix::{errno::Errno, libc, net::if_::if_nametoindex};

use crate::{Error, Malformed, Message, Request, Socket};

/// Finds the index of the interface `name`.
///
/// # Errors
/// When this network namespace has no such interface.
pub fn index(name: &str) -> Result<u32, Error> {
    if_nametoindex(name).map_err(|errno| Error::new("find", format!("interface {name}"), errno))
}

/// Finds the index of the interface `name`; `None`: this network namespace has none.
///
/// # Errors
/// When the lookup fails, as without a descriptor to spare.
pub fn index_if_there(name: &str) -> Result<Option<u32>, Error> {
    match index(name) {
        Err(error) if error.errno() == Some(Errno::ENODEV) => Ok(None),
        found => found.map(Some),
    }
}

/// Finds the index of the interface `name` in the network namespace of `socket`.
///
/// # Errors
/// When it has no such interface (`ENODEV`), or its answer cannot be read.
pub fn find(socket: &mut Socket, name: &str) -> Result<u32, Error> {
    let request = Request::new(libc::RTM_GETLINK, 0, "find", format!("interface {name}"))
        .header(&[0; 16])
        .text(libc::IFLA_IFNAME, name);
    let found = socket.call(&request, index_of)?;
    let found = found.first().copied();
    found.ok_or_else(|| request.failed(Errno::ENODEV))
}

/// Reads the index of the link from a message.
pub fn index_of(message: Message<'_>) -> Result<Option<u32>, Malformed> {
    // struct ifinfomsg: family, padding, type, index.
    let [_, _, _, _, a, b, c, d, ..] = message.header::<16>()?;
    Ok(Some(u32::from_ne_bytes([a, b, c, d])))
}

/// Sets the interface of that index up, if it is not.
///
/// # Errors
/// When there is none, or for lack of `CAP_NET_ADMIN`.
pub fn set_up(socket: &mut Socket, index: u32) -> Result<(), Error> {
    // struct ifinfomsg: family, padding, type, index, flags, mask of flags.
    let mut header = [0; 16];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&(libc::IFF_UP as u32).to_ne_bytes());
    header[12..16].copy_from_slice(&(libc::IFF_UP as u32).to_ne_bytes());
    let object = format!("interface {index}");
    let request = Request::new(libc::RTM_NEWLINK, 0, "set up", object).header(&header);
    socket.acknowledge(&request)
}

/// Looks up the kind of virtual link of the interface with that index, such as `veth`, as `ip link
/// add type` spells it; `None`: it is not virtual, or there is no such interface.
///
/// # Errors
/// When the kernel's answer cannot be read.
pub fn kind(socket: &mut Socket, index: u32) -> Result<Option<String>, Error> {
    // struct ifinfomsg: family, padding, type, index, flags, mask of flags.
    let mut header = [0; 16];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    let object = format!("interface {index}");
    let request = Request::new(libc::RTM_GETLINK, 0, "look up", object).header(&header);
    match socket.call(&request, kind_of) {
        Err(error) if error.errno() == Some(Errno::ENODEV) => Ok(None),
        other => Ok(other?.pop()),
    }
}

/// Reads the kind of a virtual link from a message; `None`: the link is not virtual.
pub fn kind_of(message: Message<'_>) -> Result<Option<String>, Malformed> {
    for attribute in message.attributes(16) {
        let attribute = attribute?;
        if attribute.kind != libc::IFLA_LINKINFO {
            continue;
        }
        for attribute in attribute.nested() {
            let attribute = attribute?;
            if attribute.kind == libc::IFLA_INFO_KIND {
                return Ok(Some(attribute.text()?.to_owned()));
            }
        }
    }
    Ok(None)
}

/// The kind of links that only hold addresses.
const DUMMY: &str = "dummy";

/// Makes a dummy link of that name, as `ip link add NAME type dummy` does: it
/// holds addresses, and drops every packet. It stays down. Returns true if it
/// was not there.
///
/// # Errors
/// When this kernel has no dummy links (module `dummy`), a link of another kind
/// has the name, or for lack of `CAP_NET_ADMIN`.
pub fn add_dummy(socket: &mut Socket, name: &str) -> Result<bool, Error> {
    let flags = (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
    let request = Request::new(
        libc::RTM_NEWLINK,
        flags,
        "add",
        format!("dummy link {name}"),
    )
    .header(&[0; 16])
    .text(libc::IFLA_IFNAME, name)
    .nested(libc::IFLA_LINKINFO, |r| {
        r.attribute(libc::IFLA_INFO_KIND, DUMMY.as_bytes())
    });
    let Err(error) = socket.acknowledge(&request) else {
        return Ok(true);
    };
    Err(match error.errno() {
        Some(Errno::EEXIST) => {
            let kind = find(socket, name).and_then(|found| kind(socket, found))?;
            let kind = kind.as_deref().unwrap_or("physical");
            if kind == DUMMY {
                return Ok(false);
            }
            error.hinted(format!(
                "a link of kind {kind} has that name: rename or delete it"
            ))
        }
        Some(Errno::EOPNOTSUPP) => {
            error.hinted("this kernel has no dummy links: module dummy (CONFIG_DUMMY)")
        }
        _ => error,
    })
}

/// Deletes the link of that name with its addresses; one that does not exist is no error.
///
/// # Errors
/// When the kernel refuses.
pub fn delete(socket: &mut Socket, name: &str) -> Result<(), Error> {
    let request = Request::new(libc::RTM_DELLINK, 0, "delete", format!("link {name}"))
        .header(&[0; 16])
        .text(libc::IFLA_IFNAME, name);
    match socket.acknowledge(&request) {
        Err(error) if error.errno() != Some(Errno::ENODEV) => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use testing::{in_namespace, ip};

    use super::*;
    use crate::Protocol;

    #[test]
    fn a_name_that_another_link_has_is_no_dummy() {
        in_namespace(|| {
            let mut socket = Socket::open(Protocol::Route).unwrap();
            ip("link add kube-ipvs0 type bridge");
            let error = add_dummy(&mut socket, "kube-ipvs0").unwrap_err();
            let text = error.to_string();
            // A kernel without dummy links refuses that first.
            let expected = ["of kind bridge has that name", "no dummy links"];
            assert!(expected.iter().any(|words| text.contains(words)), "{text}");
            delete(&mut socket, "kube-ipvs0").unwrap();
            delete(&mut socket, "kube-ipvs0").expect("gone is fine");
        });
    }
}
