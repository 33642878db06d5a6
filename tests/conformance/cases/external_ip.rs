//! External IPs: callers, and owners.

use super::*;
use crate::conformance::addresses::address;

pub fn cases() -> Vec<Case> {
    [callers_and_policies(), owners_and_changes()].concat()
}

/// Callers, by policy.
fn callers_and_policies() -> Vec<Case> {
    vec![
        case(
            "External IP, from outside: every endpoint, which sees the node",
            external_ip(ALL),
        )
        .when([Outside, OtherNode])
        .calls(ExternalIp)
        .over([Tcp, Udp])
        .sees(each(ALL).seeing_the_node()),
        case(
            "External IP, from a pod and from the node",
            external_ip(ALL),
        )
        .when([Pod, Node])
        .calls(ExternalIp)
        .over([Tcp, Udp])
        .sees(each(ALL).seeing_the_node()),
        case(
            "Hairpin: an endpoint reaches itself by an external IP",
            external_ip([A]),
        )
        .when(Backend)
        .calls(ExternalIp)
        .sees(each([A]).seeing_the_node()),
        case(
            "Policy Local: from outside only endpoints on the node, which see the caller",
            external_ip(ALL).external_policy("Local"),
        )
        .when([Outside, OtherNode])
        .calls(ExternalIp)
        .over([Tcp, Udp])
        .sees(each(HERE).seeing_the_caller()),
        case(
            "Policy Local without endpoints on the node: no answer outside",
            external_ip(ELSEWHERE).external_policy("Local"),
        )
        .when(Outside)
        .calls(ExternalIp)
        .over([Tcp, Udp])
        .sees(Silent)
        .when([Pod, Node])
        .calls(ExternalIp)
        .over([Tcp, Udp])
        .sees(each(ELSEWHERE)),
    ]
}

/// External IPs that others also have, and that change.
fn owners_and_changes() -> Vec<Case> {
    vec![
        case(
            "Two Services have the same external IP, and one is removed",
            external_ip([A]),
        )
        .when([Outside, Pod])
        .calls(ExternalIp)
        .over([Tcp, Udp])
        .sees(each([A]))
        .then("the second one comes", |web| web.with_rival_on([B]))
        .when([Outside, Pod])
        .calls(ClusterIp)
        .over([Tcp, Udp])
        .sees(each([A]))
        .then("the first one goes", |web| web.yields_to_its_rival())
        .when([Outside, Pod])
        .calls(ExternalIp)
        .over([Tcp, Udp])
        .sees(each([B])),
        case(
            "An external IP is one of the node's own",
            cluster_ip(ALL).spec(
                "externalIPs",
                serde_json::json!([V4, V6].map(|family| address(NodeAddress, family, 0))),
            ),
        )
        .when([Outside, Pod, Node])
        .calls(NodeAddress)
        .over([Tcp, Udp])
        .sees(each(ALL).seeing_the_node())
        .then("it is of type LoadBalancer", |web| {
            web.becomes("LoadBalancer")
        })
        .when([Outside, Pod, Node])
        .calls([NodeAddress, NodePort])
        .sees(each(ALL).seeing_the_node())
        .then_deleted()
        .when([Outside, Pod, Node])
        .calls(NodeAddress)
        .over([Tcp, Udp])
        .sees(Refused),
        case("An external IP is added and removed", cluster_ip(ALL))
            .when([Outside, Pod])
            .calls(ExternalIp)
            .sees(Unserved)
            .then("it has one", |web| web.with_external_ip())
            .when([Outside, Pod])
            .calls(ExternalIp)
            .sees(each(ALL))
            .then("it has none", |web| web.without_external_ip())
            .when([Outside, Pod])
            .calls(ExternalIp)
            .over([Tcp, Udp])
            .sees(Unserved)
            .when(Pod)
            .calls(ClusterIp)
            .sees(each(ALL)),
    ]
}
