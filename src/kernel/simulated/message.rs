//! The messages of the simulated kernel: what it reads, and what it answers.

use nix::{errno::Errno, libc};

use crate::kernel::netlink::{Attributes, Message, Request};

/// Attributes of a message, as they came: type and payload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Stored(Vec<(u16, Box<[u8]>)>);

impl Stored {
    /// Returns the attributes of a message, but for those of the types `without`.
    pub(super) fn of(attributes: Attributes<'_>, without: &[u16]) -> Stored {
        let all = attributes.flatten();
        let kept = all.filter(|attribute| !without.contains(&attribute.kind));
        Stored(
            kept.map(|attribute| (attribute.kind, attribute.payload.into()))
                .collect(),
        )
    }

    /// Appends them.
    pub(super) fn write(&self, request: Request) -> Request {
        let each = |request: Request, (kind, payload): &(u16, Box<[u8]>)| {
            request.attribute(*kind, payload)
        };
        self.0.iter().fold(request, each)
    }
}

/// Returns a message of the kernel's, on its own in a datagram.
pub(super) fn datagram(message: &Request, flags: i32, sequence: u32) -> Vec<u8> {
    let mut datagram = Vec::new();
    message.write(&mut datagram, flags as u16, sequence);
    datagram
}

/// Returns a message of type `kind`.
pub(super) fn answer(kind: u16, family: u8) -> Request {
    Request::new(kind, 0, "", "").nfgenmsg(family)
}

/// Returns the acknowledgement of a message, or why it is refused.
pub(super) fn acknowledgement(of: &Message<'_>, outcome: Result<(), Errno>) -> Vec<u8> {
    let code = outcome.err().map_or(0, |errno| -(errno as i32));
    let mut body = code.to_ne_bytes().to_vec();
    // The header of what is answered, whose fields nobody reads.
    body.extend([0; 16]);
    let message = Request::new(libc::NLMSG_ERROR as u16, 0, "", "").header(&body);
    datagram(&message, libc::NLM_F_CAPPED, of.sequence)
}

/// Returns the end of a list.
pub(super) fn done(of: &Message<'_>, outcome: Result<(), Errno>) -> Vec<u8> {
    let code = outcome.err().map_or(0, |errno| -(errno as i32));
    let message = Request::new(libc::NLMSG_DONE as u16, 0, "", "").header(&code.to_ne_bytes());
    datagram(&message, libc::NLM_F_MULTI, of.sequence)
}
