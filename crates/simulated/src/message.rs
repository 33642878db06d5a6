//! The messages of the simulated kernel: requests and answers.

use std::collections::BTreeMap;

use netlink::{Attribute, Attributes, Message, Request};
use nix::{errno::Errno, libc};

/// Why the kernel refuses: an error number of the system, or a private one of a subsystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refusal(pub(super) i32);

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Refusal {
        Refusal(errno as i32)
    }
}

/// Attributes of a message, as they came: type and payload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Stored(Vec<(u16, Box<[u8]>)>);

impl Stored {
    /// Stores the attributes of a message, except those of the types `without`.
    pub(super) fn of(attributes: Attributes<'_>, without: &[u16]) -> Stored {
        let all = attributes.flatten();
        let kept = all.filter(|attribute| !without.contains(&attribute.kind));
        Stored(
            kept.map(|attribute| (attribute.kind, attribute.payload.into()))
                .collect(),
        )
    }

    /// Returns whether there is one of that type.
    pub(super) fn has(&self, kind: u16) -> bool {
        self.0.iter().any(|(one, _)| *one == kind)
    }

    /// Returns `request` with these attributes appended, in their order.
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

/// The acknowledgement of a message, with the reason if it is refused.
pub(super) fn acknowledgement(
    of: &Message<'_>,
    outcome: Result<(), impl Into<Refusal>>,
) -> Vec<u8> {
    let code = outcome.err().map_or(0, |refusal| -refusal.into().0);
    let mut body = code.to_ne_bytes().to_vec();
    // The header of the acknowledged request, whose fields nobody reads.
    body.extend([0; 16]);
    let message = Request::new(libc::NLMSG_ERROR as u16, 0, "", "").header(&body);
    datagram(&message, libc::NLM_F_CAPPED, of.sequence)
}

/// The message that ends a list.
pub(super) fn done(of: &Message<'_>, outcome: Result<(), impl Into<Refusal>>) -> Vec<u8> {
    let code = outcome.err().map_or(0, |refusal| -refusal.into().0);
    let message = Request::new(libc::NLMSG_DONE as u16, 0, "", "").header(&code.to_ne_bytes());
    datagram(&message, libc::NLM_F_MULTI, of.sequence)
}

/// The answer to `of` with the `listed` objects, without its end; `interrupted`: half of it, and
/// the flag that it changed meanwhile.
pub(super) fn list(of: &Message<'_>, mut listed: Vec<Request>, interrupted: bool) -> Vec<Vec<u8>> {
    let mut flags = libc::NLM_F_MULTI;
    if interrupted {
        listed.truncate(listed.len().div_ceil(2));
        flags |= libc::NLM_F_DUMP_INTR;
        if listed.is_empty() {
            listed.push(Request::new(libc::NLMSG_NOOP as u16, 0, "", ""));
        }
    }
    let each = listed
        .iter()
        .map(|message| datagram(message, flags, of.sequence));
    each.collect()
}

/// The attributes of a message, by their types.
pub(super) struct ByKind<'a>(BTreeMap<u16, Attribute<'a>>);

impl<'a> ByKind<'a> {
    /// Returns the attributes by type; of several of one type, the last one.
    pub(super) fn of(attributes: Attributes<'a>) -> ByKind<'a> {
        ByKind(attributes.flatten().map(|one| (one.kind, one)).collect())
    }

    pub(super) fn get(&self, kind: u16) -> Option<&Attribute<'a>> {
        self.0.get(&kind)
    }

    /// The attribute of that type as a number of 32 bits in host order.
    pub(super) fn u32(&self, kind: u16) -> Option<u32> {
        self.get(kind)?.u32().ok()
    }

    /// The attribute of that type as a number of 8 bits.
    pub(super) fn u8(&self, kind: u16) -> Option<u8> {
        self.get(kind)?.u8().ok()
    }

    /// The attribute of that type as text.
    pub(super) fn text(&self, kind: u16) -> Option<&'a str> {
        self.get(kind)?.text().ok()
    }

    /// Returns the attributes within the one of that type.
    pub(super) fn nested(&self, kind: u16) -> Option<ByKind<'a>> {
        self.get(kind)
            .map(|attribute| ByKind::of(attribute.nested()))
    }
}
