//! Where node ports listen once this node's object says where they are served.

use std::{net::SocketAddr, sync::Arc};

use net::{Family, PerFamily, Protocol};
use serde_json::json;
use simulated::{Faultless, Kernel};

use super::{
    super::{
        stopped_clock,
        subject::{Rules, Subject},
        world,
    },
    LISTENING, in_node,
    local::OfLocal,
    mode_with,
};
use crate::{
    config::NodePortAddresses,
    modes::{Mode, userspace::capture::Requested},
    node::NodePorts,
    services::{Changes, EndpointSlice, Event, Loopback, Names, Node, Object, Service, Tracker},
};

const PORT: u16 = 30_080;

/// This node's object, with its addresses.
fn node() -> Event {
    let addresses = Family::ALL.map(
        |family| json!({"type": "InternalIP", "address": world::node_address(family).to_string()}),
    );
    let object = json!({"metadata": {"name": world::NODE}, "status": {"addresses": addresses}});
    let object = serde_json::from_value(object).expect("a Node");
    let node = Node::reduce(&object, &mut Names::default()).expect("a good Node");
    Event::Changed(Object::Node(Arc::new(node.object)))
}

/// Returns a Service of both families with a node port.
fn service() -> Event {
    let object = json!({
        "metadata": {"namespace": "ns", "name": "web"},
        "spec": {
            "type": "NodePort", "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1", "fd00:96::1"],
            "ipFamilies": ["IPv4", "IPv6"], "ports": [{"port": 80, "nodePort": PORT}],
        },
    });
    let object = serde_json::from_value(object).expect("a Service");
    let service = Service::reduce(&object, &mut Names::default()).expect("a good Service");
    Event::Changed(Object::Service(Arc::new(service.object)))
}

/// Its endpoints of this family.
fn slice(family: Family) -> Event {
    let endpoint = world::ip(family, 244, 1);
    let object = json!({
        "metadata": {
            "namespace": "ns", "name": format!("web-{family}").to_lowercase(),
            "labels": {"kubernetes.io/service-name": "web"},
        },
        "addressType": family.to_string(),
        "ports": [{"port": 8080}],
        "endpoints": [{"addresses": [endpoint]}],
    });
    let object = serde_json::from_value(object).expect("an EndpointSlice");
    let slice = EndpointSlice::reduce(&object, Loopback::Refused, &mut Names::default())
        .expect("a good slice");
    Event::Changed(Object::EndpointSlice(Arc::new(slice.object)))
}

/// During a full sync of one family the runner notices first where node ports are served.
#[test]
fn they_listen_in_both_families_whoever_noticed_the_change_first() {
    in_node(|| {
        stopped_clock().block_on(async {
            let kernel = Kernel::new(Faultless);
            let _entered = kernel.enter();
            kernel.change(|state| OfLocal.prepare(state));
            let primary = NodePortAddresses {
                primary: true,
                ..NodePortAddresses::default()
            };
            let node_ports = Arc::new(NodePorts::new(&primary, None));
            let served = Arc::clone(&node_ports);
            let mut mode = mode_with(&OfLocal.kernel(), Requested::Local, served);
            let mut tracker = Tracker::new(world::NODE);
            tracker.apply([service(), slice(Family::V4), slice(Family::V6)]);
            let full = Changes {
                full: true,
                ..Changes::default()
            };
            let nothing = Changes::default();
            mode.sync(tracker.map(), PerFamily::each(|_| Some(&full)))
                .await;
            let listens = |family| {
                let at = SocketAddr::new(world::node_address(family), PORT);
                LISTENING.with_borrow(|all| !all.at(Protocol::Tcp, at).is_empty())
            };
            assert_eq!(
                Family::ALL.map(listens),
                [false; 2],
                "it is not known where"
            );

            tracker.apply([node()]);
            node_ports.update(tracker.node());
            let asked = PerFamily {
                v4: Some(&full),
                v6: Some(&nothing),
            };
            let outcomes = mode.sync(tracker.map(), asked).await;
            for (family, outcome) in outcomes {
                let report = outcome.expect("an answer").expect("it is applied");
                assert_eq!((report.failed.len(), report.unfinished.len()), (0, 0));
                assert!(listens(family), "{family}");
            }
        });
    });
}
