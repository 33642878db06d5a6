//! A UDP flow that continues in another process with its socket, as bytes that accompany the
//! socket. Pure.

use std::net::SocketAddr;

use super::record::{self, Assignment, Subject};
use crate::{
    hold::bytes::{append_ip, take, take_ip},
    modes::userspace::proxy::udp::Exchange,
};

/// State of a flow that another process needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowRecord {
    /// Identifies the flow on this connection.
    pub number: u64,
    /// The address of the socket that receives its client's datagrams.
    pub listener: SocketAddr,
    pub exchange: Exchange,
    /// The service group.
    pub subject: Subject,
    pub assignment: Assignment,
}

impl FlowRecord {
    /// Encodes the record; `None` if the name of its group is too long.
    pub fn encode(&self) -> Option<Vec<u8>> {
        let mut bytes = Vec::from(self.number.to_be_bytes());
        append_ip(&mut bytes, self.listener.ip());
        bytes.extend(self.listener.port().to_be_bytes());
        bytes.extend(self.exchange.sent.to_be_bytes());
        bytes.extend(self.exchange.received.to_be_bytes());
        bytes.push(self.exchange.converses.into());
        let records = record::encode(&self.subject, &[self.assignment]);
        bytes.extend(records.first()?);
        Some(bytes)
    }

    /// Decodes a record; `None` if `bytes` are not one.
    pub fn parse(mut bytes: &[u8]) -> Option<FlowRecord> {
        let number = u64::from_be_bytes(take(&mut bytes)?);
        let ip = take_ip(&mut bytes)?;
        let port = u16::from_be_bytes(take(&mut bytes)?);
        let exchange = Exchange {
            sent: u32::from_be_bytes(take(&mut bytes)?),
            received: u32::from_be_bytes(take(&mut bytes)?),
            converses: match take(&mut bytes)? {
                [0] => false,
                [1] => true,
                _ => return None,
            },
        };
        let (subject, assignments) = record::parse(bytes)?;
        let &[assignment] = assignments.as_slice() else {
            return None;
        };
        Some(FlowRecord {
            number,
            listener: (ip, port).into(),
            exchange,
            subject,
            assignment,
        })
    }
}

/// Decodes arbitrary `bytes`, and checks that encoding and decoding the record again does not
/// change it; for fuzzing.
#[cfg(fuzzing)]
pub fn read_anything(bytes: &[u8]) {
    if let Some(read) = FlowRecord::parse(bytes)
        && let Some(written) = read.encode()
    {
        assert_eq!(FlowRecord::parse(&written), Some(read));
    }
}
