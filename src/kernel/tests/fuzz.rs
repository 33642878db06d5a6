//! Runs every parser of the kernel's answers and of saved tables on arbitrary bytes: for the fuzz
//! targets in `fuzz/`, and for property tests that always run.

use ipvs::{connections, decode, ipset, table};
use net::Family;
use netlink::{
    Message, Messages, addresses,
    conntrack::{events, flows},
    generic, links, next_hop, route_deletions, routes, rules, unix_listeners,
};
use xtables::{observed::Observed, rule::Table};

/// Parses `bytes` as a datagram, and as the body of each kind of answer. The result does not
/// matter; no bytes may make it panic or run for long.
pub fn netlink(bytes: &[u8]) {
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
        let _ = netlink::connections::parse(message, family);
        let _ = decode::real(&message, family);
    }
    let _ = addresses::parse(message);
    let _ = unix_listeners::parse(message);
    let _ = (links::index_of(message), links::kind_of(message));
    let _ = (next_hop::of_route(message), next_hop::gateways(message));
    let _ = route_deletions::is_of_ours(message);
    let _ = generic::family_id(message);
    let _ = flows::parse(message);
    let _ = events::parse(message);
    let _ = decode::server(&message);
    nftables::read_anything(message);
    let _ = ipset::client::listed(&message);
    for kind in ipset::Kind::ALL {
        let _ = ipset::client::members(&message, &mut kind.name().to_owned());
    }
}

/// Parses `text` as the output of `iptables-save`, with and without counts, with each way of
/// comparing chains. The result does not matter.
pub fn saved_tables(text: &str) {
    use xtables::observed::Interest;

    let interest = |_: Table, chain: &str| match chain.len() % 4 {
        0 => Interest::Foreign,
        1 => Interest::Whole,
        2 => Interest::ByRule,
        _ => Interest::Joint,
    };
    let mut observed = Observed::new(interest);
    for line in text.lines() {
        for table in Table::ALL {
            observed.line(table, line);
        }
        xtables::words::read_anything(line);
    }
    let chains = observed.chains();
    for table in Table::ALL {
        for name in text.split_whitespace() {
            let _ = (chains.contain(table, name), observed.rules(table, name));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_netlink_corpus_is_what_a_kernel_sent() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus/netlink");
        let bytes = |name: &str| std::fs::read(format!("{folder}/{name}")).unwrap();
        fn messages(bytes: &[u8]) -> Vec<Message<'_>> {
            Messages::new(bytes).collect::<Result<_, _>>().unwrap()
        }
        let (links, hops) = (bytes("links"), bytes("multipath"));
        let (deletions, families) = (bytes("route_deletions"), bytes("generic"));
        let kind = links::kind_of(messages(&links)[0]).unwrap();
        assert_eq!(kind.as_deref(), Some("veth"));
        let gateways = next_hop::gateways(messages(&hops)[0]).unwrap();
        assert_eq!(gateways.len(), 2);
        let ours = messages(&deletions).into_iter();
        let ours: Vec<bool> = ours.flat_map(route_deletions::is_of_ours).collect();
        assert_eq!(ours, [true, true]);
        let family = generic::family_id(messages(&families)[0]).unwrap();
        // GENL_ID_CTRL (linux/genetlink.h).
        assert_eq!(family, Some(16));
        for name in ["addresses", "route", "rules", "nft_rules", "nft_elements"] {
            netlink(&bytes(name));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5_000))]

        #[test]
        fn no_bytes_make_a_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            netlink(&bytes);
        }

        #[test]
        fn no_line_of_a_saved_table_makes_a_reader_panic(
            text in r#"((\*nat|:[A-Z]{1,4} (-|ACCEPT)|(\[[0-9]{0,3}:[0-9]{0,3}\] )?-A [A-Z]{1,4} ?[-\\" a-zé]{0,24}(-j|-g)? ?[A-Z"]{0,3})\n){0,12}"#,
        ) {
            saved_tables(&text);
        }
    }
}
