//! `spec.loadBalancerSourceRanges`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use k8s_openapi::api::core::v1 as api;
use net::{Family, address::parse_cidr};

use super::{
    ServicePort,
    invalid::{Inspection, once},
};

/// Returns the clients that may use the load-balancer IPs, of both families.
pub(super) fn source_ranges(
    spec: &api::ServiceSpec,
    families: &[Family],
    inspection: &mut Inspection,
) -> Box<[IpNet]> {
    let listed = spec
        .load_balancer_source_ranges
        .as_deref()
        .unwrap_or_default();
    let mut found = Vec::with_capacity(listed.len());
    let mut unreadable = Vec::new();
    for (i, text) in listed.iter().enumerate() {
        // The API server's validation allows white space.
        match parse_cidr(text.trim()) {
            Some(range) => found.push(range),
            None => {
                inspection.skip(
                    format!("spec.loadBalancerSourceRanges[{i}]"),
                    text,
                    "not a CIDR such as 192.0.2.0/24",
                );
                unreadable.push(family_meant(text));
            }
        }
    }
    // No range of a family means everyone: if there are only mistakes, this must not open an
    // address that the author meant to close.
    let readable = |family| found.iter().any(|net| Family::of(&net.addr()) == family);
    let meant = |family| unreadable.contains(&family) || found.is_empty() && !listed.is_empty();
    let closed = families.iter().filter(|of| meant(**of) && !readable(**of));
    let closed: Vec<IpNet> = closed.map(|family| nobody(*family)).collect();
    found.extend(closed);
    once(found)
}

impl ServicePort {
    /// Returns whether nobody may reach its external and load-balancer IPs, because none of its
    /// source ranges can be parsed.
    pub fn is_closed(&self) -> bool {
        let nobody = nobody(self.name.family);
        self.load_balancer_source_ranges.contains(&nobody)
    }
}

/// Returns a range that contains no client: the limited broadcast address, and a reserved multicast
/// address. The kernel drops packets from such addresses.
pub(super) fn nobody(family: Family) -> IpNet {
    match family {
        Family::V4 => IpAddr::from(Ipv4Addr::BROADCAST).into(),
        Family::V6 => IpAddr::from(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0)).into(),
    }
}

/// Guesses the family of a range that cannot be parsed: only those of IPv6 have colons.
fn family_meant(text: &str) -> Family {
    if text.contains(':') {
        Family::V6
    } else {
        Family::V4
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::{Names, Reduced, Service};

    /// Without any range they would be open to everyone.
    #[test]
    fn source_ranges_that_cannot_be_read_close_addresses() {
        use Family::{V4, V6};
        let both = "clusterIPs: [10.0.0.1, 'fd00::1']";
        let cases = [
            ("clusterIP: 10.0.0.1", "[10.0.0.0, all]", &[V4][..], 2),
            ("clusterIP: 10.0.0.1", "['fd00::/129']", &[V4], 1),
            ("clusterIP: 10.0.0.1", "[10.0.0.0/8, all]", &[], 1),
            ("clusterIP: 10.0.0.1", "[]", &[], 0),
            (both, "[all]", &[V4, V6], 1),
            (both, "[10.0.0.0/8, 'fd00::/129']", &[V6], 1),
            (both, "['fd00::/64', '10.0.0.0/33']", &[V4], 1),
            (both, "[10.0.0.0/8]", &[], 0),
        ];
        for (ips, ranges, closed, skipped) in cases {
            let service = format!(
                "{{metadata: {{name: a}}, spec: {{{ips}, ports: [{{port: 80}}], \
                 loadBalancerSourceRanges: {ranges}}}}}"
            );
            let service = serde_saphyr::from_str(&service).expect("yaml");
            let Reduced { object, warnings } =
                Service::reduce(&service, &mut Names::default()).expect("it is served");
            let serving = object.serving.expect("it is served");
            for family in Family::ALL {
                let is_closed = serving.is_closed(family);
                assert_eq!(
                    is_closed,
                    closed.contains(&family),
                    "{ips} {ranges} {family}"
                );
            }
            assert_eq!(warnings.len(), skipped, "{warnings:#?}");
        }
    }
}
