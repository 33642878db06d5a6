//! Runs every reader of the kernel's answers on any bytes: for the fuzz targets
//! in `fuzz/`, and for a property test that always runs.

use super::{
    addresses,
    conntrack::{events, flows},
    ipset,
    ipvs::{connections, decode, table},
    netlink::{Message, Messages},
    nftables, routes, rules,
};
use crate::net::Family;

/// Reads `bytes` as a datagram, and as the body of each kind of answer. The
/// result does not matter; no bytes may make it panic or run for long.
pub fn fuzz(bytes: &[u8]) {
    let (kind, body) = match bytes.split_first_chunk() {
        Some((kind, body)) => (u16::from_ne_bytes(*kind), body),
        None => (0, bytes),
    };
    let alone = Message {
        kind,
        flags: 0,
        sequence: 0,
        body,
    };
    let _ = table::parse(bytes, |_, _| ());
    let _ = connections::parse(&String::from_utf8_lossy(bytes));
    for message in Messages::new(bytes).flatten().chain([alone]) {
        read(message);
    }
}

fn read(message: Message<'_>) {
    for family in Family::ALL {
        let _ = routes::parse(message, family);
        let _ = rules::parse(message, family);
        let _ = decode::real(&message, family);
    }
    let _ = addresses::parse(message);
    let _ = flows::parse(message);
    let _ = events::parse(message);
    let _ = decode::server(&message);
    nftables::read_anything(message);
    let _ = ipset::client::listed(&message);
    for kind in ipset::Kind::ALL {
        let _ = ipset::client::members(&message, &mut kind.name().to_owned());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::fuzz;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5_000))]

        #[test]
        fn no_bytes_make_a_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            fuzz(&bytes);
        }
    }
}
