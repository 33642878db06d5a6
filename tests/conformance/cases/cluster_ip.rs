//! Cluster IPs: callers, and their shares of the endpoints.

use super::*;

pub fn cases() -> Vec<Case> {
    [
        callers(),
        several_ports(),
        changed_ports(),
        datagrams_and_other_ports(),
        ip_families(),
        other_services(),
    ]
    .concat()
}

/// Callers, and their shares of the endpoints.
fn callers() -> Vec<Case> {
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
            "Hairpin: an endpoint reaches every endpoint, including itself",
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
    ]
}

/// Several ports, and one number over two protocols.
fn several_ports() -> Vec<Case> {
    vec![
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
            "One port of a Service is removed, the other stays",
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
        .but(nftables, Why::OtherPortsRefused, Refused)
        .but(ipvs, Why::AddressTakenWhole, Refused),
        case(
            "The same port number over TCP and UDP serves both",
            cluster_ip(ALL),
        )
        .when([Pod, Node])
        .calls(ClusterIp)
        .over([Tcp, Udp])
        .sees(each(ALL)),
        case(
            "The same port number over TCP and UDP, then over one of them",
            node_port(ALL),
        )
        .when([Pod, Node])
        .calls([ClusterIp, NodePort])
        .over([Tcp, Udp])
        .sees(each(ALL))
        .then("it is TCP alone", |web| web.without("UDP"))
        .when(Pod)
        .calls([ClusterIp, NodePort])
        .sees(each(ALL))
        .when(Pod)
        .calls(NodePort)
        .over(Udp)
        .sees(Refused)
        .when(Pod)
        .calls(ClusterIp)
        .over(Udp)
        .sees(Unserved)
        .but(nftables, Why::OtherPortsRefused, Refused)
        .but(ipvs, Why::AddressTakenWhole, Refused)
        .then("it is UDP alone", |web| web.without("TCP"))
        .when(Pod)
        .calls([ClusterIp, NodePort])
        .over(Udp)
        .sees(each(ALL))
        .when(Pod)
        .calls(NodePort)
        .sees(Refused)
        .when(Pod)
        .calls(ClusterIp)
        .sees(Unserved)
        .but(nftables, Why::OtherPortsRefused, Refused)
        .but(ipvs, Why::AddressTakenWhole, Refused),
    ]
}

/// Ports next to others and with other numbers.
fn changed_ports() -> Vec<Case> {
    vec![
        case(
            "An SCTP port does not affect the others",
            everywhere(ALL).with_sctp(),
        )
        .when([Pod, Node])
        .calls([ClusterIp, NodePort])
        .over([Tcp, Udp])
        .sees(each(ALL))
        .when(Outside)
        .calls([NodePort, LoadBalancer, ExternalIp])
        .over([Tcp, Udp])
        .sees(each(ALL)),
        case(
            "Two ports exchange their numbers",
            node_port(ALL).with_second_port(),
        )
        .when(Pod)
        .calls([ClusterIp, NodePort])
        .sees(each(ALL))
        .then("they do", |web| web.exchange_ports())
        .when([Pod, Outside])
        .calls(NodePort)
        .sees(each(ALL).at(SECOND_TARGET))
        .when([Pod, Outside])
        .calls(NodePort)
        .at_port(SECOND_PORT)
        .sees(each(ALL))
        .when([Pod, Node])
        .calls(ClusterIp)
        .sees(each(ALL).at(SECOND_TARGET))
        .when([Pod, Node])
        .calls(ClusterIp)
        .at_port(SECOND_PORT)
        .sees(each(ALL)),
        case("Port and node port change their numbers", everywhere(ALL))
            .when(Outside)
            .calls([NodePort, LoadBalancer])
            .sees(each(ALL))
            .then("they do", |web| web.exchange_ports())
            .when([Pod, Outside])
            .calls([NodePort, LoadBalancer, ExternalIp])
            .at_port(SECOND_PORT)
            .over([Tcp, Udp])
            .sees(each(ALL))
            .when(Pod)
            .calls(ClusterIp)
            .at_port(SECOND_PORT)
            .over([Tcp, Udp])
            .sees(each(ALL))
            .when([Pod, Outside])
            .calls(NodePort)
            .over([Tcp, Udp])
            .sees(Refused)
            .when([Pod, Outside])
            .calls([LoadBalancer, ExternalIp])
            .over([Tcp, Udp])
            .sees(Unserved)
            .but(ipvs, Why::AddressTakenWhole, Refused),
    ]
}

/// Large datagrams, and ports that no Service has.
fn datagrams_and_other_ports() -> Vec<Case> {
    vec![
        case(
            "UDP: large datagrams get through both ways",
            everywhere(ALL),
        )
        // The node's own datagrams leave whole, because loopback accepts them; IPVS forwards them
        // only after it has reported how much the next link accepts.
        .when(Pod)
        .calls([ClusterIp, NodePort])
        .over(Udp)
        .with_large_datagrams()
        .sees(each(ALL))
        .when(Outside)
        .calls([NodePort, LoadBalancer, ExternalIp])
        .over(Udp)
        .with_large_datagrams()
        .sees(each(ALL)),
        case(
            "Other ports of a cluster IP are not served",
            cluster_ip(ALL),
        )
        .when(Pod)
        .calls(ClusterIp)
        .at_port(99)
        .sees(Unserved)
        .but(nftables, Why::OtherPortsRefused, Refused)
        .but(ipvs, Why::AddressTakenWhole, Refused),
    ]
}

/// Services and endpoints of one family or of both.
fn ip_families() -> Vec<Case> {
    vec![
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
    ]
}

/// Services of other proxies, those that are no longer served, and those that change hands; a flag.
fn other_services() -> Vec<Case> {
    vec![
        case(
            "A Service for another proxy (service-proxy-name) is ignored",
            cluster_ip(ALL)
                .labelled("service.kubernetes.io/service-proxy-name", "another")
                .slice_labelled("service.kubernetes.io/service-proxy-name"),
        )
        .when([Pod, Node])
        .calls(ClusterIp)
        .sees(Unserved)
        .then("the label goes, though not from its slices", |web| {
            web.unlabelled()
        })
        .when([Pod, Node])
        .calls(ClusterIp)
        .sees(each(ALL)),
        case(
            "A Service becomes ExternalName and NodePort",
            cluster_ip(ALL),
        )
        .when(Pod)
        .calls(ClusterIp)
        .sees(each(ALL))
        .then("it is of type ExternalName", |web| {
            web.becomes("ExternalName")
        })
        .when([Pod, Node])
        .calls(ClusterIp)
        .over([Tcp, Udp])
        .sees(Unserved)
        .then("it is of type NodePort", |web| web.becomes("NodePort"))
        .when([Pod, Node])
        .calls([ClusterIp, NodePort])
        .over([Tcp, Udp])
        .sees(each(ALL)),
        case(
            "Another Service takes over all addresses at once",
            everywhere(HERE),
        )
        .when([Pod, Outside])
        .calls([NodePort, LoadBalancer, ExternalIp])
        .sees(each(HERE))
        .then("one of another name takes its place", |web| {
            web.under_another_name().on(ELSEWHERE)
        })
        .when([Pod, Outside])
        .calls([NodePort, LoadBalancer, ExternalIp])
        .over([Tcp, Udp])
        .sees(each(ELSEWHERE))
        .when([Pod, Node])
        .calls(ClusterIp)
        .over([Tcp, Udp])
        .sees(each(ELSEWHERE)),
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
