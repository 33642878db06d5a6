//! Load-balancer IPs and health-check node ports.

use super::*;

pub fn cases() -> Vec<Case> {
    [callers(), kinds(), shared_addresses(), health_checks()].concat()
}

/// Callers, and the client address that endpoints see.
fn callers() -> Vec<Case> {
    vec![
        case(
            "Load balancer, from outside: every endpoint, which sees the node",
            load_balancer(ALL),
        )
        .when([Outside, OtherNode])
        .calls(LoadBalancer)
        .over([Tcp, Udp])
        .sees(each(ALL).seeing_the_node()),
        case("SCTP: from outside", load_balancer(ALL).with_sctp())
            .when(Outside)
            .calls(LoadBalancer)
            .over(Sctp)
            .sees(each(ALL)),
        case(
            "Load balancer, from a pod: directly, endpoints see the node",
            load_balancer(ALL),
        )
        .when(Pod)
        .calls(LoadBalancer)
        .over([Tcp, Udp])
        .sees(each(ALL).seeing_the_node()),
        case("Load balancer, from the node: directly", load_balancer(ALL))
            .when(Node)
            .calls(LoadBalancer)
            .over([Tcp, Udp])
            .sees(each(ALL).seeing_the_node()),
        case(
            "Hairpin: an endpoint reaches itself by the load balancer",
            load_balancer([A]),
        )
        .when(Backend)
        .calls(LoadBalancer)
        .sees(each([A]).seeing_the_node()),
    ]
}

/// ipMode and the type of the Service, initially and after changes.
fn kinds() -> Vec<Case> {
    vec![
        case(
            "ipMode Proxy: pods go to the real load balancer",
            load_balancer(ALL).ip_mode_proxy(),
        )
        .when([Pod, Node])
        .calls(LoadBalancer)
        .over([Tcp, Udp])
        .sees(Unserved)
        .when(Outside)
        .calls(NodePort)
        .sees(each(ALL)),
        case(
            "ipMode changes from Proxy to VIP",
            load_balancer(ALL).ip_mode_proxy(),
        )
        .when(Pod)
        .calls(LoadBalancer)
        .sees(Unserved)
        .then("it is VIP", |web| web.ip_mode_vip())
        .when(Pod)
        .calls(LoadBalancer)
        .sees(each(ALL)),
        case(
            "allocateLoadBalancerNodePorts false: the IP without node ports",
            load_balancer(ALL).without_node_ports(),
        )
        .when([Outside, Pod])
        .calls(LoadBalancer)
        .sees(each(ALL))
        .when(Outside)
        .calls(NodePort)
        .sees(Refused),
        case(
            "A Service becomes LoadBalancer and ClusterIP again",
            cluster_ip(ALL),
        )
        .when([Outside, Pod])
        .calls(LoadBalancer)
        .sees(Unserved)
        .then("it is of type LoadBalancer", |web| {
            web.becomes("LoadBalancer")
        })
        .when([Outside, Pod, Node])
        .calls([LoadBalancer, NodePort])
        .sees(each(ALL))
        .then("it is of type ClusterIP", |web| web.becomes("ClusterIP"))
        .when([Outside, Pod, Node])
        .calls(LoadBalancer)
        .over([Tcp, Udp])
        .sees(Unserved),
        case(
            "LoadBalancer becomes NodePort: the node port keeps working",
            load_balancer(ALL),
        )
        .then("it is of type NodePort", |web| web.becomes("NodePort"))
        .when([Outside, Pod])
        .calls(NodePort)
        .sees(each(ALL))
        .when([Outside, Pod])
        .calls(LoadBalancer)
        .sees(Unserved),
    ]
}

/// Load-balancer IPs that others also have.
fn shared_addresses() -> Vec<Case> {
    vec![
        case(
            "Two Services share a load-balancer IP, and one is removed",
            everywhere(HERE).with_second_port_in_slices_of_its_own(),
        )
        .when([Outside, Pod])
        .calls([LoadBalancer, ExternalIp])
        .sees(each(HERE))
        .when([Outside, Pod])
        .calls([LoadBalancer, ExternalIp])
        .at_port(SECOND_PORT)
        .sees(each(HERE).at(SECOND_TARGET))
        .then("the second one goes", |web| web.without_second_port())
        .when([Outside, Pod])
        .calls([LoadBalancer, ExternalIp])
        .sees(each(HERE))
        .when([Outside, Pod])
        .calls([LoadBalancer, ExternalIp])
        .at_port(SECOND_PORT)
        .sees(Unserved)
        .but(ipvs, Why::AddressTakenWhole, Refused),
        case(
            "The load balancer's IP is also an external IP",
            everywhere(ALL).balanced_at(ExternalIp),
        )
        .when([Outside, Pod, Node])
        .calls(ExternalIp)
        .over([Tcp, Udp])
        .sees(each(ALL).seeing_the_node())
        .then("it is the balancer's alone", |web| {
            web.without_external_ip()
        })
        .when([Outside, Pod, Node])
        .calls(ExternalIp)
        .over([Tcp, Udp])
        .sees(each(ALL).seeing_the_node()),
        case(
            "The load balancer's IP is one of the node's own",
            load_balancer(ALL).balanced_at(SecondNodeAddress),
        )
        .when([Outside, Pod, Node])
        .calls(SecondNodeAddress)
        .over([Tcp, Udp])
        .sees(each(ALL).seeing_the_node())
        .then("it is of type ClusterIP", |web| web.becomes("ClusterIP"))
        .when([Outside, Pod, Node])
        .calls(SecondNodeAddress)
        .over([Tcp, Udp])
        .sees(Refused),
    ]
}

/// The health-check node port.
fn health_checks() -> Vec<Case> {
    vec![
        case(
            "Health-check node port: terminating endpoints serve, but do not count",
            load_balancer(HERE).external_policy("Local"),
        )
        .when(Outside)
        .calls(HealthCheck)
        .sees(Healthy(2))
        .then("both are terminating", |web| {
            web.with(HERE.map(terminating))
        })
        .when([Outside, Pod])
        .calls(HealthCheck)
        .sees(Unhealthy)
        .when([Outside, OtherNode, RemotePod, Pod])
        .calls([NodePort, LoadBalancer])
        .over([Tcp, Udp])
        .sees(each(HERE)),
        case(
            "Health-check node port: counts the endpoints on the node",
            load_balancer(ALL).external_policy("Local"),
        )
        .when([Outside, Pod])
        .calls(HealthCheck)
        .sees(Healthy(2))
        .then("one is left here", |web| web.on([A, C]))
        .when(Outside)
        .calls(HealthCheck)
        .sees(Healthy(1))
        .then("none is left here", |web| web.on(ELSEWHERE))
        .when(Outside)
        .calls(HealthCheck)
        .sees(Unhealthy)
        .then("the policy is Cluster", |web| {
            web.on(ALL).external_policy("Cluster")
        })
        .when(Outside)
        .calls(HealthCheck)
        .sees(Refused),
    ]
}
