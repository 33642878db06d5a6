//! ServicePorts made by hand, and random ones.

use std::{net::IpAddr, num::NonZeroU32, sync::Arc, time::Duration};

use net::Family;

use crate::services::{
    Endpoint, Endpoints, Preferences, ServicePort,
    service_ports::{self, service_port},
};

/// The address with this last part.
pub fn ip(family: Family, network: u8, last: u16) -> IpAddr {
    let [high, low] = last.to_be_bytes();
    match family {
        Family::V4 => [10, network, high, low].into(),
        Family::V6 => [0xfd00, u16::from(network), 0, 0, 0, 0, 0, last].into(),
    }
}

/// A Service of a cluster IP alone, TCP port 80, without endpoints.
pub fn service(family: Family, number: u16) -> ServicePort {
    service_port(&format!("web-{number}:http"), ip(family, 96, number))
}

/// The same with endpoints of weight 1, by their last parts; even ones are on
/// this node.
pub fn on(family: Family, number: u16, last: &[u16]) -> ServicePort {
    let weighed: Vec<_> = last.iter().map(|last| (*last, 1)).collect();
    ServicePort {
        endpoints: endpoints(family, &weighed),
        ..service(family, number)
    }
}

/// Everything that can be called from outside.
pub fn exposed(port: ServicePort) -> ServicePort {
    let family = port.name.family;
    let ServicePort { cluster_ip, .. } = port;
    let number = match cluster_ip {
        Some(IpAddr::V4(ip)) => u16::from_be_bytes([ip.octets()[2], ip.octets()[3]]),
        Some(IpAddr::V6(ip)) => ip.segments()[7],
        None => 0,
    };
    ServicePort {
        node_port: Some(30_000 + number),
        external_ips: [ip(family, 51, number)].into(),
        load_balancer_ips: [ip(family, 113, number)].into(),
        ..port
    }
}

/// Last part and weight of each; even ones are on this node. All are ready.
pub fn endpoints(family: Family, of: &[(u16, u16)]) -> Arc<Endpoints> {
    let all = of.iter().map(|(last, weight)| Endpoint {
        local: last.is_multiple_of(2),
        node_name: Some("node".into()),
        weight: *weight,
        ..service_ports::endpoint((ip(family, 244, *last), 8080))
    });
    service_ports::endpoints(all)
}

fn with_small_tables() -> Preferences {
    Preferences {
        hash_table_size: NonZeroU32::new(7),
        ..Preferences::default()
    }
}

/// The same with annotations that ask for a scheduler, and for small tables.
pub fn scheduled(port: ServicePort, scheduler: &str) -> ServicePort {
    let preferences = Preferences {
        scheduler: Some(scheduler.into()),
        ..with_small_tables()
    };
    ServicePort {
        preferences: Some(Arc::new(preferences)),
        ..port
    }
}

/// Returns the same with the maximum numbers of connections of the Service and of each client.
pub fn limited(port: ServicePort, service: u32, client: u32) -> ServicePort {
    let preferences = Preferences {
        max_connections: NonZeroU32::new(service),
        max_connections_per_client: NonZeroU32::new(client),
        ..port.preferences().clone()
    };
    ServicePort {
        preferences: Some(Arc::new(preferences)),
        ..port
    }
}

/// Returns the same with clients that stay on their endpoint for that number of seconds.
pub fn sticky(port: ServicePort, seconds: u64) -> ServicePort {
    let timeout = Duration::from_secs(seconds);
    ServicePort {
        session_affinity: Some(timeout),
        // A hash stands for it where the kernel has no dynamic maps.
        preferences: Some(Arc::new(with_small_tables())),
        ..port
    }
}
