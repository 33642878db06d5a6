//! Families of generic netlink, which have names instead of numbers
//! (`linux/genetlink.h`).

use nix::errno::Errno;

use super::{Error, Request, Socket};

/// `GENL_ID_CTRL`, the family that knows the others.
const CONTROL: u16 = 0x10;
/// `CTRL_CMD_GETFAMILY`
const GET_FAMILY: u8 = 3;
/// `CTRL_ATTR_FAMILY_ID` and `CTRL_ATTR_FAMILY_NAME`
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// Size of `struct genlmsghdr`.
pub const HEADER: usize = 4;

/// `struct genlmsghdr`: command, version, two reserved bytes.
pub fn header(command: u8, version: u8) -> [u8; HEADER] {
    [command, version, 0, 0]
}

impl Socket {
    /// Returns the id of the generic netlink family `name` on a socket of
    /// [`Protocol::Generic`](super::Protocol::Generic). The kernel tries to
    /// load a module for a name that it does not know.
    ///
    /// # Errors
    /// When there is no such family (`ENOENT`), or its number cannot be read.
    pub fn family(&mut self, name: &str) -> Result<u16, Error> {
        let request = Request::new(CONTROL, 0, "find", format!("generic netlink family {name}"))
            .header(&header(GET_FAMILY, 1))
            .text(FAMILY_NAME, name);
        let found = self.call(&request, |message| {
            for attribute in message.attributes(HEADER) {
                let attribute = attribute?;
                if attribute.kind == FAMILY_ID {
                    return attribute.u16().map(Some);
                }
            }
            Ok(None)
        })?;
        found.into_iter().next().ok_or_else(|| Error::Refused {
            operation: "find",
            object: format!("generic netlink family {name}"),
            errno: Errno::ENOENT,
            hint: None,
        })
    }
}
