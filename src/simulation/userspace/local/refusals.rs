//! Services and connections that stay open while the kernel refuses single requests, and when
//! Services are removed.

use std::time::{Duration, Instant};

use net::{Family, PerFamily, Protocol};
use nix::libc;
use simulated::{Call, Kernel, State, packet::Packet, route::Led};

use super::{super::in_node, OfLocal};
use crate::{
    modes::{Mode, userspace::Userspace},
    services::{
        Changes, ServiceMap, ServicePort,
        service_ports::{endpoint, endpoints, service_port},
    },
    simulation::{
        named_cases::{Refusing, on_a_node},
        subject::Rules,
    },
};

/// Longer than anything here takes unless it hangs.
const DEADLINE: Duration = Duration::from_secs(20);

/// A node in userspace mode.
struct Node<'a> {
    kernel: &'a Kernel,
    refusing: Refusing,
    mode: &'a mut Userspace,
}

impl Node<'_> {
    /// Makes the node serve Services, all of which count as changed. Returns whether everything is
    /// applied.
    async fn serve(&mut self, map: &ServiceMap, before: &ServiceMap) -> bool {
        let all = map.iter().chain(before.iter());
        let changes = Changes {
            ports: all.map(|port| port.name.clone()).collect(),
            full: true,
            ..Changes::default()
        };
        let asked = PerFamily::each(|_| Some(&changes));
        let outcomes = self.mode.sync(map, asked).await;
        outcomes.into_iter().all(|(_, outcome)| {
            let report = outcome.expect("an answer");
            report.is_ok_and(|report| report.failed.is_empty())
        })
    }

    fn read<T>(&self, read: impl FnOnce(&State) -> T) -> T {
        let mut found = None;
        self.kernel.change(|state| found = Some(read(state)));
        found.expect("it was called")
    }
}

/// Runs `test` with a node of its own.
fn on_node(test: impl AsyncFnOnce(Node<'_>) + Send + 'static) {
    in_node(|| {
        let refusing = Refusing::default();
        on_a_node(OfLocal, refusing.clone(), async |kernel, mode| {
            test(Node {
                kernel,
                refusing,
                mode,
            })
            .await;
        });
    });
}

/// Returns the second Service of the simulation, or the first, whose cluster IPs are checked.
fn service(protocol: Protocol, last: u8) -> ServicePort {
    let mut port = ServicePort {
        endpoints: endpoints([endpoint(([10, 244, 0, 1], 8080))]),
        ..service_port("web", [10, 96, 0, last])
    };
    port.name = port.name.over(protocol);
    port
}

/// If any added or removed rule is refused, UDP packets to other ports of a cluster IP are not
/// delivered to listeners on the node.
#[test]
fn no_refused_rule_has_other_udp_ports_delivered() {
    on_node(async |mut node| {
        let none = ServiceMap::default();
        let both: ServiceMap = [service(Protocol::Udp, 2), service(Protocol::Tcp, 1)]
            .into_iter()
            .collect();
        for kind in [libc::RTM_NEWRULE, libc::RTM_DELRULE] {
            let mut number = 0;
            loop {
                let is_one = move |call| matches!(call, Call::Requests(of, _) if of == kind);
                node.refusing.refuse(is_one, number, 1);
                let came = node.serve(&both, &none).await;
                let open = node.read(|state| OfLocal.exposed(state, Family::V4));
                assert_eq!(open, None, "rules come: {kind} {number}");
                let went = node.serve(&none, &both).await;
                let open = node.read(|state| OfLocal.exposed(state, Family::V4));
                assert_eq!(open, None, "rules go: {kind} {number}");
                let was_refused = node.refusing.stop() == 0;
                assert_eq!(was_refused, !came || !went, "it is said");
                if !was_refused {
                    break;
                }
                number += 1;
            }
            assert!(number > 2, "{number} requests were refused");
        }
    });
}

#[test]
fn a_connection_goes_on_whose_service_had_no_endpoint_before_it_went() {
    on_node(async |mut node| {
        let web = service(Protocol::Tcp, 1);
        let without = ServicePort {
            endpoints: endpoints([]),
            ..web.clone()
        };
        let [web, without] = [web, without].map(|port| [port].into_iter().collect::<ServiceMap>());
        let packet = Packet {
            source: ([10, 9, 0, 1], 40_000).into(),
            destination: ([10, 96, 0, 1], 80).into(),
            protocol: Protocol::Tcp.number(),
            input: Some("eth0"),
            established: None,
        };
        let none = ServiceMap::default();
        node.serve(&web, &none).await;
        let open = OfLocal.accept(&packet).expect("it listens");
        node.serve(&without, &web).await;
        node.serve(&none, &without).await;
        let led = |node: &Node| node.read(|state| state.links.led(Family::V4, &packet));
        assert_eq!(led(&node), Led::Here, "the connection is open");
        drop(open);
        // The worker may not have closed its listener yet.
        let begun = Instant::now();
        while led(&node) != Led::Elsewhere {
            assert!(begun.elapsed() < DEADLINE, "the address is still captured");
            node.serve(&none, &none).await;
        }
    });
}
