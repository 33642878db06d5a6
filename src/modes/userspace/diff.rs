//! Steps in a safe order from the existing parts of a ServicePort to the planned ones. Pure.
//!
//! Sockets are opened before frontends that depend on them are captured, and closed only when
//! nothing is sent to them any more: with redirect capture after the kernel has stopped sending
//! packets there, with local capture after all sockets of the sync are open, while the route stays
//! until the last connection has ended.

use std::{collections::BTreeMap, net::SocketAddr};

use net::Frontend;
use netlink::rules::HIGHEST_PORT;

use super::{
    capture::{Method, OtherPorts},
    plan::{
        GroupKind, GroupPlan,
        listen::{NodeContext, binds},
    },
};
use crate::kernel::socket::listening::{Bind, Owner};

/// The existing parts of one service group.
#[derive(Clone, Debug, Default)]
pub struct AppliedGroup {
    /// The frontends that it owns: another ServicePort may have taken some.
    pub frontends: Vec<Frontend>,
    /// Other frontends that it owned when its traffic was last routed: they are captured for it
    /// until capture sends them elsewhere.
    pub lost: Vec<Frontend>,
    /// Local addresses of its listeners.
    pub listens_on: Vec<SocketAddr>,
    /// Addresses that are bound but do not listen.
    pub reserved: Vec<SocketAddr>,
    /// Its local port with redirect capture; `None` if it has none.
    pub local_port: Option<SocketAddr>,
    /// Whether clients have UDP flows through its listeners.
    pub has_flows: bool,
}

/// Address on which a service group listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// On its local port, to which nat rules redirect.
    LocalPort,
    /// An address that clients call.
    Address(Bind),
}

/// An action for a ServicePort.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Creates the group if needed, gives it its frontends, and routes new traffic as planned.
    Route(Box<GroupPlan>),
    /// Gives the group these frontends, but routes its traffic as before.
    Own(GroupKind, Vec<Frontend>),
    /// Gives the group a local port that its clients do not call: otherwise a rule would have
    /// nothing to translate. Returns its previous local port, if any.
    TakeLocalPort(GroupKind),
    /// Opens the group's listeners there.
    Listen(GroupKind, Place),
    /// Binds the group there without listening, so that the kernel refuses callers.
    Reserve(GroupKind, Bind),
    /// Ends such a reservation.
    Unreserve(GroupKind, SocketAddr),
    /// Captures a frontend for the group, if the place is bound: otherwise its packets would reach
    /// other listeners on that port of the node.
    Capture {
        kind: GroupKind,
        frontend: Frontend,
        place: Place,
        other_ports: OtherPorts,
    },
    /// Stops capturing a frontend that no longer has a group, with the next capture: connection
    /// tracking remembers open connections.
    Release(Frontend),
    /// Stops capturing a frontend that no longer has a group, when no connection uses it any more:
    /// routing decides for each packet.
    Linger(Frontend),
}

/// An action that waits until it is safe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Closing {
    /// Routes new traffic of the group as planned. The plan does not apply to frontends that were
    /// captured for the group until now.
    Route(Box<GroupPlan>),
    /// Closes the group's listeners on an address; open connections continue.
    Listeners(GroupKind, SocketAddr),
    /// Closes the group itself.
    Group(GroupKind),
}

/// The steps from the existing to the planned parts of a ServicePort.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Steps {
    /// Steps to perform at once, in this order.
    pub open: Vec<Step>,
    /// Steps to perform later, in this order: with local capture after the sync has opened all its
    /// sockets, with redirect capture after the rules have been applied.
    pub close: Vec<Closing>,
}

/// The existing parts of one ServicePort.
pub type Applied = BTreeMap<GroupKind, AppliedGroup>;

/// The difference between the `applied` parts of a ServicePort and its `plans`.
pub fn diff(plans: Vec<GroupPlan>, applied: &Applied, node: &NodeContext) -> Steps {
    let mut difference = Steps::default();
    let mut released = Vec::new();
    for (&kind, group) in applied {
        let planned = |frontend: &Frontend| plans.iter().any(|p| p.frontends.contains(frontend));
        let given_up = group.frontends.iter().filter(|f| !planned(f));
        released.extend(
            given_up.map(|frontend| match node.methods.get(frontend.family) {
                Method::Redirect => Step::Release(*frontend),
                Method::Local => Step::Linger(*frontend),
            }),
        );
        if !plans.iter().any(|plan| plan.name.kind == kind) {
            difference.close.extend(close(kind, group, &[]));
            difference.close.push(Closing::Group(kind));
        }
    }
    let none = AppliedGroup::default();
    let losing = plans.iter().filter(|plan| {
        let group = applied.get(&plan.name.kind);
        group.is_some_and(|group| loses_frontends(plan, group, &plans))
    });
    let losing: Vec<GroupKind> = losing.map(|plan| plan.name.kind).collect();
    for plan in plans {
        let kind = plan.name.kind;
        let group = applied.get(&kind).unwrap_or(&none);
        let mut steps = Vec::new();
        let stay = match node.methods.get(plan.name.port.family) {
            Method::Redirect => redirected(&plan, group, node, &mut steps),
            Method::Local => routed(&plan, group, node, &mut steps),
        };
        let plan = Box::new(plan);
        if losing.contains(&kind) {
            let frontends = plan.frontends.clone();
            difference.open.push(Step::Own(kind, frontends));
            difference.close.push(Closing::Route(plan));
        } else {
            difference.open.push(Step::Route(plan));
        }
        difference.close.extend(close(kind, group, &stay));
        difference.open.extend(steps);
    }
    difference.open.extend(released);
    difference
}

/// Returns whether a group only loses frontends, and some of them to other groups of its
/// ServicePort. The plan for the remaining frontends does not apply to the lost ones, which are
/// captured for this group until capture sends them to the other.
fn loses_frontends(plan: &GroupPlan, group: &AppliedGroup, plans: &[GroupPlan]) -> bool {
    if group.lost.is_empty() && group.frontends == plan.frontends {
        return false;
    }
    let led = || group.frontends.iter().chain(&group.lost);
    let stays = |one: &Frontend| plan.frontends.contains(one);
    let of_another = |one: &Frontend| {
        let mut others = plans.iter().filter(|other| other.name != plan.name);
        others.any(|other| other.frontends.contains(one))
    };
    let mut gone = led().filter(|one| !stays(one));
    gone.any(of_another) && plan.frontends.iter().all(|one| led().any(|led| led == one))
}

/// The steps that close the listeners of a group, except on the addresses that `stay`.
fn close(kind: GroupKind, group: &AppliedGroup, stay: &[SocketAddr]) -> Vec<Closing> {
    let open = group.listens_on.iter();
    let surplus = open.filter(|address| !stay.contains(address));
    surplus
        .map(|address| Closing::Listeners(kind, *address))
        .collect()
}

/// Returns whether the group has to listen: for new clients, or for clients of flows that continue
/// to endpoints that take no new ones. When these flows have ended, the next full sync closes the
/// listeners.
fn listens(plan: &GroupPlan, group: &AppliedGroup) -> bool {
    !plan.has_no_endpoints() || group.has_flows && !plan.keep_flows.is_empty()
}

/// Adds the steps of a group that listens on a local port. Returns the listening addresses that
/// stay. A process that gives way takes no local port, and keeps one that clients call.
fn redirected(
    plan: &GroupPlan,
    group: &AppliedGroup,
    node: &NodeContext,
    steps: &mut Vec<Step>,
) -> Vec<SocketAddr> {
    let kind = plan.name.kind;
    let called = |port| plan.frontends.iter().any(|frontend| frontend.port == port);
    let yields = !node.opens_listeners;
    let local_port = group.local_port.filter(|a| yields || !called(a.port()));
    if local_port.is_none() {
        if yields {
            return Vec::new();
        }
        steps.push(Step::TakeLocalPort(kind));
    }
    let listens = listens(plan, group);
    let is_open = local_port.is_some_and(|address| group.listens_on.contains(&address));
    if listens && !is_open && !yields {
        steps.push(Step::Listen(kind, Place::LocalPort));
    }
    let captured = plan.frontends.iter();
    steps.extend(captured.map(|frontend| capture(plan, *frontend, Place::LocalPort)));
    local_port.filter(|_| listens).into_iter().collect()
}

/// Adds the steps of a group that listens on the service addresses themselves. Returns the
/// addresses on which it should listen.
fn routed(
    plan: &GroupPlan,
    group: &AppliedGroup,
    node: &NodeContext,
    steps: &mut Vec<Step>,
) -> Vec<SocketAddr> {
    let kind = plan.name.kind;
    let listens = listens(plan, group);
    let mut addresses = Vec::new();
    let mut captured = Vec::new();
    for frontend in &plan.frontends {
        for bind in binds(frontend, plan, node) {
            addresses.push(bind.address);
            let place = Place::Address(bind);
            if frontend.address.is_some() {
                captured.push(capture(plan, *frontend, place));
            }
            if !node.opens_listeners {
                continue;
            }
            if !listens {
                steps.push(Step::Reserve(kind, bind));
            } else if !group.listens_on.contains(&bind.address) {
                steps.push(Step::Listen(kind, place));
            }
        }
    }
    let surplus = group.reserved.iter().filter(|a| !addresses.contains(a));
    steps.extend(surplus.map(|address| Step::Unreserve(kind, *address)));
    steps.extend(captured);
    if listens { addresses } else { Vec::new() }
}

fn capture(plan: &GroupPlan, frontend: Frontend, place: Place) -> Step {
    Step::Capture {
        kind: plan.name.kind,
        frontend,
        place,
        other_ports: other_ports(plan, &frontend),
    }
}

/// Treatment of packets to other ports of the address of `frontend`.
pub fn other_ports(plan: &GroupPlan, frontend: &Frontend) -> OtherPorts {
    if frontend.address.is_some() && frontend.address == plan.cluster_ip {
        OtherPorts::Refuse
    } else {
        OtherPorts::PassOn
    }
}

/// Returns whether marked packets to `frontend` pass a capture that lets any pass: local capture
/// delivers the node's own addresses, and all ports of an address of which it cannot match one.
pub fn marked_passes(frontend: &Frontend, place: Place, other_ports: OtherPorts) -> bool {
    let is_matched = match place {
        Place::LocalPort => true,
        Place::Address(bind) => bind.owner == Owner::Other && frontend.port <= HIGHEST_PORT,
    };
    frontend.address.is_some() && other_ports == OtherPorts::PassOn && is_matched
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use net::{Family, Frontend, PerFamily, Protocol};

    use super::*;
    use crate::{modes::userspace::plan::Target, node::Served};

    const KIND: GroupKind = GroupKind::Internal;

    fn node(method: Method) -> NodeContext {
        NodeContext {
            methods: PerFamily::each(|_| method),
            addresses: vec![[192, 0, 2, 1].into()],
            node_ports: Arc::new(Served::All),
            opens_listeners: true,
        }
    }

    fn at_node() -> Frontend {
        Frontend::node_port(Protocol::Tcp, Family::V4, 30_080)
    }

    /// Port 80 of the cluster IP.
    fn cluster_ip() -> Frontend {
        Frontend::service(Protocol::Tcp, [10, 96, 0, 1].into(), 80)
    }

    fn plan(frontends: &[Frontend], endpoints: usize) -> GroupPlan {
        let target = Target {
            address: ([10, 1, 0, 1], 80).into(),
            weight: 1,
        };
        GroupPlan::of_cluster_ip("web:http", frontends, vec![target; endpoints])
    }

    fn applied(listens_on: SocketAddr, local_port: Option<SocketAddr>) -> Applied {
        let group = AppliedGroup {
            frontends: vec![cluster_ip()],
            lost: Vec::new(),
            listens_on: vec![listens_on],
            reserved: Vec::new(),
            local_port,
            has_flows: false,
        };
        Applied::from([(KIND, group)])
    }

    fn address(ip: [u8; 4], port: u16) -> SocketAddr {
        (ip, port).into()
    }

    fn route(plan: &GroupPlan) -> Step {
        Step::Route(Box::new(plan.clone()))
    }

    fn captured(place: Place) -> Step {
        Step::Capture {
            kind: KIND,
            frontend: cluster_ip(),
            place,
            other_ports: OtherPorts::Refuse,
        }
    }

    #[test]
    fn sockets_are_open_before_anything_is_captured_for_them() {
        let plan = plan(&[cluster_ip(), at_node()], 1);
        let service = Bind {
            address: address([10, 96, 0, 1], 80),
            owner: Owner::Other,
        };
        let node_port = Bind::of_node(address([192, 0, 2, 1], 30_080));
        let routed = diff(vec![plan.clone()], &Applied::new(), &node(Method::Local));
        let steps = [
            route(&plan),
            Step::Listen(KIND, Place::Address(service)),
            Step::Listen(KIND, Place::Address(node_port)),
            captured(Place::Address(service)),
        ];
        assert_eq!(routed.open, steps);
        let redirected = diff(vec![plan.clone()], &Applied::new(), &node(Method::Redirect));
        let steps = [
            route(&plan),
            Step::TakeLocalPort(KIND),
            Step::Listen(KIND, Place::LocalPort),
            captured(Place::LocalPort),
            Step::Capture {
                kind: KIND,
                frontend: at_node(),
                place: Place::LocalPort,
                other_ports: OtherPorts::PassOn,
            },
        ];
        assert_eq!(redirected.open, steps);
        assert_eq!([routed.close, redirected.close], [vec![], vec![]]);

        let mut node = node(Method::Redirect);
        node.opens_listeners = false;
        let yielding = diff(vec![plan.clone()], &Applied::new(), &node);
        assert_eq!(yielding.open, [route(&plan)]);
    }

    #[test]
    fn what_has_no_endpoint_stays_bound_and_refuses() {
        let plan = plan(&[cluster_ip()], 0);
        let service = Bind {
            address: address([10, 96, 0, 1], 80),
            owner: Owner::Other,
        };
        let there = applied(service.address, None);
        let routed = diff(vec![plan.clone()], &there, &node(Method::Local));
        let steps = [
            route(&plan),
            Step::Reserve(KIND, service),
            captured(Place::Address(service)),
        ];
        assert_eq!(routed.open, steps);
        assert_eq!(routed.close, [Closing::Listeners(KIND, service.address)]);

        let local = address([0; 4], 40_000);
        let there = applied(local, Some(local));
        let redirected = diff(vec![plan.clone()], &there, &node(Method::Redirect));
        assert_eq!(redirected.open, [route(&plan), captured(Place::LocalPort)]);
        assert_eq!(redirected.close, [Closing::Listeners(KIND, local)]);
    }

    #[test]
    fn listeners_stay_while_flows_go_on_to_endpoints_that_take_no_new_ones() {
        let local = address([0; 4], 40_000);
        for (has_flows, keeps, stays) in [
            (true, true, true),
            (true, false, false),
            (false, true, false),
        ] {
            let mut plan = plan(&[cluster_ip()], 0);
            plan.name.port = plan.name.port.over(Protocol::Udp);
            plan.keep_flows = [address([10, 1, 0, 1], 80)][..usize::from(keeps)].into();
            for method in [Method::Local, Method::Redirect] {
                let mut there = match method {
                    Method::Local => applied(address([10, 96, 0, 1], 80), None),
                    Method::Redirect => applied(local, Some(local)),
                };
                there.get_mut(&KIND).expect("the group").has_flows = has_flows;
                let difference = diff(vec![plan.clone()], &there, &node(method));
                assert_eq!(difference.close.is_empty(), stays, "{method} {has_flows}");
            }
        }
    }

    #[test]
    fn a_local_port_that_clients_call_is_replaced() {
        let plan = plan(&[cluster_ip()], 1);
        for (port, taken) in [(40_000, false), (80, true)] {
            let local = address([0; 4], port);
            let there = applied(local, Some(local));
            let difference = diff(vec![plan.clone()], &there, &node(Method::Redirect));
            let takes = difference.open.contains(&Step::TakeLocalPort(KIND));
            let listens = Step::Listen(KIND, Place::LocalPort);
            let listens = difference.open.contains(&listens);
            assert_eq!([takes, listens], [taken; 2], "{port}");
            let closes = difference.close.contains(&Closing::Listeners(KIND, local));
            assert_eq!(closes, taken, "{port}");

            let mut node = node(Method::Redirect);
            node.opens_listeners = false;
            let yielding = diff(vec![plan.clone()], &there, &node);
            assert_eq!(yielding.open, [route(&plan), captured(Place::LocalPort)]);
            assert_eq!(yielding.close, []);
        }
    }

    #[test]
    fn a_group_that_loses_frontends_to_another_is_rerouted_when_they_lead_there() {
        let local = address([0; 4], 40_000);
        let mut there = applied(local, Some(local));
        let group = there.get_mut(&KIND).expect("the group");
        group.lost.push(at_node());
        let internal = plan(&[cluster_ip()], 0);
        let mut external = plan(&[at_node()], 1);
        external.name.kind = GroupKind::External;
        for method in [Method::Redirect, Method::Local] {
            let plans = vec![internal.clone(), external.clone()];
            let difference = diff(plans, &there, &node(method));
            assert!(difference.open.contains(&route(&external)), "{method}");
            assert!(!difference.open.contains(&route(&internal)), "{method}");
            // Otherwise a frontend that it gets back would be captured, and never released.
            let owned = Step::Own(KIND, internal.frontends.clone());
            assert!(difference.open.contains(&owned), "{method}");
            let closing = [
                Closing::Route(Box::new(internal.clone())),
                Closing::Listeners(KIND, local),
            ];
            assert_eq!(difference.close, closing, "{method}");
        }
        // A frontend that another Service owns is captured by no step of this one.
        let difference = diff(vec![internal.clone()], &there, &node(Method::Redirect));
        assert!(difference.open.contains(&route(&internal)));
    }

    #[test]
    fn what_is_gone_is_released_and_then_closed() {
        let local = address([10, 96, 0, 1], 80);
        let there = applied(local, None);
        for (method, release) in [
            (Method::Redirect, Step::Release(cluster_ip())),
            (Method::Local, Step::Linger(cluster_ip())),
        ] {
            let difference = diff(Vec::new(), &there, &node(method));
            assert_eq!(difference.open, [release]);
            let closing = [Closing::Listeners(KIND, local), Closing::Group(KIND)];
            assert_eq!(difference.close, closing);
        }
        // Another ServicePort owns its frontend.
        let lost = Applied::from([(KIND, AppliedGroup::default())]);
        let difference = diff(Vec::new(), &lost, &node(Method::Local));
        assert_eq!(difference.open, []);
    }

    #[test]
    fn surplus_reservations_go() {
        let there = AppliedGroup {
            reserved: vec![address([10, 96, 0, 1], 80), address([10, 96, 0, 9], 80)],
            ..AppliedGroup::default()
        };
        let there = Applied::from([(KIND, there)]);
        let plan = plan(&[cluster_ip()], 0);
        let difference = diff(vec![plan], &there, &node(Method::Local));
        let given_up = difference.open.iter().filter_map(|step| match step {
            Step::Unreserve(_, address) => Some(*address),
            _ => None,
        });
        assert_eq!(given_up.collect::<Vec<_>>(), [address([10, 96, 0, 9], 80)]);
    }
}
