//! Ranges of ports that a Service requests with `tripod.proxy/ports`. Each becomes a port of the
//! Service, after those of the spec, whose endpoints get packets at the port that the client called.

use std::{fmt, num::NonZeroU16};

use net::Protocol;

use super::{Port, Preferences, Serving, address_limit::MOST_RANGES, names::Names};

/// Maximum number of ranges of one Service.
const MOST: usize = 16;

/// Maximum number of pairs of a range and an address of one Service: the kernel copies all ranges of a
/// map whenever one changes.
const MOST_PLACES: usize = 256;

/// A range of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    /// The first port.
    pub first: NonZeroU16,
    /// The last port; not less than the first.
    pub last: NonZeroU16,
    /// The protocol of all of them.
    pub protocol: Protocol,
}

impl PortRange {
    fn overlaps(&self, other: &PortRange) -> bool {
        self.protocol == other.protocol && self.first <= other.last && other.first <= self.last
    }

    /// Reads `10000-20000/UDP`, or `5060/UDP` for a single port.
    fn read(text: &str) -> Option<PortRange> {
        let (ports, protocol) = text.split_once('/')?;
        let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
        let number = |text: &str| {
            let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse().ok().filter(|_| is_number)
        };
        let range = PortRange {
            first: number(first)?,
            last: number(last)?,
            protocol: Protocol::named(protocol)?,
        };
        (range.first <= range.last).then_some(range)
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

/// Reads a list of ranges.
pub(super) fn parse(value: &str) -> Result<Box<[PortRange]>, String> {
    let mut ranges: Vec<PortRange> = Vec::new();
    for text in value.split(',').map(str::trim) {
        let range = PortRange::read(text).ok_or(
            "a range of ports is written as in 10000-20000/UDP, from 1 to 65535, and several are \
             separated by commas; no range is served",
        )?;
        if ranges.len() == MOST {
            let why = format!("a Service has at most {MOST} ranges of ports; no range is served");
            return Err(why);
        }
        if let Some(other) = ranges.iter().find(|other| other.overlaps(&range)) {
            let protocol = range.protocol;
            return Err(format!(
                "{range}/{protocol} overlaps {other}/{protocol}; no range is served"
            ));
        }
        ranges.push(range);
    }
    Ok(ranges.into())
}

impl Serving {
    /// Adds the ranges that the `preferences` request. A port of the spec may have the name that one
    /// of them would get: then there are none, and the preferences say so.
    pub(super) fn add_ranges(&mut self, preferences: &mut Preferences, names: &mut Names) {
        if preferences.ports.is_empty() {
            return;
        }
        let ranges = preferences.ports.iter().map(|range| Port {
            name: names.share(&range.to_string()),
            protocol: range.protocol,
            port: range.first.get(),
            last_port: Some(range.last),
            node_port: None,
        });
        let ranges: Vec<Port> = ranges.collect();
        let is_named = |one: &&Port| {
            let mut ports = self.ports.iter();
            ports.any(|port| port.name == one.name && port.protocol == one.protocol)
        };
        if let Some(named) = ranges.iter().find(is_named) {
            let why = format!(
                "a port of the Service has the name {}, which the range of these ports would get; \
                 no range is served",
                named.name
            );
            preferences.malformed.push((Preferences::PORTS, why));
            preferences.ports = Box::default();
            return;
        }
        let served = self.most_ranges().min(ranges.len());
        if served < ranges.len() {
            let why = format!(
                "the first {served} of its {} ranges of ports are served: at most {MOST_PLACES} pairs of \
                 a range and an address, and {MOST_RANGES} with loadBalancerSourceRanges; name fewer, \
                 or create several Services",
                ranges.len()
            );
            let others = preferences.too_many_addresses.take();
            let both = others.map(|others| format!("{others}; {why}"));
            preferences.too_many_addresses = Some(both.unwrap_or(why));
        }
        let ports = std::mem::take(&mut self.ports).into_vec();
        let ranges = ranges.into_iter().take(served);
        self.ports = ports.into_iter().chain(ranges).collect();
    }

    /// Returns how many ranges of ports may be served at so many addresses.
    fn most_ranges(&self) -> usize {
        let balancers = self.load_balancer_ips.len();
        let addresses = self.cluster_ips.len() + self.external_ips.len() + balancers;
        let filtered = balancers.saturating_mul(self.load_balancer_source_ranges.len());
        (MOST_PLACES / addresses.max(1)).min(MOST_RANGES / filtered.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_within_the_ports_and_do_not_overlap() {
        let sixteen: Vec<String> = (1..=17).map(|n| format!("{n}/UDP")).collect();
        for (value, expected) in [
            ("10000-20000/UDP", Ok("10000-20000/UDP")),
            (
                "10000-20000/udp, 30000-30100/TCP",
                Ok("10000-20000/UDP 30000-30100/TCP"),
            ),
            ("1-65535/SCTP", Ok("1-65535/SCTP")),
            ("5060/UDP", Ok("5060-5060/UDP")),
            (
                "65535/SCTP,65000-65534/SCTP",
                Ok("65535-65535/SCTP 65000-65534/SCTP"),
            ),
            ("9-9/TCP,9-9/UDP,9-9/SCTP", Ok("9-9/TCP 9-9/UDP 9-9/SCTP")),
            ("10-20/UDP,15-30/TCP", Ok("10-20/UDP 15-30/TCP")),
            ("10-20/UDP,20-30/UDP", Err("20-30/UDP overlaps 10-20/UDP")),
            ("", Err("is written as in")),
            ("10000-20000", Err("is written as in")),
            ("10000-20000/ICMP", Err("is written as in")),
            ("0-5/UDP", Err("is written as in")),
            ("5-65536/UDP", Err("is written as in")),
            ("+5-6/UDP", Err("is written as in")),
            ("6-5/UDP", Err("is written as in")),
            ("5-6/UDP,", Err("is written as in")),
            (&sixteen.join(","), Err("at most 16 ranges")),
        ] {
            let found = parse(value).map(|ranges| {
                let ranges = ranges.iter();
                let words = ranges.map(|range| format!("{range}/{}", range.protocol));
                words.collect::<Vec<_>>().join(" ")
            });
            match (&found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{value}"),
                (Err(why), Err(words)) => assert!(why.contains(words), "{value}: {why}"),
                _ => panic!("{value}: {found:?}, expected {expected:?}"),
            }
        }
        assert_eq!(parse(&sixteen[..16].join(",")).map(|all| all.len()), Ok(16));
    }

    #[test]
    fn the_product_of_ranges_and_addresses_is_bounded() {
        let ranges: Vec<String> = (1..=MOST)
            .map(|n| format!("{}-{}/UDP", n * 10, n * 10 + 5))
            .collect();
        let service = |addresses: usize, source_ranges: usize| {
            let ips: Vec<String> = (0..addresses).map(|n| format!("192.0.2.{n}")).collect();
            let sources: Vec<String> = (0..source_ranges)
                .map(|n| format!("10.{}.{}.0/32", n / 256, n % 256))
                .collect();
            let object = serde_json::json!({
                "metadata": {"name": "media", "annotations": {Preferences::PORTS: ranges.join(",")}},
                "spec": {
                    "type": "LoadBalancer", "clusterIP": "10.96.0.1", "ports": [{"port": 80}],
                    "externalIPs": ips, "loadBalancerSourceRanges": sources,
                },
                "status": {"loadBalancer": {"ingress": [{"ip": "198.51.100.1"}]}},
            });
            let object = serde_json::from_value(object).expect("a Service");
            let reduced = crate::services::Service::reduce(&object, &mut Names::default());
            let service = reduced.expect("it is served").object;
            let serving = service.serving.expect("it is served");
            let why = service
                .preferences
                .and_then(|all| all.too_many_addresses.clone());
            (serving.ports.len() - 1, why)
        };
        for (addresses, source_ranges, served) in [
            (14, 10, 16),
            (15, 0, 15),
            (126, 0, 2),
            (250, 0, 1),
            (255, 0, 0),
            (1, 20_000, 3),
        ] {
            let (found, why) = service(addresses, source_ranges);
            assert_eq!(found, served, "{addresses} {why:?}");
            assert_eq!(why.is_none(), served == MOST, "{why:?}");
            let words = format!("the first {served} of its 16 ranges");
            assert!(why.is_none_or(|why| why.contains(&words)));
        }
    }
}
