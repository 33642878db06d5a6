//! Answers `/v1/services`, a page at a time.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv6Addr, SocketAddr},
    num::NonZeroU16,
    sync::Arc,
};

use hashbrown::HashMap;
use hyper::StatusCode;
use net::{Family, Protocol};

use super::{
    PortTraffic, StatusApi, address_kind, candidates::none_in_use, json, refused, unsupported,
};
use crate::{
    config::ModeName,
    node,
    runner::status::{Done, FamilyStatus, Reason},
    serve::{
        http::Answer,
        service_health::{self, Refused},
    },
    services::{
        AddressKind, NotUsed, Preferences, ServiceAddresses, ServicePort, ServicePortName,
        ServicePorts, TrafficPolicy, endpoint_words,
    },
    status_api::{self, Address, Endpoint, HealthCheck, ServicePortList, VERSION},
};

/// Maximum number of ServicePorts on a page.
const MOST: usize = 500;

/// Number of endpoints above which a page gets no further ServicePort.
const MOST_ENDPOINTS: usize = 5_000;

impl StatusApi {
    /// Answers a request; `path` is the rest after that of all Services.
    pub(super) fn services(&self, path: &str, query: &str) -> Answer {
        let selected = match Selected::read(path, query) {
            Ok(selected) => selected,
            Err(why) => return refused(StatusCode::BAD_REQUEST, why),
        };
        if let Some(answer) = self.unknown() {
            return answer;
        }
        let ports = self.runner.ports().unwrap_or_default();
        let (page, next) = selected.page(&ports);
        if let (Some(namespace), Some(name), [], None) =
            (selected.namespace, selected.name, &*page, &selected.after)
        {
            let why = self.not_served(namespace, name);
            let why = why.unwrap_or_else(|| unknown(namespace, name, &ports));
            return refused(StatusCode::NOT_FOUND, why);
        }
        let families = self.runner.families();
        let refused = self.health_listeners.refused();
        let traffic = self.traffic.of(&page);
        let addresses = ServiceAddresses::of(ports.values());
        let items = page
            .into_iter()
            .zip(traffic)
            .map(|(port, traffic)| status_api::ServicePort {
                health_check_failing: health_check_failing(port, &refused),
                ..self.port(port, families.get(port.name.family), &traffic, &addresses)
            });
        json(&ServicePortList {
            api_version: VERSION.to_owned(),
            kind: "ServicePortList".to_owned(),
            items: items.collect(),
            next,
        })
    }

    fn port(
        &self,
        port: &ServicePort,
        family: &FamilyStatus,
        traffic: &PortTraffic,
        addresses: &ServiceAddresses<'_>,
    ) -> status_api::ServicePort {
        let name = &port.name;
        let passed_over = self.passed_over(port, addresses);
        let gets_share = self.get_their_share(port, &passed_over);
        let reasons = self.unsupported_by(name);
        let scheduler = scheduler(port, &self.about.scheduler, &reasons);
        let unsupported = reasons.iter().map(|r| unsupported(&name.service, r));
        let mode = Some(self.mode_of(port)).filter(|mode| *mode != self.about.mode);
        let ranges = port.load_balancer_source_ranges.iter();
        let conflicts = port.conflicts.iter().map(ToString::to_string);
        status_api::ServicePort {
            namespace: name.service.namespace.to_string(),
            name: name.service.name.to_string(),
            port: name.port.to_string(),
            protocol: name.protocol.to_string(),
            family: name.family.to_string(),
            addresses: self::addresses(port, self.runner.serves_node_ports(name.family)),
            scheduler: scheduler.to_owned(),
            affinity_seconds: port.session_affinity.map(|timeout| timeout.as_secs()),
            internal_traffic_policy: policy(port.internal_traffic_policy),
            external_traffic_policy: policy(port.external_traffic_policy),
            source_ranges: ranges.map(ToString::to_string).collect(),
            mode: mode.map(|mode| mode.to_string()),
            no_endpoints: none_in_use(port, &passed_over)
                .map(|why| self.about.no_endpoints(&name.service, why)),
            endpoints: endpoints(port, traffic, &passed_over, gets_share),
            failing: family.failing(name.family, name),
            health_check_failing: Vec::new(),
            health_check: port.health_check_node_port.map(|number| HealthCheck {
                port: number,
                local_endpoints: service_health::ready_here(port).len(),
            }),
            unsupported: unsupported.collect(),
            conflicts: conflicts
                .chain(hides(port, &self.listeners.open()))
                .collect(),
            traffic: traffic.of_port,
            limited: traffic.limited,
        }
    }

    /// Returns the mode that serves `port`.
    pub(super) fn mode_of(&self, port: &ServicePort) -> ModeName {
        let is_kept = || {
            let reasons = self.unsupported_by(&port.name);
            reasons.iter().any(|one| one.what == Preferences::MODE)
        };
        match port.is_relayed() && !is_kept() {
            true => ModeName::Userspace,
            false => self.about.mode,
        }
    }

    fn unsupported_by(&self, port: &ServicePortName) -> BTreeSet<Reason> {
        self.runner.unsupported(|services| {
            let ports = services.get(&port.service);
            let reasons = ports.and_then(|ports| ports.get(port));
            reasons.cloned().unwrap_or_default()
        })
    }
}

/// Names the scheduler of `port` if Services that name none have `default`, and if there are
/// `reasons` not to do what the Service requests.
fn scheduler<'a>(
    port: &'a ServicePort,
    default: &'a str,
    reasons: &'a BTreeSet<Reason>,
) -> &'a str {
    let about = reasons.iter().filter(|r| r.what == Preferences::SCHEDULER);
    // If it cannot be parsed, it is as if the Service had named none, for which there may be
    // another reason.
    let mut done = about.map(|reason| &reason.done);
    match done.find(|done| **done != Done::Unreadable) {
        Some(Done::Instead(other)) => other,
        Some(Done::Nothing) => default,
        Some(Done::Unreadable | Done::Part) | None => port.scheduler(default),
    }
}

/// The requested ServicePorts.
#[derive(Debug, PartialEq)]
pub(super) struct Selected<'a> {
    namespace: Option<&'a str>,
    name: Option<&'a str>,
    /// The ServicePort after which the page begins.
    after: Option<Key<'a>>,
}

/// The sort key of ServicePorts: namespace, name, port, protocol, family.
type Key<'a> = [Cow<'a, str>; 5];

impl<'a> Selected<'a> {
    pub(super) fn read(path: &'a str, query: &'a str) -> Result<Selected<'a>, String> {
        let mut parts = path.trim_start_matches('/').split('/');
        let mut part = || parts.next().filter(|part| !part.is_empty());
        let (namespace, name) = (part(), part());
        if parts.next().is_some() {
            return Err("a path has a namespace and a name, and no more".to_owned());
        }
        let mut after = None;
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            if name != "continue" {
                return Err("the only parameter is continue".to_owned());
            }
            let key: Vec<_> = value
                .split('/')
                .map(|part| part.to_owned().into())
                .collect();
            let key = Key::try_from(key).map_err(|_| "continue has the value of an answer")?;
            after = Some(key);
        }
        Ok(Selected {
            namespace,
            name,
            after,
        })
    }

    fn has(&self, port: &ServicePortName) -> bool {
        let is = |asked: Option<&str>, name: &str| asked.is_none_or(|asked| asked == name);
        is(self.namespace, &port.service.namespace) && is(self.name, &port.service.name)
    }

    /// Returns the ServicePorts of the page, and the key for requesting the next one.
    fn page<'p>(&self, ports: &'p ServicePorts) -> (Vec<&'p Arc<ServicePort>>, Option<String>) {
        let selected = ports.values().filter(|port| self.has(&port.name));
        let mut sorted: BTreeMap<Key<'_>, &Arc<ServicePort>> = BTreeMap::new();
        for port in selected {
            let key = key(&port.name);
            if self.after.as_ref().is_some_and(|after| key <= *after) {
                continue;
            }
            sorted.insert(key, port);
            // Those beyond the page need not be sorted.
            if sorted.len() > MOST + 1 {
                sorted.pop_last();
            }
        }
        let (mut page, mut endpoints) = (Vec::new(), 0);
        let mut last = None;
        for (key, port) in sorted {
            if page.len() == MOST || (endpoints > MOST_ENDPOINTS && !page.is_empty()) {
                return (page, last);
            }
            endpoints += port.endpoints.all.len();
            page.push(port);
            last = Some(key.join("/"));
        }
        (page, None)
    }
}

/// Maximum number of Services of the same name in other namespaces that are named.
const MOST_OTHERS: usize = 5;

/// Explains that there is no such Service, and names others that may be meant.
pub(super) fn unknown(namespace: &str, name: &str, ports: &ServicePorts) -> String {
    let services = ports.keys().map(|port| &port.service);
    let others: BTreeSet<_> = services.filter(|other| &*other.name == name).collect();
    let shown = others.iter().take(MOST_OTHERS).map(ToString::to_string);
    let mut shown = shown.collect::<Vec<_>>().join(", ");
    match others.len().saturating_sub(MOST_OTHERS) {
        0 => {}
        more => shown.push_str(&format!(" and {more} more of that name")),
    }
    let hint = match &*shown {
        "" => "headless Services, those of type ExternalName, and those with label \
               service.kubernetes.io/service-proxy-name are not served by Tripod"
            .to_owned(),
        shown => format!("there is {shown}"),
    };
    format!("no Service {namespace}/{name} is served on this node: {hint}")
}

fn key(name: &ServicePortName) -> Key<'_> {
    [
        (&*name.service.namespace).into(),
        (&*name.service.name).into(),
        (&*name.port).into(),
        name.protocol.name().into(),
        name.family.name().into(),
    ]
}

/// Lists the addresses of `port` on a node that serves node ports of its family at some address, or
/// not.
fn addresses(port: &ServicePort, serves_node_ports: bool) -> Vec<Address> {
    let own = port.is_range().then(|| node::addresses::own().ok());
    let own = own.flatten().unwrap_or_default();
    let at = |kind, ip: &IpAddr| Address {
        kind: address_kind(kind),
        ip: Some(ip.to_string()),
        port: port.port,
        last_port: port.last_port.map(NonZeroU16::get),
        unserved: own
            .contains(ip)
            .then(|| "a range of ports is not served at the node's own addresses".to_owned()),
    };
    let cluster = port
        .cluster_ip
        .iter()
        .map(|ip| at(AddressKind::ClusterIp, ip));
    let external = port
        .external_ips
        .iter()
        .map(|ip| at(AddressKind::ExternalIp, ip));
    let balancer = port.load_balancer_ips.iter();
    let node_port = port.node_port.map(|number| Address {
        kind: address_kind(AddressKind::NodePort),
        ip: None,
        port: number,
        last_port: None,
        unserved: (!serves_node_ports).then(|| {
            "none of this node's addresses serves node ports, see nodePortAddresses; \
             --nodeport-addresses=all serves them at every address"
                .to_owned()
        }),
    });
    cluster
        .chain(external)
        .chain(balancer.map(|ip| at(AddressKind::LoadBalancerIp, ip)))
        .chain(node_port)
        .collect()
}

/// Explains which of the sockets that this process has `open` for probes and metrics the node port
/// of `port` hides; `None`: none.
pub(super) fn hides<T>(port: &ServicePort, open: &[(SocketAddr, T)]) -> Option<String> {
    let number = port
        .node_port
        .filter(|_| port.name.protocol == Protocol::Tcp)?;
    let family = port.name.family;
    let is_hidden = |at: &&SocketAddr| {
        let is_of_family = Family::of(&at.ip()) == family || at.ip() == Ipv6Addr::UNSPECIFIED;
        at.port() == number && is_of_family && !at.ip().is_loopback()
    };
    let address = open.iter().map(|(address, _)| address).find(is_hidden)?;
    Some(format!(
        "node port {number} (TCP, {family}) is also the port at which Tripod serves probes or metrics \
         ({address}): where node ports are served, calls to it reach this Service; give one of them \
         another port (--healthz-bind-address, --metrics-bind-address)"
    ))
}

/// Lists the places where the health-check node port of the Service cannot be served, with reasons.
fn health_check_failing(port: &ServicePort, refused: &[Refused]) -> Vec<String> {
    if port.health_check_node_port.is_none() {
        return Vec::new();
    }
    let of_service = refused
        .iter()
        .filter(|refused| refused.service == port.name.service);
    of_service
        .map(|refused| format!("{}: {}", refused.address, refused.trouble.why))
        .collect()
}

fn policy(policy: TrafficPolicy) -> String {
    let name = match policy {
        TrafficPolicy::Cluster => "Cluster",
        TrafficPolicy::Local => "Local",
    };
    name.to_owned()
}

fn endpoints(
    port: &ServicePort,
    traffic: &PortTraffic,
    passed_over: &HashMap<SocketAddr, String>,
    get_their_share: bool,
) -> Vec<Endpoint> {
    let usage = port.endpoints.usage();
    let shown = usage.map(|(endpoint, why)| {
        let is_out = passed_over.get(&endpoint.address);
        let in_use = why.is_none() && (is_out.is_none() || get_their_share);
        let why = why.map(|why| why.to_string());
        let why = why.or_else(|| match is_out {
            Some(why) if in_use => Some(format!("gets its share, but {why}")),
            why => why.cloned(),
        });
        Endpoint {
            address: endpoint_words(endpoint.address),
            node: endpoint.node_name.as_ref().map(ToString::to_string),
            weight: endpoint.weight,
            starting: endpoint.grown.percent(),
            last_ready: endpoint.last_ready,
            in_use,
            why,
            traffic: traffic.endpoints.get(&endpoint.address).copied(),
        }
    });
    let forbidden = port.endpoints.forbidden.iter().map(|address| Endpoint {
        address: endpoint_words(*address),
        node: None,
        weight: 0,
        starting: None,
        last_ready: false,
        in_use: false,
        why: Some(NotUsed::Forbidden.to_string()),
        traffic: None,
    });
    shown.chain(forbidden).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::{
        Endpoint, ServiceMap,
        service_ports::{endpoint, endpoints, service_port},
    };

    /// Names of the ServicePorts on each page.
    fn pages(map: &ServiceMap, path: &str) -> Vec<Vec<String>> {
        let mut pages = Vec::new();
        let mut query = String::new();
        loop {
            let selected = Selected::read(path, &query).expect("a good request");
            let (page, next) = selected.page(map.ports());
            let names = page.iter().map(|port| port.name.to_string());
            pages.push(names.collect());
            match next {
                Some(next) => query = format!("continue={next}"),
                None => return pages,
            }
        }
    }

    #[test]
    fn the_scheduler_is_the_one_that_is_used() {
        let asking = ServicePort {
            preferences: Some(Arc::new(Preferences {
                scheduler: Some("lblc".into()),
                ..Preferences::default()
            })),
            ..service_port("web", [10, 0, 0, 1])
        };
        let why = |reason: Reason| BTreeSet::from([reason]);
        let about = || Reason::new(Preferences::SCHEDULER, "for some reason");
        let unreadable = || Reason::unreadable(Preferences::SCHEDULER, "a name has no spaces");
        let weighed = ServicePort {
            endpoints: endpoints([Endpoint {
                weight: 3,
                ..endpoint(([10, 244, 0, 1], 80))
            }]),
            ..service_port("web", [10, 0, 0, 1])
        };
        for (port, reasons, used) in [
            (&asking, BTreeSet::new(), "lblc"),
            (&asking, why(about().instead("wlc")), "wlc"),
            (&asking, why(about()), "rr"),
            (&asking, why(Reason::new("another part", "no")), "lblc"),
            (&weighed, why(unreadable()), "wrr"),
            (&weighed, [unreadable(), about().instead("rr")].into(), "rr"),
        ] {
            assert_eq!(scheduler(port, "rr", &reasons), used, "{reasons:?}");
        }
    }

    #[test]
    fn pages_have_each_service_port_once_and_in_order() {
        let names: Vec<String> = (0..1_201)
            .map(|n| format!("ns-{}/s{n:04}", n % 3))
            .collect();
        let ports = names.iter().map(|name| service_port(name, [10, 0, 0, 1]));
        let map: ServiceMap = ports.collect();
        let all = pages(&map, "");
        assert_eq!(
            all.iter().map(Vec::len).collect::<Vec<_>>(),
            [500, 500, 201]
        );
        let mut expected = names;
        expected.sort_unstable();
        assert_eq!(all.concat(), expected);
        let of_one = pages(&map, "/ns-1").concat();
        assert_eq!(of_one.len(), 400);
        assert!(of_one.iter().all(|name| name.starts_with("ns-1/")));
        assert_eq!(pages(&map, "/ns-1/s0004"), [["ns-1/s0004"]]);
        assert_eq!(pages(&ServiceMap::default(), ""), [[""; 0]]);
    }

    #[test]
    fn a_service_of_another_namespace_may_be_meant() {
        let of = |namespaces: u8| {
            let names = (0..namespaces).map(|n| format!("ns-{n}/web"));
            let ports = names.map(|name| service_port(&name, [10, 0, 0, 1]));
            let map: ServiceMap = ports.collect();
            unknown("default", "web", map.ports())
        };
        assert!(of(0).ends_with("are not served by Tripod"), "{}", of(0));
        let why = "no Service default/web is served on this node: there is ns-0/web, ns-1/web";
        assert_eq!(of(2), why);
        assert!(
            of(8).ends_with("ns-4/web and 3 more of that name"),
            "{}",
            of(8)
        );
    }

    #[test]
    fn a_page_ends_where_it_has_many_endpoints() {
        let many = |number: u8| {
            let address = |n: u16| ([10, 1, n.to_be_bytes()[0], n.to_be_bytes()[1]], 80);
            let name = format!("s{number}");
            ServicePort {
                endpoints: endpoints((0..3_000).map(|n| endpoint(address(n)))),
                ..service_port(&name, [10, 0, 0, number])
            }
        };
        let map: ServiceMap = (0..5).map(many).collect();
        let lengths: Vec<_> = pages(&map, "").iter().map(Vec::len).collect();
        assert_eq!(lengths, [2, 2, 1]);
    }
}
