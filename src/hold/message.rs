//! The records that processes exchange over a unix socket, as bytes. Pure.
//!
//! A *giver* has sockets for the process at the other end: the holder those of processes that have
//! ended, and a process that serves its own ones. Both sides greet first, with their version.
//!
//! ```text
//! proxy                                      holder
//! Hello                                ──►
//!                                      ◄──   Hello
//!                                      ◄──   Give, Flow, Note: for all that ended proxies left
//!                                      ◄──   All
//! Hold: a socket that it has opened    ──►
//!                                      ◄──   Held
//! Release: one that was held or given  ──►
//! Note, Flow: for the next proxy       ──►
//!
//! successor                                  predecessor
//! Hello                                ──►
//!                                      ◄──   Hello
//!                                      ◄──   Port: for each socket on which it answers about itself
//!                                      ◄──   All
//! TakeOver: it is about to sync        ──►   gives way
//!                                      ◄──   Give, Flow: for all of its sockets and UDP flows
//!                                      ◄──   All
//! Port: it answers at this address     ──►   leaves that to it
//! Held: it accepts there once it serves ──►
//! Serves: its first sync is applied    ──►   stops accepting and receiving there
//!                                      ◄──   Flow: for each that began meanwhile
//!                                      ◄──   Note: which client has which endpoint
//!                                      ◄──   All
//! accepts and receives
//! end of the connection                ──►   serves again
//! ```
//!
//! A number names a socket on one connection; a proxy chooses the numbers of its own sockets, the
//! holder those of the sockets that it gives, from [`FIRST_OF_HOLDER`] on. Numbers are big endian.

use std::{net::SocketAddr, sync::Arc};

use net::Protocol;

use super::bytes::{append_ip, take, take_ip};
use crate::kernel::socket::bound::BoundAddress;

/// The version of the records. Both sides use the lower of theirs, so that processes work together
/// while only one of them is upgraded: a later version has to support all from [`OLDEST`] on.
pub const VERSION: u16 = 1;

/// The oldest version that is supported. A proxy for which the holder is too old greets it with
/// version 0, and the holder closes what it has: see [`is_spoken`].
pub const OLDEST: u16 = 1;

/// Returns whether records are exchanged with a side that greets with `version`.
pub fn is_spoken(version: u16) -> bool {
    version >= OLDEST
}

/// The longest record, in bytes.
pub const LONGEST: usize = 1100;

/// The longest label, in bytes. Names of Kubernetes have 253 at most, and a label has three of them
/// (RFC 1123).
pub const LONGEST_LABEL: usize = 960;

/// The first number of those that the holder chooses.
pub const FIRST_OF_HOLDER: u64 = 1 << 63;

/// Description of a socket that is passed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SocketDescription {
    /// What it is bound to; a TCP socket listens.
    pub bound: BoundAddress,
    /// What the proxy opened it for, in its own format.
    pub label: Arc<str>,
}

/// What one side says to the other, in one datagram of the socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The first one of either side, with its version.
    Hello(u16),
    /// Comes with a socket to hold.
    Hold(u64, SocketDescription),
    /// The socket of this number is held.
    Held(u64),
    /// The socket of this number need not be held any more.
    Release(u64),
    /// Comes with a socket that no process serves.
    Give(u64, SocketDescription),
    /// There are no more of these now.
    All,
    /// A note that a proxy leaves for the next one, in its own format.
    Note(Vec<u8>),
    /// Comes with the socket of a UDP flow: what the next proxy must know of the flow, in the
    /// proxies' own format.
    Flow(Vec<u8>),
    /// The successor is about to sync for the first time.
    TakeOver,
    /// The successor's first sync is applied.
    Serves,
    /// From a predecessor, with a listening socket: it answers there about itself. From a
    /// successor, without: now this process does.
    Port(SocketAddr),
}

/// Kinds of records, as their first byte.
mod kind {
    pub(super) const HELLO: u8 = 1;
    pub(super) const HOLD: u8 = 2;
    pub(super) const HELD: u8 = 3;
    pub(super) const RELEASE: u8 = 4;
    pub(super) const GIVE: u8 = 5;
    pub(super) const ALL: u8 = 6;
    pub(super) const NOTE: u8 = 7;
    pub(super) const FLOW: u8 = 8;
    pub(super) const TAKE_OVER: u8 = 9;
    pub(super) const SERVES: u8 = 10;
    pub(super) const PORT: u8 = 11;
}

impl Message {
    /// Returns the record's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let numbered = |kind, number: &u64| {
            let mut bytes = vec![kind];
            bytes.extend(number.to_be_bytes());
            bytes
        };
        match self {
            Message::Hello(version) => {
                let mut bytes = vec![kind::HELLO];
                bytes.extend(version.to_be_bytes());
                bytes
            }
            Message::Hold(number, description) => {
                description.append_to(numbered(kind::HOLD, number))
            }
            Message::Give(number, description) => {
                description.append_to(numbered(kind::GIVE, number))
            }
            Message::Held(number) => numbered(kind::HELD, number),
            Message::Release(number) => numbered(kind::RELEASE, number),
            Message::All => vec![kind::ALL],
            Message::Note(note) => [&[kind::NOTE][..], note].concat(),
            Message::Flow(flow) => [&[kind::FLOW][..], flow].concat(),
            Message::TakeOver => vec![kind::TAKE_OVER],
            Message::Serves => vec![kind::SERVES],
            Message::Port(address) => append_address(vec![kind::PORT], *address),
        }
    }

    /// Returns the record that `bytes` are; `None`: they are none of this version.
    pub fn parse(bytes: &[u8]) -> Option<Message> {
        let (&kind, rest) = bytes.split_first()?;
        Some(match kind {
            kind::HELLO => Message::Hello(u16::from_be_bytes(rest.try_into().ok()?)),
            kind::HOLD => {
                let (number, description) = rest.split_first_chunk()?;
                Message::Hold(
                    u64::from_be_bytes(*number),
                    SocketDescription::parse(description)?,
                )
            }
            kind::GIVE => {
                let (number, description) = rest.split_first_chunk()?;
                Message::Give(
                    u64::from_be_bytes(*number),
                    SocketDescription::parse(description)?,
                )
            }
            kind::HELD => Message::Held(u64::from_be_bytes(rest.try_into().ok()?)),
            kind::RELEASE => Message::Release(u64::from_be_bytes(rest.try_into().ok()?)),
            kind::ALL if rest.is_empty() => Message::All,
            kind::NOTE => Message::Note(rest.to_vec()),
            kind::FLOW => Message::Flow(rest.to_vec()),
            kind::TAKE_OVER if rest.is_empty() => Message::TakeOver,
            kind::SERVES if rest.is_empty() => Message::Serves,
            kind::PORT => {
                let mut rest = rest;
                let address = take_address(&mut rest)?;
                rest.is_empty().then_some(Message::Port(address))?
            }
            _ => return None,
        })
    }
}

fn append_address(mut bytes: Vec<u8>, address: SocketAddr) -> Vec<u8> {
    bytes.extend(address.port().to_be_bytes());
    append_ip(&mut bytes, address.ip());
    bytes
}

fn take_address(bytes: &mut &[u8]) -> Option<SocketAddr> {
    let port = u16::from_be_bytes(take(bytes)?);
    Some((take_ip(bytes)?, port).into())
}

/// Reads `bytes` as a record, which must be the same once written and read; for tests
/// with bytes from anywhere.
#[cfg(fuzzing)]
pub fn read_anything(bytes: &[u8]) {
    if let Some(message) = Message::parse(bytes) {
        assert_eq!(Message::parse(&message.encode()), Some(message));
    }
}

impl SocketDescription {
    /// Appends the protocol's number (IANA), the port, the length of the address, the
    /// address and the label.
    fn append_to(&self, mut bytes: Vec<u8>) -> Vec<u8> {
        bytes.push(self.bound.protocol.number());
        bytes = append_address(bytes, self.bound.address);
        bytes.extend(self.label.as_bytes());
        bytes
    }

    fn parse(mut bytes: &[u8]) -> Option<SocketDescription> {
        let [protocol] = take(&mut bytes)?;
        let protocol = Protocol::from_number(protocol)?;
        let address = take_address(&mut bytes)?;
        let label = std::str::from_utf8(bytes).ok()?;
        (label.len() <= LONGEST_LABEL).then(|| SocketDescription {
            bound: BoundAddress { protocol, address },
            label: label.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use proptest::prelude::*;

    use super::*;

    fn description(address: &str, label: &str) -> SocketDescription {
        SocketDescription {
            bound: BoundAddress {
                protocol: Protocol::Udp,
                address: address.parse().unwrap(),
            },
            label: label.into(),
        }
    }

    #[test]
    fn records_are_read_as_they_were_written() {
        for message in [
            Message::Hello(VERSION),
            Message::Hello(0),
            Message::Hold(
                1,
                description("10.96.0.10:53", "internal kube-system/dns:dns"),
            ),
            Message::Give(FIRST_OF_HOLDER, description("[fd00::10]:53", "")),
            Message::Held(u64::MAX),
            Message::Release(0),
            Message::All,
            Message::Note(b"note".to_vec()),
            Message::Flow(b"flow".to_vec()),
            Message::TakeOver,
            Message::Serves,
            Message::Port("[fd00::10]:10256".parse().unwrap()),
        ] {
            assert_eq!(Message::parse(&message.encode()), Some(message));
        }
        let hello = [1, 0, 1];
        assert_eq!(Message::Hello(1).encode(), hello, "as every version has it");
    }

    #[test]
    fn what_is_no_record_is_not_read() {
        let hold = Message::Hold(1, description("10.96.0.10:53", "x")).encode();
        let held = Message::Held(1).encode();
        let with = |at: usize, byte: u8| {
            let mut bytes = hold.clone();
            bytes[at] = byte;
            bytes
        };
        let long = [&hold[..], &[b'x'; LONGEST_LABEL]].concat();
        for bytes in [
            &[][..],
            &[0],
            &[12],
            &[9, 0],
            &[6, 0],
            &held[..8],
            &[&held[..], &[0]].concat(),
            &hold[..16],
            &with(9, 1),
            &with(12, 5),
            &with(12, 16),
            &with(17, 0xff),
            &long,
        ] {
            assert_eq!(Message::parse(bytes), None, "{bytes:?}");
        }
        let longest = description("[fd00::10]:53", &"x".repeat(LONGEST_LABEL));
        assert!(Message::Hold(1, longest).encode().len() <= LONGEST);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_record_that_is_written_the_same_or_none(
            kind in 0..13_u8,
            bytes in proptest::collection::vec(any::<u8>(), 0..60),
        ) {
            let bytes = [&[kind][..], &bytes].concat();
            if let Some(message) = Message::parse(&bytes) {
                prop_assert_eq!(message.encode(), bytes);
            }
        }

        #[test]
        fn every_claim_is_read_as_it_was_written(
            number in any::<u64>(),
            udp in any::<bool>(),
            ip in any::<IpAddr>(),
            port in any::<u16>(),
            label in "\\PC{0,100}",
        ) {
            let protocol = [Protocol::Tcp, Protocol::Udp][usize::from(udp)];
            let description = SocketDescription {
                bound: BoundAddress { protocol, address: (ip, port).into() },
                label: label.into(),
            };
            let message = Message::Hold(number, description);
            prop_assert_eq!(Message::parse(&message.encode()), Some(message));
        }
    }
}
