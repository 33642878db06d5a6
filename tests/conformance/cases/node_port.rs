//! Node ports: their addresses, callers, and the client address that endpoints see.

use super::*;

pub fn cases() -> Vec<Case> {
    [callers(), ports_and_flags(), localhost()].concat()
}

/// Callers, and the client address that endpoints see.
fn callers() -> Vec<Case> {
    vec![
        case(
            "Node port, from outside: every endpoint, which sees the node",
            node_port(ALL),
        )
        .when(Outside)
        .calls(NodePort)
        .over([Tcp, Udp])
        .sees(each(ALL).seeing_the_node()),
        case(
            "SCTP: from outside and from a pod",
            node_port(ALL).with_sctp(),
        )
        .when([Outside, Pod])
        .calls(NodePort)
        .over(Sctp)
        .sees(each(ALL)),
        case(
            "Node port, from a pod: every endpoint, which sees the node",
            node_port(ALL),
        )
        .when(Pod)
        .calls(NodePort)
        .over([Tcp, Udp])
        .sees(each(ALL).seeing_the_node()),
        case("From the node to its own address", node_port(ALL))
            .when(Node)
            .calls([NodePort, SecondNodePort])
            .over([Tcp, Udp])
            .sees(each(ALL).seeing_the_node()),
        case("From the node at 127.0.0.1", node_port(ALL))
            .when(Node)
            .calls(Loopback)
            .over([Tcp, Udp])
            .by(V4)
            .sees(each(ALL).seeing_the_node())
            .but(loopback_by_name, Why::LoopbackIsNotServed, Refused)
            .but(rules_without_conntrack, Why::LoopbackUnguarded, Refused),
        case("At ::1 node ports are refused", node_port(ALL))
            .when(Node)
            .calls(Loopback)
            .by(V6)
            .sees(Refused)
            .but(
                userspace,
                Why::LoopbackOfBothFamilies,
                each(ALL).seeing_the_node(),
            ),
        case("From another node and from its pods", node_port(ALL))
            .when(OtherNode)
            .calls(NodePort)
            .sees(each(ALL).seeing_the_node())
            .when(RemotePod)
            .calls(NodePort)
            .sees(each(ALL).seeing_the_node()),
        case("At every address that the node has", node_port(ALL))
            .when([Outside, Pod])
            .calls(SecondNodePort)
            .over([Tcp, Udp])
            .sees(each(ALL).seeing_the_node()),
        case(
            "Hairpin: an endpoint reaches itself by the node port",
            node_port([A]),
        )
        .when(Backend)
        .calls(NodePort)
        .over([Tcp, Udp])
        .sees(each([A]).seeing_the_node()),
    ]
}

/// Several ports, types that change, and flags.
fn ports_and_flags() -> Vec<Case> {
    vec![
        case(
            "Several ports have a node port each",
            node_port(ALL).with_second_port(),
        )
        .when([Outside, Pod])
        .calls(NodePort)
        .sees(each(ALL))
        .when([Outside, Pod])
        .calls(NodePort)
        .at_port(SECOND_PORT)
        .sees(each(ALL).at(SECOND_TARGET)),
        case(
            "A Service becomes NodePort and ClusterIP again",
            cluster_ip(ALL),
        )
        .when(Outside)
        .calls(NodePort)
        .sees(Refused)
        .then("it is of type NodePort", |web| web.becomes("NodePort"))
        .when([Outside, Pod, Node])
        .calls(NodePort)
        .sees(each(ALL))
        .then("it is of type ClusterIP", |web| web.becomes("ClusterIP"))
        .when([Outside, Pod, Node])
        .calls(NodePort)
        .over([Tcp, Udp])
        .sees(Refused)
        .when(Pod)
        .calls(ClusterIp)
        .sees(each(ALL)),
        case(
            "--nodeport-addresses: other addresses do not serve node ports",
            node_port(ALL),
        )
        .with_flags(Flags::NodePortCidrs)
        .when([Outside, Pod, Node])
        .calls(NodePort)
        .sees(each(ALL))
        .when([Outside, Pod, Node])
        .calls(SecondNodePort)
        .over([Tcp, Udp])
        .sees(Refused)
        .when(Node)
        .calls(Loopback)
        .sees(Refused),
        case(
            "--nodeport-addresses=primary: those of the Node object serve node ports",
            node_port(ALL),
        )
        .with_flags(Flags::NodePortPrimary)
        .when([Outside, Pod, Node])
        .calls(NodePort)
        .sees(each(ALL))
        .when([Outside, Pod])
        .calls(SecondNodePort)
        .sees(Refused)
        .when(Node)
        .calls(Loopback)
        .sees(Refused),
        case(
            "--masquerade-all does not apply to an external policy of Local",
            node_port(ALL).external_policy("Local"),
        )
        .with_flags(Flags::MasqueradeAll)
        .when(Outside)
        .calls(NodePort)
        .sees(each(HERE).seeing_the_caller()),
    ]
}

/// Loopback addresses that serve node ports because they are named.
fn localhost() -> Vec<Case> {
    let case = |name, service| case(name, service).with_flags(Flags::NodePortLocalhost);
    vec![
        case(
            "--nodeport-addresses=primary,localhost: the node calls 127.0.0.1",
            node_port(ALL),
        )
        .when(Node)
        .calls(Loopback)
        .by(V4)
        .sees(each(ALL).seeing_the_node())
        .but(rules_without_conntrack, Why::LoopbackUnguarded, Refused)
        .when(Node)
        .calls(Loopback)
        .over(Udp)
        .by(V4)
        .sees(each(ALL).seeing_the_node())
        .but(loopback_by_name, Why::LoopbackIsRelayed, Refused)
        .but(rules_without_conntrack, Why::LoopbackUnguarded, Refused)
        .when([Outside, Pod, Node])
        .calls(NodePort)
        .sees(each(ALL)),
        case(
            "--nodeport-addresses=primary,localhost: the node calls ::1",
            node_port(ALL),
        )
        .when(Node)
        .calls(Loopback)
        .by(V6)
        .sees(Refused)
        .but(
            |column| !in_iptables(column),
            Why::LoopbackOfBothFamilies,
            each(ALL).seeing_the_node(),
        ),
        case(
            "--nodeport-addresses=primary,localhost: endpoints come and go",
            node_port(ALL),
        )
        .when(Node)
        .calls(Loopback)
        .by(V4)
        .sees(each(ALL))
        .but(rules_without_conntrack, Why::LoopbackUnguarded, Refused)
        .then("one endpoint is left", |web| web.on([A]))
        .when(Node)
        .calls(Loopback)
        .by(V4)
        .sees(each([A]))
        .but(rules_without_conntrack, Why::LoopbackUnguarded, Refused)
        .then("none is", |web| web.on([]))
        .when(Node)
        .calls(Loopback)
        .by(V4)
        .sees(Refused),
        case(
            "--nodeport-addresses=primary,localhost: external policy Local",
            node_port(ALL).external_policy("Local"),
        )
        .when(Node)
        .calls(Loopback)
        .by(V4)
        .sees(each(ALL))
        .but(loopback_by_name, Why::LoopbackIsRelayed, each(HERE))
        .but(rules_without_conntrack, Why::LoopbackUnguarded, Refused)
        .then("none is on the node", |web| web.on(ELSEWHERE))
        .when(Node)
        .calls(Loopback)
        .by(V4)
        .sees(each(ELSEWHERE))
        .but(loopback_by_name, Why::LoopbackIsRelayed, Refused)
        .but(rules_without_conntrack, Why::LoopbackUnguarded, Refused),
    ]
}
