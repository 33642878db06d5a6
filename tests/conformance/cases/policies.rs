//! Traffic policies, and topology hints.

use super::*;

pub fn cases() -> Vec<Case> {
    [
        external(),
        external_without_ready_endpoints(),
        internal(),
        topology(),
    ]
    .concat()
}

/// The external policy Local: which endpoints serve whom.
fn external() -> Vec<Case> {
    vec![
        case(
            "External policy Local, from outside: endpoints on the node, which see the caller",
            load_balancer(ALL).external_policy("Local"),
        )
        .when([Outside, OtherNode])
        .calls([NodePort, LoadBalancer])
        .over([Tcp, Udp])
        .sees(each(HERE).seeing_the_caller()),
        case(
            "External policy Local, from pods of this node and of others: every endpoint",
            load_balancer(ALL).external_policy("Local"),
        )
        .when(Pod)
        .calls([NodePort, LoadBalancer])
        .over([Tcp, Udp])
        .sees(each(ALL).seeing_the_caller())
        .but(
            ipvs,
            Why::OneServerForAllCallers,
            each(HERE).seeing_the_caller(),
        )
        .when(Pod)
        .calls(ClusterIp)
        .sees(each(ALL).seeing_the_caller()),
        case(
            "External policy Local, from a pod of another node",
            load_balancer(HERE).external_policy("Local"),
        )
        .when(RemotePod)
        .calls([NodePort, LoadBalancer])
        .sees(each(HERE).seeing_the_caller()),
        case(
            "External policy Local, from the node: every endpoint",
            load_balancer(ALL).external_policy("Local"),
        )
        .when(Node)
        .calls([NodePort, LoadBalancer])
        .over([Tcp, Udp])
        .sees(each(ALL).seeing_the_node())
        .but(ipvs, Why::OneServerForAllCallers, each(HERE)),
        case(
            "External policy Local without endpoints on the node: no answer outside",
            load_balancer(ELSEWHERE).external_policy("Local"),
        )
        .when([Outside, OtherNode])
        .calls([NodePort, LoadBalancer])
        .over([Tcp, Udp])
        .sees(Silent)
        .then("an endpoint comes to the node", |web| web.on([A, C]))
        .when(Outside)
        .calls([NodePort, LoadBalancer])
        .over([Tcp, Udp])
        .sees(each([A]).seeing_the_caller()),
        case(
            "External policy Local without endpoints on the node: pods and the node are served",
            load_balancer(ELSEWHERE).external_policy("Local"),
        )
        .when([Pod, Node])
        .calls([NodePort, LoadBalancer, ClusterIp])
        .over([Tcp, Udp])
        .sees(each(ELSEWHERE)),
    ]
}

/// The external policy Local with endpoints that are not ready, or when it changes.
fn external_without_ready_endpoints() -> Vec<Case> {
    vec![
        case(
            "External policy Local without any endpoint: refused",
            load_balancer([]).external_policy("Local"),
        )
        .when([Outside, Pod, Node])
        .calls([NodePort, LoadBalancer])
        .over([Tcp, Udp])
        .sees(Refused),
        case(
            "External policy Local: terminating endpoints here serve when none here is ready",
            load_balancer([])
                .external_policy("Local")
                .with([terminating(A), ending(B), ready(C)]),
        )
        .when(Outside)
        .calls([NodePort, LoadBalancer])
        .over([Tcp, Udp])
        .sees(each([A]).seeing_the_caller())
        .when(Pod)
        .calls(ClusterIp)
        .sees(each([C])),
        case(
            "The external policy changes and changes back",
            load_balancer(ALL),
        )
        .when(Outside)
        .calls([NodePort, LoadBalancer])
        .sees(each(ALL).seeing_the_node())
        .then("it is Local", |web| web.external_policy("Local"))
        .when(Outside)
        .calls([NodePort, LoadBalancer])
        .over([Tcp, Udp])
        .sees(each(HERE).seeing_the_caller())
        .then("it is Cluster again", |web| web.external_policy("Cluster"))
        .when(Outside)
        .calls([NodePort, LoadBalancer])
        .over([Tcp, Udp])
        .sees(each(ALL).seeing_the_node()),
        case(
            "Hairpin with an external policy of Local: an endpoint reaches itself",
            load_balancer([A]).external_policy("Local"),
        )
        .when(Backend)
        .calls([NodePort, LoadBalancer])
        .sees(each([A]).seeing_the_node()),
    ]
}

/// The internal policy Local.
fn internal() -> Vec<Case> {
    vec![
        case(
            "Internal policy Local: pods and node reach endpoints on the node",
            cluster_ip(ALL).internal_policy("Local"),
        )
        .when(Pod)
        .calls(ClusterIp)
        .over([Tcp, Udp])
        .sees(each(HERE).seeing_the_caller())
        .when(Node)
        .calls(ClusterIp)
        .over([Tcp, Udp])
        .sees(each(HERE)),
        case(
            "Internal policy Local without endpoints on the node: no answer",
            cluster_ip(ELSEWHERE).internal_policy("Local"),
        )
        .when([Pod, Node])
        .calls(ClusterIp)
        .over([Tcp, Udp])
        .sees(Silent)
        .but(no_silence, Why::NobodyHereIsRefused, Refused)
        .then("an endpoint comes to the node", |web| web.on([A, C]))
        .when([Pod, Node])
        .calls(ClusterIp)
        .over([Tcp, Udp])
        .sees(each([A])),
        case(
            "Internal policy Local does not apply to node ports",
            everywhere(ALL).internal_policy("Local"),
        )
        .when(Outside)
        .calls([NodePort, LoadBalancer, ExternalIp])
        .sees(each(ALL).seeing_the_node())
        .when(Pod)
        .calls([NodePort, LoadBalancer, ExternalIp])
        .sees(each(ALL)),
        case(
            "Internal policy Local: terminating endpoints here serve when none here is ready",
            cluster_ip([])
                .internal_policy("Local")
                .with([terminating(A), ending(B), ready(C)]),
        )
        .when([Pod, Node])
        .calls(ClusterIp)
        .over([Tcp, Udp])
        .sees(each([A])),
        case(
            "The internal policy changes and changes back",
            cluster_ip(ALL),
        )
        .when(Pod)
        .calls(ClusterIp)
        .sees(each(ALL))
        .then("it is Local", |web| web.internal_policy("Local"))
        .when([Pod, Node])
        .calls(ClusterIp)
        .over([Tcp, Udp])
        .sees(each(HERE))
        .then("it is Cluster again", |web| web.internal_policy("Cluster"))
        .when([Pod, Node])
        .calls(ClusterIp)
        .over([Tcp, Udp])
        .sees(each(ALL)),
        case(
            "Both policies Local",
            load_balancer(ALL)
                .internal_policy("Local")
                .external_policy("Local"),
        )
        .when(Pod)
        .calls(ClusterIp)
        .sees(each(HERE))
        .when(Outside)
        .calls([NodePort, LoadBalancer])
        .sees(each(HERE).seeing_the_caller()),
    ]
}

/// Hints for zones and nodes.
fn topology() -> Vec<Case> {
    vec![
        case(
            "Hints for zones: endpoints for the node's zone",
            everywhere([]).with([
                ready(A).for_zone("east"),
                ready(B).for_zone("west"),
                ready(C).for_zone("east"),
            ]),
        )
        .when([Pod, Node])
        .calls(ClusterIp)
        .over([Tcp, Udp])
        .sees(each([A, C]))
        .when(Outside)
        .calls([NodePort, LoadBalancer, ExternalIp])
        .sees(each([A, C])),
        case(
            "Hints have no effect if one endpoint has none",
            cluster_ip([]).with([
                ready(A).for_zone("east"),
                ready(B).for_zone("west"),
                ready(C),
            ]),
        )
        .when(Pod)
        .calls(ClusterIp)
        .sees(each(ALL)),
        case(
            "Hints only for other zones have no effect",
            cluster_ip([]).with(ALL.map(|pod| ready(pod).for_zone("west"))),
        )
        .when(Pod)
        .calls(ClusterIp)
        .sees(each(ALL)),
        case(
            "Hints for nodes: endpoints for this node",
            cluster_ip([]).with(ALL.map(|pod| ready(pod).for_node(pod.node()))),
        )
        .when([Pod, Node])
        .calls(ClusterIp)
        .sees(each(HERE)),
        case("Hints are added and removed", cluster_ip(ALL))
            .then("hints come", |web| {
                web.with(
                    [A, B, C]
                        .map(|pod| ready(pod).for_zone(if pod == B { "east" } else { "west" })),
                )
            })
            .when(Pod)
            .calls(ClusterIp)
            .sees(each([B]))
            .then("hints go", |web| web.on(ALL))
            .when(Pod)
            .calls(ClusterIp)
            .sees(each(ALL)),
    ]
}
