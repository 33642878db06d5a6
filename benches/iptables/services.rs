//! Services by number.

use std::net::{Ipv4Addr, SocketAddr};

use tripod::services::ServicePort;

use super::service_ports::{endpoint, endpoints, service_port};

pub const ENDPOINTS: u32 = 5;
pub const PORT: u16 = 80;

pub fn address(number: u32) -> Ipv4Addr {
    (u32::from(Ipv4Addr::new(10, 96, 0, 1)) + number).into()
}

/// A Service with its endpoints; `version` changes the address of one of them.
pub fn service(number: u32, version: u32) -> ServicePort {
    let moved = u32::from(Ipv4Addr::new(10, 247, 0, 1)) + version;
    let endpoint = |at: u32| {
        if at == 0 && version > 0 {
            (Ipv4Addr::from(moved), 8080).into()
        } else {
            endpoint_of(number, at)
        }
    };
    with(number, (0..ENDPOINTS).map(endpoint).collect())
}

/// The address of one of a Service's endpoints.
pub fn endpoint_of(number: u32, at: u32) -> SocketAddr {
    let first = u32::from(Ipv4Addr::new(10, 244, 0, 1));
    (Ipv4Addr::from(first + number * ENDPOINTS + at), 8080).into()
}

/// A Service with one endpoint.
pub fn single(number: u32, endpoint: SocketAddr) -> ServicePort {
    with(number, vec![endpoint])
}

/// A Service with these endpoints.
pub fn with(number: u32, all: Vec<SocketAddr>) -> ServicePort {
    ServicePort {
        port: PORT,
        endpoints: endpoints(all.into_iter().map(endpoint)),
        ..service_port(&format!("service-{number}"), address(number))
    }
}
