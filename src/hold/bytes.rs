//! Addresses and numbers in the bytes of records, which processes pass to each other. Pure.

use std::net::IpAddr;

/// Appends the length of the address, in bytes, and the address.
pub fn append_ip(bytes: &mut Vec<u8>, ip: IpAddr) {
    match ip {
        IpAddr::V4(ip) => {
            bytes.push(4);
            bytes.extend(ip.octets());
        }
        IpAddr::V6(ip) => {
            bytes.push(16);
            bytes.extend(ip.octets());
        }
    }
}

/// Takes from the beginning of `rest` what [`append_ip`] wrote; `None`: that is not there.
pub fn take_ip(rest: &mut &[u8]) -> Option<IpAddr> {
    match take(rest)? {
        [4] => Some(IpAddr::from(take::<4>(rest)?)),
        [16] => Some(IpAddr::from(take::<16>(rest)?)),
        _ => None,
    }
}

/// Takes `LENGTH` bytes from the beginning of `rest`; `None`: there are fewer.
pub fn take<const LENGTH: usize>(rest: &mut &[u8]) -> Option<[u8; LENGTH]> {
    let (taken, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(*taken)
}
