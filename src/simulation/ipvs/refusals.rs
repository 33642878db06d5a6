//! The state that stays while the kernel refuses one request.

mod kept;
mod watched;

use std::{net::IpAddr, sync::Arc};

use net::{Family, PerFamily, Protocol};
use netlink::conntrack::flows::{Tuple, UDP};
use nix::errno::Errno;
use simulated::{
    Call, Kernel, State,
    ipset::{ADD_MEMBERS, DELETE_MEMBERS},
    packet::{Disposition, Packet},
};
use xtables::Engine;

use super::OfIpvs;
use crate::{
    modes::{
        FailedPorts, Mode, SyncReport,
        ipvs::{Ipvs, plan::LINK},
    },
    services::{
        Changes, Endpoint, ServiceMap, ServicePort, TrafficPolicy,
        service_ports::{endpoint, endpoints, port_name, service_port},
    },
    simulation::{
        named_cases::{Refusing, mode, on_a_node},
        sync,
        world::node_address,
    },
};

const SUBJECT: OfIpvs = OfIpvs(Engine::NfTables);
/// Requests that change virtual servers (the number of IPVS's generic netlink family here).
const OF_IPVS: u16 = 32;

const LOAD_BALANCER: [u8; 4] = [10, 113, 0, 1];
/// A cluster IP that is called over UDP.
const DNS: [u8; 4] = [10, 96, 0, 10];
/// A caller from outside within the source ranges.
const WITHIN: [u8; 4] = [10, 9, 0, 1];
/// A caller in none of the source ranges.
const STRANGER: [u8; 4] = [10, 8, 0, 1];

/// A node in ipvs mode.
struct Node<'a> {
    kernel: &'a Kernel,
    refusing: Refusing,
    mode: &'a mut Ipvs,
}

impl Node<'_> {
    /// Makes the next `times` requests of that type be refused.
    fn refuse(&self, kind: u16, times: usize) {
        let is_one = move |call| matches!(call, Call::Requests(of, _) if of == kind);
        self.refusing.refuse(is_one, 0, times);
    }

    /// Replaces the running process with another one.
    fn restart(&mut self) {
        *self.mode = mode(SUBJECT);
    }

    /// Syncs IPv4, and returns the Services that could not be applied, with the reasons.
    async fn sync(&mut self, map: &ServiceMap, full: bool) -> FailedPorts {
        self.report(map, full).await.failed
    }

    /// Syncs, and returns the report on IPv4.
    async fn report(&mut self, map: &ServiceMap, full: bool) -> SyncReport {
        let changes = Changes {
            ports: map.iter().map(|port| port.name.clone()).collect(),
            full,
            ..Changes::default()
        };
        sync(self.mode, map, &changes).await.v4
    }

    /// Returns all possible outcomes of a call.
    fn call(&self, from: [u8; 4], to: [u8; 4]) -> Vec<Disposition> {
        let is_node = node_address(Family::V4) == IpAddr::from(from);
        let packet = Packet {
            source: (from, 40_000).into(),
            destination: (to, 80).into(),
            protocol: Protocol::Tcp.number(),
            input: (!is_node).then_some("eth0"),
            established: None,
        };
        let own = [node_address(Family::V4)];
        let mut found = Vec::new();
        self.kernel.change(|state| {
            let outcomes = state.outcomes_by_ipvs(Family::V4, &packet, &own);
            found.extend(outcomes.into_iter().map(|outcome| outcome.disposition));
        });
        found
    }
}

/// Runs `body` on a node that serves `map`.
fn serving(map: &ServiceMap, body: impl AsyncFnOnce(&mut Node<'_>)) {
    let refusing = Refusing::default();
    on_a_node(SUBJECT, refusing.clone(), async |kernel, mode| {
        let mut node = Node {
            kernel,
            refusing,
            mode,
        };
        node.sync(map, true).await;
        body(&mut node).await;
    });
}

fn reads_rules(call: Call) -> bool {
    matches!(call, Call::Save(Family::V4))
}

fn to(last: u8) -> Disposition {
    Disposition::Passes(([10, 244, 0, last], 80).into())
}

/// A load balancer with endpoints that have these last numbers, and another one for which the rules
/// of source ranges are always applied.
fn load_balancer(all: &[u8], ranges: &[&str]) -> ServiceMap {
    let all = all.iter().map(|last| endpoint(([10, 244, 0, *last], 80)));
    let ranges = ranges.iter().map(|range| range.parse().expect("a network"));
    let port = ServicePort {
        cluster_ip: None,
        load_balancer_ips: [LOAD_BALANCER.into()].into(),
        load_balancer_source_ranges: ranges.collect(),
        endpoints: endpoints(all),
        ..service_port("web", [10, 96, 0, 1])
    };
    let other = ServicePort {
        load_balancer_ips: [IpAddr::from([10, 113, 0, 2])].into(),
        load_balancer_source_ranges: ["10.9.0.0/16".parse().expect("a network")].into(),
        ..service_port("other", [10, 96, 0, 2])
    };
    [port, other].into_iter().collect()
}

#[test]
fn the_last_real_servers_stay_while_all_new_ones_are_refused() {
    serving(&load_balancer(&[1], &[]), async |node| {
        let now = load_balancer(&[2], &[]);
        node.refuse(OF_IPVS, 1);
        node.sync(&now, false).await;
        assert_eq!(node.call(WITHIN, LOAD_BALANCER), [to(1)]);
        node.sync(&now, false).await;
        assert_eq!(node.call(WITHIN, LOAD_BALANCER), [to(2)]);
    });
}

#[test]
fn no_caller_is_let_in_to_real_servers_that_could_not_be_taken_away() {
    serving(&load_balancer(&[1, 2], &["10.9.0.0/16"]), async |node| {
        assert_eq!(node.call(STRANGER, LOAD_BALANCER), [Disposition::Dropped]);
        let now = load_balancer(&[2], &[]);
        node.refuse(OF_IPVS, 1);
        node.sync(&now, false).await;
        assert_eq!(node.call(STRANGER, LOAD_BALANCER), [Disposition::Dropped]);
        node.sync(&now, false).await;
        assert_eq!(node.call(STRANGER, LOAD_BALANCER), [to(2)]);
    });
}

#[test]
fn no_caller_is_kept_out_while_source_ranges_could_not_be_taken_away() {
    serving(&load_balancer(&[1], &["10.9.0.0/16"]), async |node| {
        let now = load_balancer(&[1], &[]);
        // If a list of members is refused, they are requested one by one.
        node.refuse(DELETE_MEMBERS, 2);
        node.sync(&now, false).await;
        assert_eq!(node.call(WITHIN, LOAD_BALANCER), [to(1)]);
        assert_eq!(node.call(STRANGER, LOAD_BALANCER), [Disposition::Dropped]);
        node.sync(&now, false).await;
        assert_eq!(node.call(STRANGER, LOAD_BALANCER), [to(1)]);
    });
}

#[test]
fn a_service_is_not_in_force_while_its_source_ranges_could_not_be_taken_away() {
    serving(&load_balancer(&[1], &["10.9.0.0/16"]), async |node| {
        let now = load_balancer(&[1], &[]);
        // In two sets, neither as a list nor one by one, by this process and by the next.
        node.refuse(DELETE_MEMBERS, 8);
        for full in [false, true] {
            let failed = node.sync(&now, full).await;
            let names: Vec<_> = failed.keys().collect();
            assert_eq!(names, [&port_name("web")]);
            let why = &failed[&port_name("web")];
            assert!(why.contains("KUBE-LOAD-BALANCER-FW"), "{why}");
            node.restart();
        }
        let failed = node.sync(&now, true).await;
        assert!(failed.is_empty(), "{failed:?}");
        assert_eq!(node.call(STRANGER, LOAD_BALANCER), [to(1)]);
    });
}

#[test]
fn a_virtual_server_goes_whose_address_an_earlier_process_removed() {
    let cluster_ip = [10, 96, 0, 1];
    let port = ServicePort {
        endpoints: endpoints([endpoint(([10, 244, 0, 1], 80))]),
        ..service_port("web", cluster_ip)
    };
    serving(&[port].into_iter().collect(), async |node| {
        node.kernel.change(
            |state| {
                while state.links.remove_address(LINK, Family::V4, 0) {}
            },
        );
        let IpAddr::V4(own) = node_address(Family::V4) else {
            unreachable!("an address of IPv4");
        };
        assert_eq!(node.call(own.octets(), cluster_ip), [to(1)]);
        node.restart();
        node.sync(&ServiceMap::default(), true).await;
        assert_ne!(node.call(own.octets(), cluster_ip), [to(1)]);
    });
}

#[test]
fn a_service_is_not_in_force_while_its_address_waits_for_the_rules() {
    let map = load_balancer(&[1], &[]);
    serving(&map, async |node| {
        node.kernel.change(
            |state| {
                while state.links.remove_address(LINK, Family::V4, 0) {}
            },
        );
        node.restart();
        node.refusing.refuse(reads_rules, 0, 8);
        let failed = node.sync(&map, true).await;
        let why = failed.get(&port_name("web"));
        assert!(
            why.is_some_and(|why| why.contains("10.113.0.1 is not on kube-ipvs0 yet")),
            "{failed:?}"
        );
    });
}

/// The sets that contain an external IP decide whether its callers are masqueraded, and that the
/// address belongs to a Service: an address in none of them is refused.
#[test]
fn an_external_ip_whose_policy_changes_stays_open_while_a_member_is_refused() {
    let here = Endpoint {
        local: true,
        ..endpoint(([10, 244, 0, 1], 80))
    };
    let external = |policy| -> ServiceMap {
        let port = ServicePort {
            external_ips: [LOAD_BALANCER.into()].into(),
            external_traffic_policy: policy,
            endpoints: endpoints([here.clone()]),
            ..service_port("web", [10, 96, 0, 1])
        };
        [port].into_iter().collect()
    };
    let policies = [TrafficPolicy::Local, TrafficPolicy::Cluster];
    for [before, after] in [policies, [policies[1], policies[0]]] {
        serving(&external(before), async |node| {
            assert_eq!(node.call(WITHIN, LOAD_BALANCER), [to(1)]);
            // The list of members is refused, and then the member alone.
            node.refuse(ADD_MEMBERS, 2);
            let failed = node.sync(&external(after), false).await;
            assert!(failed.contains_key(&port_name("web")), "{failed:?}");
            assert_eq!(node.call(WITHIN, LOAD_BALANCER), [to(1)], "{after:?}");
            let failed = node.sync(&external(after), false).await;
            assert!(failed.is_empty(), "{failed:?}");
            assert_eq!(node.call(WITHIN, LOAD_BALANCER), [to(1)], "{after:?}");
        });
    }
}

/// The kernel created the virtual server, and the process does not know it.
#[test]
fn a_virtual_server_whose_making_was_not_answered_goes_with_its_service() {
    let port = |node_port| -> ServiceMap {
        let port = ServicePort {
            node_port,
            endpoints: endpoints([endpoint(([10, 244, 0, 1], 80))]),
            ..service_port("web", [10, 96, 0, 1])
        };
        [port].into_iter().collect()
    };
    serving(&port(None), async |node| {
        let IpAddr::V4(own) = node_address(Family::V4) else {
            unreachable!("an address of IPv4");
        };
        node.refusing
            .lose_answer(|call| matches!(call, Call::Requests(OF_IPVS, _)));
        let changes = Changes {
            ports: [port_name("web")].into(),
            ..Changes::default()
        };
        let with_node_port = port(Some(80));
        let asked = PerFamily::each(|_| Some(&changes));
        let outcomes = node.mode.sync(&with_node_port, asked);
        assert!(matches!(outcomes.await.v4, Some(Err(_))));
        assert_eq!(node.call(WITHIN, own.octets()), [to(1)], "it was made");
        node.sync(&port(None), false).await;
        assert_ne!(node.call(WITHIN, own.octets()), [to(1)]);
    });
}

/// The rules left by an earlier process follow the earlier configuration.
#[test]
fn a_service_is_not_in_force_while_the_rules_of_an_earlier_process_may_masquerade() {
    serving(&load_balancer(&[1], &[]), async |node| {
        node.restart();
        node.refusing.refuse(reads_rules, 0, 8);
        let here = Endpoint {
            local: true,
            ..endpoint(([10, 244, 0, 1], 80))
        };
        let local = |port: &Arc<ServicePort>| ServicePort {
            external_traffic_policy: TrafficPolicy::Local,
            endpoints: endpoints([here.clone()]),
            ..ServicePort::clone(port)
        };
        let now: ServiceMap = load_balancer(&[1], &[]).iter().map(local).collect();
        let failed = node.sync(&now, true).await;
        let why = failed.get(&port_name("web"));
        assert!(
            why.is_some_and(|why| why.contains("whether its callers are masqueraded")),
            "{failed:?}"
        );
    });
}

/// All Services are applied as far as is known, but another process may have changed rules.
#[test]
fn rules_that_cannot_be_read_are_reported_though_older_ones_are_in_force() {
    let map = load_balancer(&[1], &[]);
    serving(&map, async |node| {
        node.refusing.refuse(reads_rules, 0, 8);
        let full = Changes {
            full: true,
            ..Changes::default()
        };
        let reports = sync(node.mode, &map, &full).await;
        let report = reports.get(Family::V4);
        assert!(report.failed.is_empty(), "{:?}", report.failed);
        let unfinished = &report.unfinished;
        assert!(
            unfinished[..]
                .iter()
                .any(|what| what.contains("the IPv4 rules could not be written")),
            "{unfinished:?}"
        );
    });
}

/// A sync that failed as a whole reports nothing about the Services that had failed before it.
#[test]
fn clients_of_udp_are_led_whose_service_was_refused_before_a_sync_that_failed() {
    let map = |last| -> ServiceMap {
        let to = |last| endpoints([endpoint(([10, 244, 0, last], 80))]);
        let mut ports = ["dns", "other"].map(|name| service_port(name, DNS));
        ports[0].name = ports[0].name.over(Protocol::Udp);
        ports[0].endpoints = to(1);
        ports[1].cluster_ip = Some([10, 96, 0, 2].into());
        ports[1].endpoints = to(last);
        ports.into_iter().collect()
    };
    let dns = |failed: &FailedPorts| {
        let mut names = failed.keys();
        names.any(|name| &*name.service.name == "dns")
    };
    serving(&ServiceMap::default(), async |node| {
        let refuse = |refused| move |state: &mut State| state.ipvs.refuse(refused);
        node.kernel
            .change(refuse(Some((Errno::EINVAL, DNS.into()))));
        assert!(dns(&node.sync(&map(1), false).await));
        node.kernel.change(|state| {
            let (client, called) = ((WITHIN, 40_000).into(), (DNS, 80).into());
            let tuple = |source, destination| Tuple {
                source,
                destination,
            };
            let conntrack = &mut state.conntrack;
            conntrack.enter(UDP, tuple(client, called), tuple(called, client));
        });
        let is_of_ipvs = |call| matches!(call, Call::Requests(OF_IPVS, _));
        node.refusing.lose_answer(is_of_ipvs);
        let now = map(2);
        let changes = Changes {
            ports: now.iter().map(|port| port.name.clone()).collect(),
            ..Changes::default()
        };
        let outcomes = node.mode.sync(&now, PerFamily::each(|_| Some(&changes)));
        let outcome = outcomes.await.v4.expect("an answer");
        outcome.expect_err("the answer was lost");
        node.kernel.change(refuse(None));
        assert!(!dns(&node.sync(&now, false).await));
        let mut left = None;
        node.kernel
            .change(|state| left = state.conntrack.flows().next().map(ToString::to_string));
        assert_eq!(left, None, "a client is led past the Service");
    });
}
