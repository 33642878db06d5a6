//! Values by their meaning, and concatenations of them as octets.

use std::net::IpAddr;

use super::datatype::DataType;

/// A value of a key or a datum.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Value {
    /// An address of either family.
    Ip(IpAddr),
    /// A transport protocol (`IPPROTO_*`).
    Protocol(u8),
    /// A transport port, sent in network order.
    Port(u16),
    /// A number of 32 bits: a mark, a slot.
    Number(u32),
    /// An interface's name, cut to 15 octets.
    Name(String),
}

impl Value {
    /// Returns its octets, as the kernel compares them.
    pub fn octets(&self) -> Vec<u8> {
        let mut octets = Vec::with_capacity(16);
        self.append(&mut octets);
        octets
    }

    /// Its length in a concatenation of several.
    fn padded(&self) -> usize {
        match self {
            Value::Ip(IpAddr::V4(_)) | Value::Protocol(_) | Value::Port(_) | Value::Number(_) => 4,
            Value::Ip(IpAddr::V6(_)) => 16,
            Value::Name(_) => DataType::IfName.padded(),
        }
    }

    fn append(&self, octets: &mut Vec<u8>) {
        match self {
            Value::Ip(IpAddr::V4(ip)) => octets.extend(ip.octets()),
            Value::Ip(IpAddr::V6(ip)) => octets.extend(ip.octets()),
            Value::Protocol(number) => octets.push(*number),
            Value::Port(number) => octets.extend(number.to_be_bytes()),
            Value::Number(number) => octets.extend(number.to_ne_bytes()),
            Value::Name(name) => {
                let end = octets.len() + DataType::IfName.octets();
                octets.extend(name.bytes().take(DataType::IfName.octets() - 1));
                octets.resize(end, 0);
            }
        }
    }
}

/// Octets of a concatenation: each value begins at a multiple of four. A single value is not
/// padded.
pub fn concat(values: &[Value]) -> Vec<u8> {
    // Most are kept as boxes, which have no room to spare.
    let mut octets = Vec::with_capacity(values.iter().map(Value::padded).sum());
    for value in values {
        value.append(&mut octets);
        if values.len() > 1 {
            octets.resize(octets.len().next_multiple_of(4), 0);
        }
    }
    octets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_concatenation_is_filled_up_and_one_value_is_not() {
        let (ip, port) = (Value::Ip("10.0.0.1".parse().unwrap()), Value::Port(80));
        let tcp = Value::Protocol(6);
        assert_eq!(
            concat(&[ip, tcp, port.clone()]),
            [10, 0, 0, 1, 6, 0, 0, 0, 0, 80, 0, 0]
        );
        assert_eq!(concat(&[port]), [0, 80]);
        let name = Value::Name("eth0-with-a-name-too-long".to_owned()).octets();
        assert_eq!(name, *b"eth0-with-a-nam\0");
    }
}
