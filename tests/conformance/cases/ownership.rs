//! Addresses that two Services name.

use super::*;

pub fn cases() -> Vec<Case> {
    [external_ips(), cluster_ips_and_node_ports()].concat()
}

/// Addresses that are named as external IPs.
fn external_ips() -> Vec<Case> {
    vec![
        case(
            "A cluster IP stays with its Service, even if others name it as an external IP",
            cluster_ip([A]),
        )
        .when([Pod, Node])
        .calls(ClusterIp)
        .over([Tcp, Udp])
        .sees(each([A]))
        .then("an older Service names it", |web| {
            web.with_rival_on([B])
                .contested(Contested::ClusterIps)
                .made_in(2024, 2020)
        })
        .when([Pod, Node])
        .calls(ClusterIp)
        .over([Tcp, Udp])
        .sees(each([A]))
        .then("its own Service goes", |web| web.yields_to_its_rival())
        .when([Pod, Node])
        .calls(ClusterIp)
        .over([Tcp, Udp])
        .sees(each([B])),
        case(
            "The older of two Services has the external IP, whichever came first",
            external_ip([A]).made_in(2024, 2020),
        )
        .when([Outside, Pod])
        .calls(ExternalIp)
        .over([Tcp, Udp])
        .sees(each([A]))
        .then("the older one comes", |web| web.with_rival_on([B]))
        .when([Outside, Pod])
        .calls(ExternalIp)
        .over([Tcp, Udp])
        .sees(each([B]))
        .then("it is the newer one", |web| web.made_in(2024, 2025))
        .when([Outside, Pod])
        .calls(ExternalIp)
        .over([Tcp, Udp])
        .sees(each([A])),
    ]
}

/// Cluster IPs and node ports.
fn cluster_ips_and_node_ports() -> Vec<Case> {
    vec![
        case(
            "Two Services have the same cluster IP, and one is removed",
            cluster_ip([A]).made_in(2020, 2024),
        )
        .when([Pod, Node])
        .calls(ClusterIp)
        .over([Tcp, Udp])
        .sees(each([A]))
        .then("the second one comes", |web| {
            web.with_rival_on([B])
                .contested(Contested::ClusterIpsAsSuch)
        })
        .when([Pod, Node])
        .calls(ClusterIp)
        .over([Tcp, Udp])
        .sees(each([A]))
        .then("the first one goes", |web| web.yields_to_its_rival())
        .when([Pod, Node])
        .calls(ClusterIp)
        .over([Tcp, Udp])
        .sees(each([B])),
        case(
            "A node port stays with its Service, even if a newer one names the node's address",
            node_port([A]),
        )
        .when([Outside, Pod])
        .calls(NodePort)
        .over([Tcp, Udp])
        .sees(each([A]))
        .then("a newer Service names it", |web| {
            web.with_rival_on([B])
                .contested(Contested::NodePorts)
                .made_in(2020, 2024)
        })
        .when([Outside, Pod])
        .calls([NodePort, SecondNodePort])
        .over([Tcp, Udp])
        .sees(each([A]))
        .then("it is the older one", |web| web.made_in(2025, 2024))
        .when([Outside, Pod])
        .calls(NodePort)
        .over([Tcp, Udp])
        .sees(each([B]))
        .when([Outside, Pod])
        .calls(SecondNodePort)
        .over([Tcp, Udp])
        .sees(each([A])),
    ]
}
