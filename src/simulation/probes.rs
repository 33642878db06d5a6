//! The watched calls of Services.

use std::net::SocketAddr;

use simulated::packet::Packet;

use super::world::{
    Called, Caller, PORT, Probe, SERVICES, family, ip, node_address, node_port, protocol,
};

/// Returns the watched calls.
pub(super) fn probes() -> Vec<Probe> {
    use Called::{ClusterIp, ExternalIp, LoadBalancer, NodePort};
    use Caller::{Outside, Pod, Stranger};
    let calls = [
        (ClusterIp, Outside),
        (ClusterIp, Pod),
        (ClusterIp, Caller::Node),
        (ExternalIp, Outside),
        (ExternalIp, Pod),
        (LoadBalancer, Outside),
        (LoadBalancer, Stranger),
        (LoadBalancer, Pod),
        (NodePort, Outside),
        (NodePort, Pod),
    ];
    let of_service = |service| calls.map(|(called, caller)| probe(service, called, caller));
    (0..SERVICES).flat_map(of_service).collect()
}

fn probe(service: usize, called: Called, caller: Caller) -> Probe {
    let family = family(service);
    let (source, input) = match caller {
        Caller::Outside => (ip(family, 9, 1), Some("eth0")),
        Caller::Stranger => (ip(family, 8, 1), Some("eth0")),
        Caller::Pod => (ip(family, 244, 100), Some("cni0")),
        Caller::Node => (node_address(family), None),
    };
    Probe {
        service,
        called,
        caller,
        packet: Packet {
            source: (source, 40_000).into(),
            destination: called_at(service, called),
            protocol: protocol(service).number(),
            input,
            established: None,
        },
    }
}

/// Returns the address and port at which a Service is called in that way.
pub(super) fn called_at(number: usize, called: Called) -> SocketAddr {
    let family = family(number);
    let of_network = |network| (ip(family, network, number as u16 + 1), PORT).into();
    match called {
        Called::ClusterIp => of_network(96),
        Called::ExternalIp => of_network(51),
        Called::LoadBalancer => of_network(113),
        Called::NodePort => (node_address(family), node_port(number)).into(),
    }
}
