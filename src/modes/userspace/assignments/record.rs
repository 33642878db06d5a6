//! Which endpoint each client is assigned to, as bytes for another process. Pure.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use net::{Family, Protocol};

use crate::hold::bytes::{append_ip, take, take_ip};

/// Maximum length of a record, in bytes.
pub const LONGEST: usize = 1000;

/// Maximum length of a label in bytes, which leaves room for entries.
const LONGEST_LABEL: usize = 500;

/// Why clients are assigned to an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// ClientIP affinity of a ServicePort.
    Affinity,
    /// UDP flows of a service group.
    Flows,
}

impl Kind {
    fn number(self) -> u8 {
        match self {
            Kind::Affinity => 1,
            Kind::Flows => 2,
        }
    }

    fn from_number(number: u8) -> Option<Kind> {
        let mut all = [Kind::Affinity, Kind::Flows].into_iter();
        all.find(|kind| kind.number() == number)
    }
}

/// The ServicePort or service group whose clients are recorded.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Subject {
    pub kind: Kind,
    pub protocol: Protocol,
    pub family: Family,
    /// Name of the ServicePort or of the service group.
    pub label: String,
}

/// The endpoint of one client, and when it was last used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The client's address; the port is 0 if all its ports are meant.
    pub client: SocketAddr,
    /// The called address; unspecified if all addresses are meant.
    pub called: IpAddr,
    /// The assigned endpoint.
    pub endpoint: SocketAddr,
    /// When the endpoint was last used, measured from the machine's start, to the millisecond.
    pub last_used: Duration,
}

/// Encodes the assignments in this order, into as few records as possible.
pub fn encode(subject: &Subject, assignments: &[Assignment]) -> Vec<Vec<u8>> {
    let mut records: Vec<Vec<u8>> = Vec::new();
    if subject.label.len() > LONGEST_LABEL {
        return records;
    }
    let begin = || {
        let length = subject.label.len() as u16;
        let family = match subject.family {
            Family::V4 => 4,
            Family::V6 => 6,
        };
        let mut bytes = vec![subject.kind.number(), subject.protocol.number(), family];
        bytes.extend(length.to_be_bytes());
        bytes.extend(subject.label.as_bytes());
        bytes
    };
    for assignment in assignments {
        let entry = assignment.encode();
        match records.last_mut() {
            Some(record) if record.len() + entry.len() <= LONGEST => record.extend(entry),
            _ => records.push([begin(), entry].concat()),
        }
    }
    records
}

/// Decodes a record; `None` if `bytes` are not one.
pub fn parse(bytes: &[u8]) -> Option<(Subject, Vec<Assignment>)> {
    let (&[kind, protocol, family, high, low], rest) = bytes.split_first_chunk()?;
    let (label, mut rest) = rest.split_at_checked(u16::from_be_bytes([high, low]).into())?;
    let subject = Subject {
        kind: Kind::from_number(kind)?,
        protocol: Protocol::from_number(protocol)?,
        family: match family {
            4 => Family::V4,
            6 => Family::V6,
            _ => return None,
        },
        label: std::str::from_utf8(label).ok()?.to_owned(),
    };
    let mut assignments = Vec::new();
    while !rest.is_empty() {
        assignments.push(Assignment::parse(&mut rest)?);
    }
    Some((subject, assignments))
}

/// Decodes arbitrary `bytes`, and checks that encoding and decoding the record again does not
/// change it; for fuzzing.
#[cfg(fuzzing)]
pub fn read_anything(bytes: &[u8]) {
    let Some((subject, assignments)) = parse(bytes) else {
        return;
    };
    let written = encode(&subject, &assignments);
    let read = written.iter().filter_map(|record| parse(record));
    let again: Vec<Assignment> = read.flat_map(|(_, assignments)| assignments).collect();
    assert!(again == assignments || subject.label.len() > LONGEST_LABEL);
}

impl Assignment {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        append_ip(&mut bytes, self.client.ip());
        bytes.extend(self.client.port().to_be_bytes());
        append_ip(&mut bytes, self.called);
        append_ip(&mut bytes, self.endpoint.ip());
        bytes.extend(self.endpoint.port().to_be_bytes());
        let milliseconds = u64::try_from(self.last_used.as_millis()).unwrap_or(u64::MAX);
        bytes.extend(milliseconds.to_be_bytes());
        bytes
    }

    /// Takes one assignment from the start of `rest`.
    fn parse(rest: &mut &[u8]) -> Option<Assignment> {
        let client = (take_ip(rest)?, u16::from_be_bytes(take(rest)?));
        let called = take_ip(rest)?;
        let endpoint = (take_ip(rest)?, u16::from_be_bytes(take(rest)?));
        Some(Assignment {
            client: client.into(),
            called,
            endpoint: endpoint.into(),
            last_used: Duration::from_millis(u64::from_be_bytes(take(rest)?)),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn subject() -> Subject {
        Subject {
            kind: Kind::Flows,
            protocol: Protocol::Udp,
            family: Family::V6,
            label: "internal kube-system/dns:dns".to_owned(),
        }
    }

    fn assignment(number: u16) -> Assignment {
        Assignment {
            client: format!("[fd00:1::{number:x}]:{number}").parse().unwrap(),
            called: "fd00::10".parse().unwrap(),
            endpoint: "[fd00:2::1]:53".parse().unwrap(),
            last_used: Duration::from_millis(u64::from(number)),
        }
    }

    #[test]
    fn as_many_records_as_it_takes_are_read_as_they_were_written() {
        let all: Vec<_> = (0..1_000).map(assignment).collect();
        let records = encode(&subject(), &all);
        assert!(records.len() > 60);
        let mut read = Vec::new();
        for record in &records {
            assert!(record.len() <= LONGEST);
            let (of, assignments) = parse(record).unwrap();
            assert_eq!(of, subject());
            read.extend(assignments);
        }
        assert_eq!(read, all);
        assert_eq!(encode(&subject(), &[]), Vec::<Vec<u8>>::new());
        let label = "x".repeat(LONGEST_LABEL + 1);
        let unnamed = Subject { label, ..subject() };
        assert!(encode(&unnamed, &all).is_empty());
    }

    #[test]
    fn what_is_cut_or_wrong_is_not_read() {
        let record = encode(&subject(), &[assignment(1)]).concat();
        for length in 0..record.len() {
            // The subject alone is a valid record without assignments.
            let whole = length == 5 + subject().label.len();
            assert_eq!(parse(&record[..length]).is_some(), whole, "{length}");
        }
        for at in 0..3 {
            let mut wrong = record.clone();
            wrong[at] = 9;
            assert_eq!(parse(&wrong), None);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(
            head in (0..4_u8, 0..40_u8, 3..8_u8),
            length in 0..8_u16,
            bytes in proptest::collection::vec(prop_oneof![any::<u8>(), Just(4), Just(16)], 0..200),
        ) {
            let mut record = vec![head.0, head.1, head.2];
            record.extend(length.to_be_bytes());
            record.extend(&bytes);
            if let Some((subject, assignments)) = parse(&record)
                && !assignments.is_empty()
            {
                prop_assert_eq!(encode(&subject, &assignments).concat(), record);
            }
        }
    }
}
