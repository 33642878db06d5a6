//! Random ServicePorts with all that the API has, and random options.

use std::{net::IpAddr, num::NonZeroU16, sync::Arc, time::Duration};

use net::{Family, Protocol};

use super::{
    super::plan::{Features, Options},
    world::{ip, limited, scheduled, sticky},
};
use crate::{
    kernel::probe::NftPart,
    modes::detect_local::DetectLocal,
    services::{
        Endpoint, Endpoints, Grown, Namespaces, ServicePort, TrafficPolicy,
        service_ports::{self, service_port},
    },
};

/// How many ServicePorts there may be, numbered from 0 on. Two each are of one
/// Service and have its addresses.
pub const PORTS: u16 = 6;

/// How far an endpoint has grown after so many tenths of its slow start.
fn tenths(tenths: u64) -> Grown {
    Grown::after(Duration::from_secs(tenths), Duration::from_secs(10))
}

/// A number whose digits make choices; 0 makes the simplest ones.
struct Choices(u128);

impl Choices {
    /// Returns one of the numbers below `count`.
    fn below(&mut self, count: u8) -> u8 {
        let digit = self.0 % u128::from(count);
        self.0 /= u128::from(count);
        digit as u8
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[usize::from(self.below(of.len() as u8))]
    }

    fn flag(&mut self) -> bool {
        self.below(2) == 1
    }
}

/// The ServicePort of that number without endpoints, on its cluster IP.
pub fn plain(family: Family, number: u16) -> ServicePort {
    let service = number / 2;
    let mut port = service_port(
        &format!("web-{service}:p{number}"),
        ip(family, 96, service + 1),
    );
    let protocol = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp][usize::from(number % 3)];
    port.name = port.name.over(protocol);
    port
}

/// The ServicePort of that number that `choices` make; `None`: it is gone.
pub fn port(family: Family, number: u16, choices: u128) -> Option<ServicePort> {
    let mut choices = Choices(choices);
    if choices.below(6) == 5 {
        return None;
    }
    let of_service = ip(family, 51, 2 * (number / 2) + 1);
    let others = [of_service, ip(family, 51, 2 * (number / 2) + 2)];
    let balancers = [
        ip(family, 113, number / 2),
        if choices.flag() {
            others[0]
        } else {
            ip(family, 114, number / 2)
        },
    ];
    let networks = match family {
        Family::V4 => ["10.1.0.0/16", "10.1.2.0/24", "10.7.0.1/32"],
        Family::V6 => ["fd01::/64", "fd01::/96", "fd07::1/128"],
    };
    let policy =
        |choices: &mut Choices| choices.one(&[TrafficPolicy::Cluster, TrafficPolicy::Local]);
    let some = |choices: &mut Choices, of: [IpAddr; 2]| of[..usize::from(choices.below(3))].into();
    let ranges = usize::from(choices.below(4));
    let mut port = ServicePort {
        node_port: choices.flag().then_some(30_000 + number),
        external_ips: some(&mut choices, others),
        load_balancer_ips: some(&mut choices, balancers),
        load_balancer_source_ranges: networks[..ranges]
            .iter()
            .map(|n| n.parse().unwrap())
            .collect(),
        internal_traffic_policy: policy(&mut choices),
        external_traffic_policy: policy(&mut choices),
        ..plain(family, number)
    };
    if choices.below(8) == 7 {
        // Another Service owns it.
        port.cluster_ip = None;
    }
    if let Some(seconds) = choices.one(&[None, None, None, Some(5), Some(10_800)]) {
        port = sticky(port, seconds);
    }
    if let Some(scheduler) = choices.one(&[
        None,
        None,
        None,
        Some("rr"),
        Some("mh"),
        Some("mh-port"),
        Some("lc"),
    ]) {
        port = scheduled(port, scheduler);
    }
    if choices.below(4) == 3 {
        let mut most = || choices.one(&[0, 5, 9]);
        port = limited(port, most(), most());
    }
    port.endpoints = Arc::new(endpoints(family, &mut choices));
    if choices.below(4) == 3 {
        return Some(of_range(port));
    }
    Some(port)
}

/// Returns the same with a range of ports, which it forwards port for port.
pub fn of_range(mut port: ServicePort) -> ServicePort {
    port.last_port = NonZeroU16::new(port.port + 20);
    port.node_port = None;
    let mut endpoints = Endpoints::clone(&port.endpoints);
    for endpoint in &mut endpoints.all {
        endpoint.address.set_port(0);
    }
    port.endpoints = Arc::new(endpoints);
    if port.session_affinity.is_some() && port.preferences().hash_table_size.is_none() {
        // A hash stands for it.
        port = scheduled(port, "random");
    }
    port
}

/// Endpoints in any condition, on this node, another or an unknown one, and those of them that
/// traffic may reach.
fn endpoints(family: Family, choices: &mut Choices) -> Endpoints {
    #[derive(Clone, Copy, PartialEq)]
    enum Is {
        Absent,
        Ready,
        /// Hints say that it is for other zones.
        ReadyForOthers,
        Terminating,
        NotReady,
    }
    use Is::{Absent, NotReady, Ready, ReadyForOthers, Terminating};
    let (mut all, mut conditions): (Vec<Endpoint>, Vec<Is>) = Default::default();
    for last in 1..6 {
        let condition = choices.one(&[
            Absent,
            Absent,
            Ready,
            Ready,
            ReadyForOthers,
            Terminating,
            NotReady,
        ]);
        let node_name = choices.one(&[Some("other"), Some("node"), None]);
        let weight = choices.one(&[1, 1, 0, 2, 3]);
        let grown = choices.one(&[None, None, Some(0), Some(3), Some(9)]);
        if condition == Absent {
            continue;
        }
        let ready = [Ready, ReadyForOthers].contains(&condition);
        all.push(Endpoint {
            ready,
            serving: ready || condition == Terminating,
            terminating: condition == Terminating,
            local: node_name == Some("node"),
            node_name: node_name.map(Into::into),
            weight,
            grown: grown.map_or_else(Grown::default, tenths),
            ..service_ports::endpoint((ip(family, 244, last), 8080))
        });
        conditions.push(condition);
    }
    let indices = |is: &dyn Fn(&Endpoint, Is) -> bool| -> Box<[u32]> {
        let numbered = (0..).zip(all.iter().zip(&conditions));
        let chosen = numbered.filter(|(_, (endpoint, condition))| is(endpoint, **condition));
        chosen.map(|(at, _)| at).collect()
    };
    let first = |one: Box<[u32]>, other: Box<[u32]>| if one.is_empty() { other } else { one };
    let cluster = first(indices(&|_, is| is == Ready), indices(&|e, _| e.ready));
    let cluster = first(cluster, indices(&|_, is| is == Terminating));
    let local = first(
        indices(&|e, _| e.local && e.ready),
        indices(&|e, is| e.local && is == Terminating),
    );
    let mut reachable = [&*cluster, &*local].concat();
    reachable.sort_unstable();
    reachable.dedup();
    Endpoints {
        weighed: false,
        ejected: Box::default(),
        forbidden: Box::default(),
        are_too_many: false,
        absence: None,
        cluster,
        local,
        all_reachable: reachable.into(),
        has_any: conditions.iter().any(|is| *is != NotReady),
        all: all.into(),
    }
}

/// Options of that family that `choices` make.
pub fn options(family: Family, choices: u128) -> Options {
    let mut choices = Choices(choices);
    let (pods, node) = match family {
        Family::V4 => ("10.244.0.0/16", "10.7.0.1"),
        Family::V6 => ("fd00:f4::/32", "fd07::1"),
    };
    let detect = choices.below(3);
    Options {
        detect_local: match detect {
            0 => DetectLocal::Within(pods.parse().unwrap()),
            1 => DetectLocal::Through("cni0".into()),
            _ => DetectLocal::Unknown,
        },
        node_ip: Some(node.parse().unwrap()),
        masquerade_all: choices.flag(),
        features: {
            use NftPart::{ConnectionCounts, DynamicMaps, Fib, Numgen, Reject};
            let missing = [Numgen, Fib, Reject, DynamicMaps, ConnectionCounts].into_iter();
            let missing: Vec<NftPart> = missing.filter(|_| choices.below(4) == 3).collect();
            Features::all() - missing.iter().copied().collect::<Features>()
        },
        counted: if choices.below(4) == 3 {
            Namespaces::new([Namespaces::ALL.to_owned()])
        } else {
            Namespaces::default()
        },
        ..Options::usual(family)
    }
}
