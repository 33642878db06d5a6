//! Cluster IPs: who calls them, and how much of what they get.

use super::*;

pub fn cases() -> Vec<Case> {
    vec![
        case(
            "Every endpoint gets an equal share of a pod's connections",
            cluster_ip(ALL),
        )
        .when(Pod)
        .calls(ClusterIp)
        .sees(equal_shares(ALL)),
        case(
            "A pod reaches every endpoint and keeps its address",
            cluster_ip(ALL),
        )
        .when(Pod)
        .calls(ClusterIp)
        .over([Tcp, Udp])
        .sees(each(ALL).seeing_the_caller()),
        case(
            "SCTP: a pod reaches every endpoint",
            cluster_ip(ALL).with_sctp(),
        )
        .when(Pod)
        .calls(ClusterIp)
        .over(Sctp)
        .sees(each(ALL)),
        case("The node reaches every endpoint", cluster_ip(ALL))
            .when(Node)
            .calls(ClusterIp)
            .over([Tcp, Udp])
            .sees(each(ALL).seeing_the_node()),
        case(
            "Hairpin: an endpoint reaches every endpoint, itself too",
            cluster_ip(ALL),
        )
        .when(Backend)
        .calls(ClusterIp)
        .over([Tcp, Udp])
        .sees(each(ALL).seeing_the_caller()),
        case("Hairpin: the only endpoint reaches itself", cluster_ip([A]))
            .when(Backend)
            .calls(ClusterIp)
            .over([Tcp, Udp])
            .sees(each([A]).seeing_the_node()),
        case(
            "From outside, by a route to the node: endpoints see the node",
            cluster_ip(ALL),
        )
        .when([Outside, OtherNode])
        .calls(ClusterIp)
        .over([Tcp, Udp])
        .sees(each(ALL).seeing_the_node()),
        case(
            "A pod of another node, by a route to this node, keeps its address",
            cluster_ip(HERE),
        )
        .when(RemotePod)
        .calls(ClusterIp)
        .sees(each(HERE).seeing_the_caller()),
        case(
            "Several ports: each leads to its own target port",
            cluster_ip(ALL).with_second_port(),
        )
        .when(Pod)
        .calls(ClusterIp)
        .sees(each(ALL))
        .when(Pod)
        .calls(ClusterIp)
        .at_port(SECOND_PORT)
        .sees(each(ALL).at(SECOND_TARGET)),
        case(
            "One port of a Service goes, the other stays",
            cluster_ip(ALL).with_second_port(),
        )
        .when(Pod)
        .calls(ClusterIp)
        .at_port(SECOND_PORT)
        .sees(each(ALL).at(SECOND_TARGET))
        .then("the second port goes", |web| web.without_second_port())
        .when(Pod)
        .calls(ClusterIp)
        .sees(each(ALL))
        .when(Pod)
        .calls(ClusterIp)
        .at_port(SECOND_PORT)
        .sees(Unserved)
        .but(ipvs, Why::AddressTakenWhole, Refused),
        case(
            "The same port number over TCP and UDP serves both",
            cluster_ip(ALL),
        )
        .when([Pod, Node])
        .calls(ClusterIp)
        .over([Tcp, Udp])
        .sees(each(ALL)),
        case("Other ports of a cluster IP are nobody's", cluster_ip(ALL))
            .when(Pod)
            .calls(ClusterIp)
            .at_port(99)
            .sees(Unserved)
            .but(ipvs, Why::AddressTakenWhole, Refused),
        case(
            "IPv4 alone: the Service has no IPv6 address",
            cluster_ip(ALL).single_stack(V4),
        )
        .when(Pod)
        .calls(ClusterIp)
        .by(V4)
        .sees(each(ALL))
        .when(Pod)
        .calls(ClusterIp)
        .by(V6)
        .sees(Unserved),
        case(
            "IPv6 alone: the Service has no IPv4 address",
            cluster_ip(ALL).single_stack(V6),
        )
        .when(Pod)
        .calls(ClusterIp)
        .by(V6)
        .sees(each(ALL))
        .when(Pod)
        .calls(ClusterIp)
        .by(V4)
        .sees(Unserved),
        case(
            "Dual-stack with endpoints of one family: the other is refused",
            cluster_ip(ALL).endpoints_of(V4),
        )
        .when(Pod)
        .calls(ClusterIp)
        .by(V4)
        .sees(each(ALL))
        .when(Pod)
        .calls(ClusterIp)
        .by(V6)
        .sees(Refused),
        case(
            "A Service becomes dual-stack",
            cluster_ip(ALL).single_stack(V4),
        )
        .when(Pod)
        .calls(ClusterIp)
        .by(V4)
        .sees(each(ALL))
        .then("it gets an IPv6 address", |web| web.dual_stack())
        .when(Pod)
        .calls(ClusterIp)
        .sees(each(ALL)),
        case(
            "A Service for another proxy (service-proxy-name) is left alone",
            cluster_ip(ALL).labelled("service.kubernetes.io/service-proxy-name", "another"),
        )
        .when([Pod, Node])
        .calls(ClusterIp)
        .sees(Unserved)
        .then("the label goes", |web| web.unlabelled())
        .when([Pod, Node])
        .calls(ClusterIp)
        .sees(each(ALL)),
        case(
            "--masquerade-all: endpoints see the node when a pod calls",
            cluster_ip(ALL),
        )
        .with_flags(Flags::MasqueradeAll)
        .when(Pod)
        .calls(ClusterIp)
        .over([Tcp, Udp])
        .sees(each(ALL).seeing_the_node()),
    ]
}
