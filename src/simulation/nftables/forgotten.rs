//! UDP clients with session affinity that cannot be forgotten at once when their endpoint leaves.

use std::time::Duration;

use net::Protocol;
use netlink::conntrack::flows::{Tuple, UDP};
use nix::libc;
use simulated::Call;

use super::OfNftables;
use crate::{
    modes::{Mode, nftables::Nftables},
    services::{
        Changes, ServiceMap,
        service_ports::{endpoint, endpoints, service_port},
    },
    simulation::{
        self,
        named_cases::{Refusing, on_a_node},
    },
};

/// Requests that list elements (`NFT_MSG_GETSETELEM`): those of the map of clients.
const ELEMENTS: u16 = (libc::NFNL_SUBSYS_NFTABLES as u16) << 8 | libc::NFT_MSG_GETSETELEM as u16;
const DNS: [u8; 4] = [10, 96, 0, 10];
/// Longer than the time between two checks whether others changed something.
const CHECKS: Duration = Duration::from_secs(5);

/// Returns the Service with endpoints that have these last numbers.
fn service(all: &[u8]) -> ServiceMap {
    let mut dns = service_port("dns", DNS);
    dns.name = dns.name.over(Protocol::Udp);
    dns.session_affinity = Some(Duration::from_secs(10_800));
    let all = all.iter().map(|last| endpoint(([10, 244, 0, *last], 80)));
    dns.endpoints = endpoints(all);
    [dns].into_iter().collect()
}

async fn sync(mode: &mut Nftables, map: &ServiceMap, full: bool) {
    let changes = Changes {
        ports: map.iter().map(|port| port.name.clone()).collect(),
        full,
        ..Changes::default()
    };
    simulation::sync(mode, map, &changes).await;
}

#[test]
fn flows_end_that_clients_began_before_they_were_forgotten() {
    let refusing = Refusing::default();
    on_a_node(OfNftables, refusing.clone(), async |kernel, mode| {
        sync(mode, &service(&[1, 2]), true).await;
        refusing.refuse(|call| call == Call::Dump(ELEMENTS), 0, usize::MAX);
        let now = service(&[2]);
        sync(mode, &now, false).await;
        // A client that is still remembered is sent to the endpoint that is gone.
        kernel.change(|state| {
            let (client, called) = (([10, 9, 0, 1], 40_000).into(), (DNS, 80).into());
            let tuple = |source, destination| Tuple {
                source,
                destination,
            };
            let reply = tuple(([10, 244, 0, 1], 80).into(), client);
            let conntrack = &mut state.conntrack;
            conntrack.enter(UDP, tuple(client, called), reply);
        });
        refusing.stop();
        let modified = tokio::time::timeout(CHECKS, mode.externally_modified());
        assert!(modified.await.is_ok(), "a sync is asked for");
        sync(mode, &now, true).await;
        kernel.change(|state| {
            let left: Vec<_> = state.conntrack.flows().map(ToString::to_string).collect();
            assert_eq!(left, [""; 0]);
        });
    });
}
