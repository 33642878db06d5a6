//! Building requests: header, fixed part, attributes (`linux/netlink.h`).

use nix::libc;

use super::error::{Error, Reason};

/// Size of `struct nlmsghdr`.
pub(super) const HEADER: usize = 16;

/// Longest attribute in bytes, a multiple of four as all that it contains.
const LONGEST: usize = 65_532;

/// A request: its message, and the words for an error about it.
#[derive(Clone, Debug)]
pub struct Request {
    operation: &'static str,
    object: String,
    kind: u16,
    flags: u16,
    body: Vec<u8>,
}

impl Request {
    /// Starts a request of message type `kind` with `flags` (`NLM_F_*`; REQUEST and ACK or DUMP are
    /// added when it is sent). `operation` is a verb and `object` its object: an error reads
    /// "cannot *add* *route …*".
    pub fn new(
        kind: u16,
        flags: u16,
        operation: &'static str,
        object: impl Into<String>,
    ) -> Request {
        Request {
            operation,
            object: object.into(),
            kind,
            flags,
            body: Vec::with_capacity(64),
        }
    }

    /// Appends the subsystem's fixed header (`struct rtmsg`, `genlmsghdr`, …).
    #[must_use]
    pub fn header(mut self, bytes: &[u8]) -> Request {
        self.body.extend_from_slice(bytes);
        pad(&mut self.body);
        self
    }

    /// Appends an attribute. A payload longer than 65,531 bytes does not fit the length field and
    /// is cut; Tripod sends none that is nearly as long.
    #[must_use]
    pub fn attribute(mut self, kind: u16, payload: &[u8]) -> Request {
        let payload = &payload[..payload.len().min(usize::from(u16::MAX) - 4)];
        let length = (payload.len() + 4) as u16;
        self.body.extend_from_slice(&length.to_ne_bytes());
        self.body.extend_from_slice(&kind.to_ne_bytes());
        self.body.extend_from_slice(payload);
        pad(&mut self.body);
        self
    }

    /// Appends an attribute that is a number of 32 bits in host order.
    #[must_use]
    pub fn u32(self, kind: u16, value: u32) -> Request {
        self.attribute(kind, &value.to_ne_bytes())
    }

    /// Appends an attribute that is a number of 32 bits in network order.
    #[must_use]
    pub fn be32(self, kind: u16, value: u32) -> Request {
        self.attribute(kind, &value.to_be_bytes())
    }

    /// Appends an attribute that is a number of 64 bits in network order.
    #[must_use]
    pub fn be64(self, kind: u16, value: u64) -> Request {
        self.attribute(kind, &value.to_be_bytes())
    }

    /// Appends a text attribute, with the NUL that the kernel demands.
    #[must_use]
    pub fn text(self, kind: u16, value: &str) -> Request {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.attribute(kind, &bytes)
    }

    /// Appends an attribute that contains the attributes which `fill` appends, flagged as nested. A
    /// content longer than 65,528 bytes is cut.
    #[must_use]
    pub fn nested(mut self, kind: u16, fill: impl FnOnce(Request) -> Request) -> Request {
        let start = self.body.len();
        self = self.attribute(kind | libc::NLA_F_NESTED as u16, &[]);
        let mut filled = fill(self);
        filled.body.truncate(start + LONGEST);
        let length = (filled.body.len() - start) as u16;
        filled.body[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        filled
    }

    /// Returns the error that it failed for this reason.
    pub(super) fn failed(&self, reason: impl Into<Reason>) -> Error {
        Error::new(self.operation, &self.object, reason)
    }

    /// Length of the message in bytes, with its header.
    pub(super) fn len(&self) -> usize {
        HEADER + self.body.len()
    }

    /// Appends the whole message to `datagram`.
    pub fn write(&self, datagram: &mut Vec<u8>, flags: u16, sequence: u32) {
        let flags = self.flags | flags | libc::NLM_F_REQUEST as u16;
        datagram.extend_from_slice(&(self.len() as u32).to_ne_bytes());
        datagram.extend_from_slice(&self.kind.to_ne_bytes());
        datagram.extend_from_slice(&flags.to_ne_bytes());
        datagram.extend_from_slice(&sequence.to_ne_bytes());
        datagram.extend_from_slice(&[0; 4]);
        datagram.extend_from_slice(&self.body);
    }
}

fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Attributes, Messages};

    #[test]
    fn what_is_written_reads_back() {
        let request = Request::new(24, 0x400, "add", "x")
            .header(&[1; 5])
            .u32(1, 7)
            .nested(2, |r| r.text(3, "lo").attribute(4, &[9]))
            .attribute(5, &[]);
        let mut wire = Vec::new();
        request.write(&mut wire, 0x4, 42);
        request.write(&mut wire, 0, 43);
        let messages: Vec<_> = Messages::new(&wire).map(Result::unwrap).collect();
        assert_eq!(messages.len(), 2);
        assert_eq!(
            (messages[0].kind, messages[0].flags, messages[0].sequence),
            (24, 0x405, 42)
        );
        let attributes: Vec<_> = Attributes::after(messages[1].body, 5)
            .map(Result::unwrap)
            .collect();
        assert_eq!(
            attributes.iter().map(|a| a.kind).collect::<Vec<_>>(),
            [1, 2, 5]
        );
        assert_eq!(attributes[0].u32(), Ok(7));
        let inner: Vec<_> = attributes[1].nested().map(Result::unwrap).collect();
        assert_eq!(inner[0].text(), Ok("lo"));
        assert_eq!(inner[1].payload, [9]);
        assert!(attributes[2].payload.is_empty());
    }
}
