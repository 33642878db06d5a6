use netlink::{Messages, Request};
use proptest::prelude::*;

use super::*;

fn id() -> ServerId {
    ServerId {
        protocol: Protocol::Udp,
        address: "10.96.0.10:53".parse().unwrap(),
    }
}

/// The content of a request, to be read as the kernel's answer, which has the same form.
fn wire(request: &Request) -> Vec<u8> {
    let mut bytes = Vec::new();
    request.write(&mut bytes, 0, 1);
    bytes
}

fn server_strategy() -> impl Strategy<Value = VirtualServer> {
    (
        any::<SocketAddr>(),
        0usize..3,
        "[a-z]{1,15}",
        proptest::option::of(1u64..86_401),
        1u8..=32,
        any::<bool>(),
    )
        .prop_map(|(address, protocol, scheduler, seconds, bits, ports)| {
            let address = SocketAddr::new(address.ip(), address.port());
            VirtualServer {
                id: ServerId {
                    protocol: Protocol::ALL[protocol],
                    address,
                },
                scheduler: scheduler.into(),
                persistence: seconds.map(Duration::from_secs),
                client_bits: bits,
                flags: if ports { HASH_PORTS } else { 0 },
            }
        })
}

proptest! {
    #[test]
    fn a_virtual_server_reads_back_as_it_was_written(server in server_strategy()) {
        let bytes = wire(&encode::change(30, &Change::Add(server.clone())));
        let message = Messages::new(&bytes).next().unwrap().unwrap();
        let read = decode::server(&message).unwrap().unwrap();
        prop_assert_eq!(read, server);
    }

    #[test]
    fn a_real_server_reads_back_as_it_was_written(
        address in any::<SocketAddr>(),
        weight in 0u32..65_536,
        method in 0u32..4,
        wrapping in 0u8..3,
    ) {
        let real = RealServer {
            wrapping: match wrapping {
                0 => Wrapping::IpInIp,
                1 => Wrapping::Gue { port: 6080 },
                _ => Wrapping::Gre,
            },
            upper_threshold: 100,
            ..RealServer::new(
                SocketAddr::new(address.ip(), address.port()),
                weight,
                Forwarding::from_number(method).unwrap(),
            )
        };
        let bytes = wire(&encode::change(30, &Change::AddReal(id(), real)));
        let message = Messages::new(&bytes).next().unwrap().unwrap();
        let read = decode::real(&message, Family::V4).unwrap().unwrap();
        prop_assert_eq!(read.server, real);
    }
}

#[test]
fn without_ipvs_the_error_names_the_module() {
    // Where it is there, tests in the guest look closer.
    if let Err(error) = Ipvs::open() {
        let text = error.to_string();
        assert!(text.contains("ip_vs"), "{text}");
    }
}
