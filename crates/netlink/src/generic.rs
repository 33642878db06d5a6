//! Families of generic netlink, which have names instead of numbers
//! (`linux/genetlink.h`).

use neli::consts::{
    genl::{CtrlAttr, CtrlCmd},
    nl::GenlId,
};
use nix::errno::Errno;

use super::{Error, Malformed, Message, Request, Socket};

/// Size of `struct genlmsghdr`.
pub const HEADER: usize = 4;

/// Returns a `struct genlmsghdr`: command, version, two reserved bytes.
pub fn header(command: u8, version: u8) -> [u8; HEADER] {
    [command, version, 0, 0]
}

/// Reads the id of the family from a message; `None`: the message has none.
pub fn family_id(message: Message<'_>) -> Result<Option<u16>, Malformed> {
    for attribute in message.attributes(HEADER) {
        let attribute = attribute?;
        if CtrlAttr::from(attribute.kind) == CtrlAttr::FamilyId {
            return attribute.u16().map(Some);
        }
    }
    Ok(None)
}

impl Socket {
    /// Finds the id of the generic netlink family `name` on a socket of
    /// [`Protocol::Generic`](super::Protocol::Generic). The kernel tries to load a module for a
    /// name that it does not know.
    ///
    /// # Errors
    /// When there is no such family (`ENOENT`), or its number cannot be read.
    pub fn family(&mut self, name: &str) -> Result<u16, Error> {
        let request = Request::new(
            GenlId::Ctrl.into(),
            0,
            "find",
            format!("generic netlink family {name}"),
        )
        .header(&header(CtrlCmd::Getfamily.into(), 1))
        .text(CtrlAttr::FamilyName.into(), name);
        let found = self.call(&request, family_id)?;
        let found = found.first().copied();
        found.ok_or_else(|| request.failed(Errno::ENOENT))
    }
}
