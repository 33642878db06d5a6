//! Changes of the service map by a batch of events.

use std::{collections::BTreeSet, net::SocketAddr, sync::Arc};

use hashbrown::{HashMap, HashSet};
use net::{Family, Frontend, PerFamily, Protocol};

use super::{Endpoint, ServiceMap, ServicePort, ServicePortName};

/// The changes of a [`ServiceMap`](super::ServiceMap) since the last success of a mode.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// ServicePorts that were added, changed or removed.
    pub ports: HashSet<ServicePortName>,
    /// Whether everything must be compared with the kernel: at the start, for repair and at each
    /// sync period.
    pub full: bool,
    /// Whether failed ServicePorts are tried again, even if they did not change.
    pub retry: bool,
    /// Whether the state of the kernel was written by another Tripod, which has ended: differences
    /// are no damage.
    pub taken_back: bool,
    /// Flows that the kernel may continue to send elsewhere than to the endpoints that serve now.
    pub stale: Stale,
}

/// ServicePorts whose flows may be stale: a connection-tracking entry outlives the endpoint or
/// address that it translates to. That of a UDP flow stays for as long as the client continues to
/// use its socket, so only its deletion makes the client's next packet follow the new rules.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stale {
    /// These ServicePorts.
    pub ports: HashMap<ServicePortName, Former>,
    /// Whether all other ServicePorts count as begun as well.
    pub all: bool,
}

/// Where flows of one ServicePort may still go. They are compared with the endpoints that serve when
/// they are deleted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Former {
    /// Frontends at which a UDP port is no longer served.
    pub lost: BTreeSet<Frontend>,
    /// Endpoints of a UDP port that no longer serve, at all or at its former node port.
    pub gone: BTreeSet<SocketAddr>,
    /// Whether it may have been called before it was served: it is new, gained reachable endpoints
    /// after having none, or gained frontends. Flows that were recorded meanwhile, or before this
    /// process started, go elsewhere than to the endpoints that serve now. Those of TCP and SCTP
    /// matter only if they were not answered.
    pub begun: bool,
}

impl Changes {
    /// Adds later changes, for a mode that could not apply the earlier ones before the later ones
    /// came.
    pub fn merge(&mut self, later: Changes) {
        self.ports.extend(later.ports);
        self.full |= later.full;
        self.retry |= later.retry;
        self.taken_back |= later.taken_back;
        self.stale.merge(later.stale);
    }

    /// Splits these changes by family. `full` and `retry` concern both.
    pub fn by_family(self) -> PerFamily<Changes> {
        let mut families = PerFamily::each(|_| Changes {
            full: self.full,
            retry: self.retry,
            taken_back: self.taken_back,
            stale: Stale {
                all: self.stale.all,
                ..Stale::default()
            },
            ..Changes::default()
        });
        for name in self.ports {
            families.get_mut(name.family).ports.insert(name);
        }
        for (name, former) in self.stale.ports {
            let stale = &mut families.get_mut(name.family).stale;
            stale.ports.insert(name, former);
        }
        families
    }

    /// Limits the changes that wait for a failing family, which must not grow without limit in any
    /// case; `map` is the desired state.
    pub fn bound(&mut self, map: &ServiceMap) {
        // Some are names of ServicePorts that were added and removed in the meantime.
        if self.ports.len() > map.len() + MOST_WAITING {
            self.ports.clear();
            self.full = true;
        }
        self.stale.bound();
    }

    /// Lists the ServicePorts of `family` for which something may have begun or ended: those that
    /// changed, and after a full change also those of `map` that have it now, and those that are
    /// `known` to have had it.
    pub fn concerned<'a>(
        &self,
        family: Family,
        map: &'a ServiceMap,
        known: impl Iterator<Item = &'a ServicePortName>,
        has: impl Fn(&ServicePort) -> bool,
    ) -> BTreeSet<ServicePortName> {
        let mut names: BTreeSet<ServicePortName> = self.ports.iter().cloned().collect();
        if self.full {
            let having = map.of_family(family).filter(|port| has(port));
            let known = known.filter(|name| name.family == family);
            names.extend(having.map(|port| &port.name).chain(known).cloned());
        }
        names
    }

    /// Returns whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty() && !self.full && !self.retry && self.stale == Stale::default()
    }

    /// Records that a ServicePort changed from `old` to `new`.
    pub(super) fn record(
        &mut self,
        old: Option<&Arc<ServicePort>>,
        new: Option<&Arc<ServicePort>>,
    ) {
        let Some(name) = old.or(new).map(|port| &port.name) else {
            return;
        };
        self.ports.insert(name.clone());
        let former = Former::of(name.protocol, old, new);
        if former != Former::default() {
            self.stale.add(name.clone(), former);
        }
    }
}

/// Maximum number of names of waiting ServicePorts beyond those that exist, and of frontends and
/// endpoints that may be stale.
pub const MOST_WAITING: usize = 10_000;

/// Maximum number of endpoints of one ServicePort that may be stale, once there are too many.
const MOST_OF_ONE_PORT: usize = 100;

impl Stale {
    /// Adds what became stale later.
    pub fn merge(&mut self, later: Stale) {
        self.all |= later.all;
        for (name, later) in later.ports {
            self.add(name, later);
        }
    }

    fn add(&mut self, name: ServicePortName, later: Former) {
        let former = self.ports.entry(name).or_default();
        former.lost.extend(later.lost);
        former.gone.extend(later.gone);
        former.begun |= later.begun;
    }

    /// Limits what waits to be deleted. If there is more, all flows to frontends that are served
    /// are compared with the endpoints that serve, so only lost frontends need be named. Returns
    /// how many of these were dropped: flows to them end by themselves unless the client continues
    /// to send to a Service that is gone.
    pub fn bound(&mut self) -> usize {
        let size = |former: &Former| 1 + former.lost.len() + former.gone.len();
        if self.ports.values().map(size).sum::<usize>() <= MOST_WAITING {
            return 0;
        }
        self.all = true;
        let mut lost = 0;
        self.ports.retain(|_, former| {
            former.lost.retain(|_| {
                lost += 1;
                lost <= MOST_WAITING
            });
            while former.gone.len() > MOST_OF_ONE_PORT {
                former.gone.pop_first();
            }
            !former.lost.is_empty()
        });
        lost.saturating_sub(MOST_WAITING)
    }
}

impl Former {
    fn of(
        protocol: Protocol,
        old: Option<&Arc<ServicePort>>,
        new: Option<&Arc<ServicePort>>,
    ) -> Former {
        if protocol != Protocol::Udp {
            return Former {
                begun: new.is_some_and(|new| begins_to_be_served(old, new)),
                ..Former::default()
            };
        }
        let lost = missing(old, new);
        let lost_node_port = lost.iter().any(|at| at.address.is_none());
        let all = new.map_or(&[][..], |new| &new.endpoints.all);
        let former = old.map_or(&[][..], |old| &old.endpoints.all);
        let former = former.iter().filter(|old| old.may_have_flows());
        let gone = former
            .map(|old| old.address)
            .filter(|address| lost_node_port || !may_have_flows(all, *address));
        Former {
            lost,
            gone: gone.collect(),
            begun: new.is_some_and(|new| old.is_none() || begins_to_be_served(old, new)),
        }
    }
}

/// Returns true if `new` became reachable from here, or reachable at more addresses. A client that
/// called a node port or address before it was served here was refused elsewhere, and its flow
/// still goes there.
fn begins_to_be_served(old: Option<&Arc<ServicePort>>, new: &Arc<ServicePort>) -> bool {
    let reaches = |port: &Arc<ServicePort>| port.endpoints.any_taken_here();
    let gained = || !missing(Some(new), old).is_empty();
    reaches(new) && (!old.is_some_and(reaches) || gained())
}

fn may_have_flows(endpoints: &[Endpoint], address: SocketAddr) -> bool {
    endpoints
        .binary_search_by(|endpoint| endpoint.address.cmp(&address))
        .is_ok_and(|at| endpoints[at].may_have_flows())
}

/// Returns the frontends at which `one` is served and `other` is not.
fn missing(one: Option<&Arc<ServicePort>>, other: Option<&Arc<ServicePort>>) -> BTreeSet<Frontend> {
    let frontends = |port: &Arc<ServicePort>| port.frontends().collect::<BTreeSet<_>>();
    let [one, other] = [one, other].map(|port| port.map(frontends).unwrap_or_default());
    &one - &other
}

#[cfg(test)]
mod tests {
    use net::Family;

    use super::*;
    use crate::services::service_ports::port_name;

    fn at(number: usize) -> Frontend {
        let [.., high, low] = number.to_be_bytes();
        Frontend::service(Protocol::Udp, [10, 0, high, low].into(), 53)
    }

    fn endpoint(number: usize) -> SocketAddr {
        let [.., high, low] = number.to_be_bytes();
        SocketAddr::from(([10, 1, high, low], 53))
    }

    /// A ServicePort that lost frontends, and endpoints that are gone.
    fn stale(name: &str, lost: impl IntoIterator<Item = Frontend>, gone: usize) -> Stale {
        let former = Former {
            lost: lost.into_iter().collect(),
            gone: (0..gone).map(endpoint).collect(),
            begun: false,
        };
        Stale {
            ports: [(port_name(name), former)].into_iter().collect(),
            all: false,
        }
    }

    #[test]
    fn what_waits_of_one_port_is_added_up() {
        let mut both = stale("dns:udp", [at(1)], 1);
        both.merge(stale("dns:udp", [at(2)], 2));
        assert_eq!(both, stale("dns:udp", [at(1), at(2)], 2));
        both.merge(Stale {
            all: true,
            ..Stale::default()
        });
        assert!(both.all && both.ports.len() == 1);
    }

    #[test]
    fn nothing_is_lost_of_more_endpoints_than_are_named() {
        let node_port = Frontend::node_port(Protocol::Udp, Family::V4, 30_053);
        let mut waiting = stale("served:udp", [], MOST_WAITING / 2);
        waiting.merge(stale("gone:udp", [node_port], MOST_WAITING / 2 - 3));
        let before = waiting.clone();
        assert_eq!((waiting.bound(), &waiting), (0, &before));
        waiting.merge(stale("served:udp", [], MOST_WAITING / 2 + 1));
        assert_eq!(waiting.bound(), 0);
        assert!(waiting.all, "a comparison stands for those that are served");
        let named = waiting
            .ports
            .iter()
            .map(|(name, former)| (name, former.gone.len()));
        assert!(named.eq([(&port_name("gone:udp"), MOST_OF_ONE_PORT)]));
    }

    #[test]
    fn nothing_is_lost_of_more_frontends_than_are_named() {
        let mut waiting = stale("gone:udp", (1..MOST_WAITING).map(at), 0);
        assert_eq!(waiting.bound(), 0);
        assert!(!waiting.all);
        waiting.merge(stale("served:udp", [], 10));
        assert_eq!(waiting.bound(), 0, "a comparison stands for the other");
        assert!(waiting.all && waiting.ports.len() == 1);
        waiting.merge(stale("gone:udp", (0..MOST_WAITING + 3).map(at), 0));
        assert_eq!(waiting.bound(), 3, "too many are gone");
        assert_eq!(
            waiting.ports[&port_name("gone:udp")].lost.len(),
            MOST_WAITING
        );
    }
}
