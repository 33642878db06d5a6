//! Reading data from the kernel: messages in a datagram, attributes in a message. Lengths are
//! checked before use: no bytes make it panic or loop.

use neli::consts::nl::NlmsgerrAttr;
use nix::{errno::Errno, libc};

use super::{error::Malformed, request::HEADER};

/// Low bits of an attribute's type; the others are flags (`linux/netlink.h`).
const TYPE_MASK: u16 = libc::NLA_TYPE_MASK as u16;

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    array(bytes, at).map(u16::from_ne_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_ne_bytes)
}

/// A message of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// Message type (`nlmsg_type`).
    pub kind: u16,
    /// The flags `NLM_F_*` of its header.
    pub flags: u16,
    /// Sequence number of the request it answers; 0 in notifications.
    pub sequence: u32,
    /// Everything after the netlink header.
    pub body: &'a [u8],
}

/// The content of an `NLMSG_ERROR`: an acknowledgement or a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub errno: Option<Errno>,
    /// The error's number, which may be private to a subsystem.
    pub number: i32,
    pub hint: Option<String>,
}

impl<'a> Message<'a> {
    /// Returns the fixed header of `N` bytes that the subsystem puts first.
    ///
    /// # Errors
    /// When the message is shorter.
    pub fn header<const N: usize>(&self) -> Result<[u8; N], Malformed> {
        array(self.body, 0).ok_or(Malformed("shorter than its fixed header"))
    }

    /// Returns the attributes after a fixed header of `header` bytes.
    pub fn attributes(&self, header: usize) -> Attributes<'a> {
        Attributes::after(self.body, header)
    }

    /// Reads the message as an `NLMSG_ERROR`, or as the `NLMSG_DONE` of a
    /// dump, which carries an error in the same place.
    pub(super) fn verdict(&self) -> Result<Verdict, Malformed> {
        let code = u32_at(self.body, 0).ok_or(Malformed("error message without a code"))? as i32;
        let number = code.wrapping_neg();
        let errno = (code != 0).then(|| Errno::from_raw(number));
        let mut hint = None;
        if self.flags & libc::NLM_F_ACK_TLVS as u16 != 0 {
            // The attributes follow the request's header, which is echoed, and
            // its body, which is not if the message is capped. An NLMSG_DONE
            // echoes nothing.
            let echoed = if self.kind == libc::NLMSG_DONE as u16 {
                0
            } else if self.flags & libc::NLM_F_CAPPED as u16 != 0 {
                HEADER
            } else {
                u32_at(self.body, 4).ok_or(Malformed("error message without its request"))? as usize
            };
            for attribute in self.attributes(echoed.saturating_add(4)).flatten() {
                if NlmsgerrAttr::from(attribute.kind) == NlmsgerrAttr::Msg {
                    hint = attribute.text().ok().map(str::to_owned);
                }
            }
        }
        Ok(Verdict {
            errno,
            number,
            hint,
        })
    }
}

/// The messages of a datagram. Ends after the first malformed one.
#[derive(Clone, Debug)]
pub struct Messages<'a> {
    rest: &'a [u8],
}

impl<'a> Messages<'a> {
    /// Returns an iterator over the messages of one datagram.
    pub fn new(datagram: &'a [u8]) -> Messages<'a> {
        Messages { rest: datagram }
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Result<Message<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let bytes = std::mem::take(&mut self.rest);
        if bytes.is_empty() {
            return None;
        }
        let message = (|| {
            let length = u32_at(bytes, 0)? as usize;
            let body = bytes.get(HEADER..length)?;
            self.rest = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
            Some(Message {
                kind: u16_at(bytes, 4)?,
                flags: u16_at(bytes, 6)?,
                sequence: u32_at(bytes, 8)?,
                body,
            })
        })();
        Some(message.ok_or(Malformed("message length does not fit the datagram")))
    }
}

/// An attribute of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribute<'a> {
    /// Type of the attribute, without flags.
    pub kind: u16,
    /// Content of the attribute.
    pub payload: &'a [u8],
}

impl<'a> Attribute<'a> {
    /// Returns the content as a number of 32 bits in host order.
    ///
    /// # Errors
    /// When it has another size.
    pub fn u32(&self) -> Result<u32, Malformed> {
        self.payload
            .try_into()
            .map(u32::from_ne_bytes)
            .map_err(|_| Malformed("attribute is not a number of 32 bits"))
    }

    /// Returns the content as a number of 64 bits in host order.
    ///
    /// # Errors
    /// When it has another size.
    pub fn u64(&self) -> Result<u64, Malformed> {
        self.payload
            .try_into()
            .map(u64::from_ne_bytes)
            .map_err(|_| Malformed("attribute is not a number of 64 bits"))
    }

    /// Returns the content as a number of 16 bits in host order.
    ///
    /// # Errors
    /// When it has another size.
    pub fn u16(&self) -> Result<u16, Malformed> {
        self.payload
            .try_into()
            .map(u16::from_ne_bytes)
            .map_err(|_| Malformed("attribute is not a number of 16 bits"))
    }

    /// Returns the content as a number of 32 bits in network order.
    ///
    /// # Errors
    /// When it has another size.
    pub fn be32(&self) -> Result<u32, Malformed> {
        self.u32().map(u32::from_be)
    }

    /// Returns the content as a number of 64 bits in network order.
    ///
    /// # Errors
    /// When it has another size.
    pub fn be64(&self) -> Result<u64, Malformed> {
        self.u64().map(u64::from_be)
    }

    /// Returns the content as a number of 16 bits in network order, as ports
    /// are.
    ///
    /// # Errors
    /// When it has another size.
    pub fn port(&self) -> Result<u16, Malformed> {
        self.u16().map(u16::from_be)
    }

    /// Returns the content as a number of 8 bits.
    ///
    /// # Errors
    /// When it has another size.
    pub fn u8(&self) -> Result<u8, Malformed> {
        match self.payload {
            [value] => Ok(*value),
            _ => Err(Malformed("attribute is not a number of 8 bits")),
        }
    }

    /// Returns the content as text, up to its NUL.
    ///
    /// # Errors
    /// When it is not UTF-8.
    pub fn text(&self) -> Result<&'a str, Malformed> {
        let end = self.payload.iter().position(|b| *b == 0);
        std::str::from_utf8(&self.payload[..end.unwrap_or(self.payload.len())])
            .map_err(|_| Malformed("attribute is not text"))
    }

    /// Returns the content as an IPv4 or IPv6 address, by its length.
    ///
    /// # Errors
    /// When it has neither length.
    pub fn ip(&self) -> Result<std::net::IpAddr, Malformed> {
        if let Ok(bytes) = <[u8; 4]>::try_from(self.payload) {
            Ok(bytes.into())
        } else if let Ok(bytes) = <[u8; 16]>::try_from(self.payload) {
            Ok(bytes.into())
        } else {
            Err(Malformed("attribute is not an address"))
        }
    }

    /// Returns the attributes within it.
    pub fn nested(&self) -> Attributes<'a> {
        Attributes { rest: self.payload }
    }
}

/// The attributes of a message. Ends after the first malformed one.
#[derive(Clone, Debug)]
pub struct Attributes<'a> {
    rest: &'a [u8],
}

impl<'a> Attributes<'a> {
    /// Returns an iterator over the attributes after a fixed header of `header`
    /// bytes in `body`.
    pub fn after(body: &'a [u8], header: usize) -> Attributes<'a> {
        let start = header.checked_next_multiple_of(4).unwrap_or(usize::MAX);
        Attributes {
            rest: body.get(start..).unwrap_or_default(),
        }
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Result<Attribute<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let bytes = std::mem::take(&mut self.rest);
        if bytes.is_empty() {
            return None;
        }
        let attribute = (|| {
            let length = usize::from(u16_at(bytes, 0)?);
            let payload = bytes.get(4..length)?;
            self.rest = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
            Some(Attribute {
                kind: u16_at(bytes, 2)? & TYPE_MASK,
                payload,
            })
        })();
        Some(attribute.ok_or(Malformed("attribute length does not fit its message")))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An `NLMSG_ERROR` as the kernel sends it, capped, with a text.
    fn refusal(code: i32, text: &str) -> Vec<u8> {
        let mut body = code.to_ne_bytes().to_vec();
        body.extend([0; HEADER]);
        let length = (4 + text.len() + 1) as u16;
        body.extend(length.to_ne_bytes());
        body.extend(u16::from(NlmsgerrAttr::Msg).to_ne_bytes());
        body.extend(text.as_bytes());
        body.push(0);
        body
    }

    #[test]
    fn a_refusal_keeps_code_and_text() {
        let body = refusal(-22, "Invalid dport range");
        let message = Message {
            kind: libc::NLMSG_ERROR as u16,
            flags: (libc::NLM_F_ACK_TLVS | libc::NLM_F_CAPPED) as u16,
            sequence: 1,
            body: &body,
        };
        let verdict = message.verdict().unwrap();
        assert_eq!(verdict.errno, Some(Errno::EINVAL));
        assert_eq!(verdict.hint.as_deref(), Some("Invalid dport range"));
        let plain = Message {
            flags: 0,
            body: &body[..4],
            ..message
        };
        assert_eq!(plain.verdict().unwrap().hint, None);
    }

    #[test]
    fn truncated_messages_are_named_not_read() {
        for length in [0u32, 3, 15, 21, u32::MAX] {
            let mut bytes = length.to_ne_bytes().to_vec();
            bytes.resize(20, 0);
            let all: Vec<_> = Messages::new(&bytes).collect();
            assert_eq!(all.len(), 1, "length {length}");
            assert!(all[0].is_err(), "length {length}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_neither_panic_nor_loop(
            bytes in prop::collection::vec(any::<u8>(), 0..256),
            header in 0usize..64,
        ) {
            let mut seen = 0;
            for message in Messages::new(&bytes) {
                seen += 1;
                let Ok(message) = message else { continue };
                let _ = message.verdict();
                for attribute in message.attributes(header).flatten() {
                    let _ = (attribute.u32(), attribute.u8(), attribute.text(), attribute.ip());
                    seen += attribute.nested().count();
                }
            }
            for attribute in Attributes::after(&bytes, header).flatten() {
                seen += attribute.nested().count();
            }
            prop_assert!(seen <= 2 * bytes.len());
        }

        /// Well-formed lengths around arbitrary contents reach the inner readers.
        #[test]
        fn arbitrary_errors_are_read_without_panic(
            body in prop::collection::vec(any::<u8>(), 0..64),
            flags in any::<u16>(),
            done in any::<bool>(),
        ) {
            let kind = if done { libc::NLMSG_DONE } else { libc::NLMSG_ERROR } as u16;
            let _ = Message { kind, flags, sequence: 0, body: &body }.verdict();
        }
    }
}
