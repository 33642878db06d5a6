//! Endpoints: none, added, removed, terminating, in several slices.

use super::*;

/// The label of a Service that belongs to another proxy.
const OTHER_PROXY: &str = "service.kubernetes.io/service-proxy-name";

pub fn cases() -> Vec<Case> {
    [
        coming_and_going(),
        udp_sockets_and_endpoints(),
        udp_sockets_and_addresses(),
        udp_sockets_and_changes(),
        connections(),
        readiness(),
        slices_and_networks(),
        slices_that_differ(),
    ]
    .concat()
}

/// Endpoints are added, removed and replaced.
fn coming_and_going() -> Vec<Case> {
    vec![
        case("Without endpoints callers are refused", everywhere([]))
            .when([Pod, Node])
            .calls([ClusterIp, NodePort, LoadBalancer, ExternalIp])
            .over([Tcp, Udp])
            .sees(Refused)
            .when(Outside)
            .calls([NodePort, LoadBalancer, ExternalIp])
            .over([Tcp, Udp])
            .sees(Refused),
        case(
            "The first endpoint is added, the last one is removed",
            everywhere([]),
        )
        .when(Pod)
        .calls([ClusterIp, NodePort])
        .sees(Refused)
        .then("an endpoint comes", |web| web.on([A]))
        .when(Pod)
        .calls([ClusterIp, NodePort, LoadBalancer, ExternalIp])
        .over([Tcp, Udp])
        .sees(each([A]))
        .then("it goes", |web| web.on([]))
        .when(Pod)
        .calls([ClusterIp, NodePort, LoadBalancer, ExternalIp])
        .over([Tcp, Udp])
        .sees(Refused),
        case("An endpoint is removed and added again", cluster_ip(ALL))
            .when(Pod)
            .calls(ClusterIp)
            .over([Tcp, Udp])
            .sees(each(ALL))
            .then("c goes", |web| web.on(HERE))
            .when([Pod, Node])
            .calls(ClusterIp)
            .over([Tcp, Udp])
            .sees(each(HERE))
            .then("c is back", |web| web.on(ALL))
            .when([Pod, Node])
            .calls(ClusterIp)
            .over([Tcp, Udp])
            .sees(each(ALL)),
        case("All endpoints are replaced", everywhere(HERE))
            .when(Outside)
            .calls([NodePort, LoadBalancer])
            .sees(each(HERE))
            .then("others take their place", |web| web.on(ELSEWHERE))
            .when(Outside)
            .calls([NodePort, LoadBalancer, ExternalIp])
            .over([Tcp, Udp])
            .sees(each(ELSEWHERE))
            .when(Pod)
            .calls(ClusterIp)
            .sees(each(ELSEWHERE)),
    ]
}

/// One UDP socket while endpoints are added and removed.
fn udp_sockets_and_endpoints() -> Vec<Case> {
    vec![
        case(
            "UDP: one socket reaches the endpoint that replaced another one",
            everywhere([A]),
        )
        .when([Pod, Node])
        .calls(ClusterIp)
        .over(Udp)
        .on_one_socket()
        .sees(each([A]))
        .when(Outside)
        .calls([NodePort, LoadBalancer, ExternalIp])
        .over(Udp)
        .on_one_socket()
        .sees(each([A]))
        .then("b takes the place of a", |web| web.on([B]))
        .when([Pod, Node])
        .calls(ClusterIp)
        .over(Udp)
        .on_one_socket()
        .sees(each([B]))
        .when(Outside)
        .calls([NodePort, LoadBalancer, ExternalIp])
        .over(Udp)
        .on_one_socket()
        .sees(each([B])),
        case(
            "UDP: one socket that was refused reaches the first endpoint",
            everywhere([]),
        )
        .when(Pod)
        .calls(ClusterIp)
        .over(Udp)
        .on_one_socket()
        .sees(Refused)
        .when(Outside)
        .calls([NodePort, LoadBalancer])
        .over(Udp)
        .on_one_socket()
        .sees(Refused)
        .then("an endpoint comes", |web| web.on([A]))
        .when(Pod)
        .calls(ClusterIp)
        .over(Udp)
        .on_one_socket()
        .sees(each([A]))
        .when(Outside)
        .calls([NodePort, LoadBalancer])
        .over(Udp)
        .on_one_socket()
        .sees(each([A])),
    ]
}

/// One UDP socket that called before there was an endpoint.
fn udp_sockets_and_addresses() -> Vec<Case> {
    vec![
        case(
            "UDP: one socket that called too early reaches addresses added later",
            cluster_ip([A]).labelled(OTHER_PROXY, "another"),
        )
        .when([Pod, Node])
        .calls(ClusterIp)
        .over(Udp)
        .on_one_socket()
        .sees(Unserved)
        .when(Outside)
        .calls(NodePort)
        .over(Udp)
        .on_one_socket()
        .sees(Refused)
        .when([Pod, Outside])
        .calls([LoadBalancer, ExternalIp])
        .over(Udp)
        .on_one_socket()
        .sees(Unserved)
        .then("the Service is ours", |web| web.unlabelled())
        .when([Pod, Node])
        .calls(ClusterIp)
        .over(Udp)
        .on_one_socket()
        .sees(each([A]))
        .when(Outside)
        .calls(NodePort)
        .over(Udp)
        .on_one_socket()
        .sees(Refused)
        .then("it has every other address, too", |web| {
            web.becomes("LoadBalancer").with_external_ip()
        })
        .when(Outside)
        .calls([NodePort, LoadBalancer, ExternalIp])
        .over(Udp)
        .on_one_socket()
        .sees(each([A]))
        .when(Pod)
        .calls([ClusterIp, LoadBalancer, ExternalIp])
        .over(Udp)
        .on_one_socket()
        .sees(each([A])),
    ]
}

/// One UDP socket while its endpoint changes.
fn udp_sockets_and_changes() -> Vec<Case> {
    vec![
        case(
            "UDP: one socket reaches the endpoint at its new port",
            node_port([A]),
        )
        .when([Pod, Node])
        .calls(ClusterIp)
        .over(Udp)
        .on_one_socket()
        .sees(each([A]))
        .when(Outside)
        .calls(NodePort)
        .over(Udp)
        .on_one_socket()
        .sees(each([A]))
        .then("it listens elsewhere", |web| web.at_target(SECOND_TARGET))
        .when([Pod, Node])
        .calls(ClusterIp)
        .over(Udp)
        .on_one_socket()
        .sees(each([A]).at(SECOND_TARGET))
        .when(Outside)
        .calls(NodePort)
        .over(Udp)
        .on_one_socket()
        .sees(each([A]).at(SECOND_TARGET)),
        case(
            "UDP: one socket that was refused reaches an endpoint that becomes ready",
            node_port([]).with([unready(A)]),
        )
        .when([Pod, Outside])
        .calls(NodePort)
        .over(Udp)
        .on_one_socket()
        .sees(Refused)
        .when(Pod)
        .calls(ClusterIp)
        .over(Udp)
        .on_one_socket()
        .sees(Refused)
        .then("it gets ready", |web| web.on([A]))
        .when([Pod, Outside])
        .calls(NodePort)
        .over(Udp)
        .on_one_socket()
        .sees(each([A]))
        .when(Pod)
        .calls(ClusterIp)
        .over(Udp)
        .on_one_socket()
        .sees(each([A])),
    ]
}

/// TCP connections that continue.
fn connections() -> Vec<Case> {
    vec![
        case(
            "TCP: a connection outlives its endpoint's removal",
            everywhere([A]),
        )
        .when([Pod, Node])
        .calls(ClusterIp)
        .on_one_socket()
        .sees(each([A]))
        .when(Outside)
        .calls([NodePort, LoadBalancer])
        .on_one_socket()
        .sees(each([A]))
        .then("b takes the place of a", |web| web.on([B]))
        .when(Pod)
        .calls(ClusterIp)
        .sees(each([B]))
        .when([Pod, Node])
        .calls(ClusterIp)
        .on_one_socket()
        .sees(each([A]))
        .when(Outside)
        .calls([NodePort, LoadBalancer])
        .on_one_socket()
        .sees(each([A])),
        case(
            "TCP: a packet far outside the window does not harm its connection",
            external_ip([A]).external_policy("Local"),
        )
        .when(Pod)
        .calls(ClusterIp)
        .after_a_stray_packet()
        .sees(each([A]))
        .when(Outside)
        .calls(ExternalIp)
        .after_a_stray_packet()
        .sees(each([A])),
    ]
}

/// Endpoints that are ready, terminating, or published nevertheless.
fn readiness() -> Vec<Case> {
    vec![
        case(
            "Only ready endpoints are called",
            everywhere([]).with([ready(A), unready(B), unready(C)]),
        )
        .when(Pod)
        .calls(ClusterIp)
        .over([Tcp, Udp])
        .sees(each([A]))
        .when(Outside)
        .calls([NodePort, LoadBalancer, ExternalIp])
        .sees(each([A])),
        case(
            "No endpoint is ready: refused",
            cluster_ip([]).with(ALL.map(unready)),
        )
        .when([Pod, Node])
        .calls(ClusterIp)
        .sees(Refused)
        .then("they get ready", |web| web.on(ALL))
        .when([Pod, Node])
        .calls(ClusterIp)
        .sees(each(ALL)),
        case(
            "Ready endpoints take precedence over terminating ones",
            cluster_ip(ALL),
        )
        .when(Pod)
        .calls(ClusterIp)
        .sees(each(ALL))
        .then("b and c are terminating", |web| {
            web.with([ready(A), terminating(B), ending(C)])
        })
        .when([Pod, Node])
        .calls(ClusterIp)
        .sees(each([A])),
        case(
            "No endpoint is ready: terminating ones that still serve are called",
            everywhere(ALL),
        )
        .then("all are terminating", |web| {
            web.with([terminating(A), terminating(B), ending(C)])
        })
        .when([Pod, Node])
        .calls(ClusterIp)
        .over([Tcp, Udp])
        .sees(each(HERE))
        .when(Outside)
        .calls([NodePort, LoadBalancer, ExternalIp])
        .sees(each(HERE))
        .then("they do not serve any more", |web| {
            web.with(ALL.map(ending))
        })
        .when([Pod, Node])
        .calls(ClusterIp)
        .over([Tcp, Udp])
        .sees(Refused),
        case(
            "publishNotReadyAddresses: endpoints are called ready or not",
            cluster_ip([]).spec("publishNotReadyAddresses", true).with([
                unready(A).published_anyway(),
                ending(B).published_anyway(),
                ready(C),
            ]),
        )
        .when(Pod)
        .calls(ClusterIp)
        .over([Tcp, Udp])
        .sees(each(ALL)),
    ]
}

/// Several slices, and endpoints in the network of a node.
fn slices_and_networks() -> Vec<Case> {
    vec![
        case(
            "Endpoints of two slices count alike",
            cluster_ip([A]).and_slice([ready(B), ready(C)]),
        )
        .when(Pod)
        .calls(ClusterIp)
        .over([Tcp, Udp])
        .sees(each(ALL).seeing_the_caller())
        .then("the second slice goes", |web| web.on([A]))
        .when(Pod)
        .calls(ClusterIp)
        .sees(each([A])),
        case(
            "An endpoint in two slices, unready in one, is called",
            cluster_ip([])
                .with([unready(A), ready(B)])
                .and_slice([ready(A)]),
        )
        .when(Pod)
        .calls(ClusterIp)
        .sees(each(HERE)),
        case(
            "Endpoints in the network of their nodes",
            node_port([OnNode, OnOther]),
        )
        .when(Pod)
        .calls(ClusterIp)
        .over([Tcp, Udp])
        .sees(each([OnNode, OnOther]).seeing_the_caller())
        .when([Node, OtherNode])
        .calls([ClusterIp, NodePort])
        .over([Tcp, Udp])
        .sees(each([OnNode, OnOther]))
        .when([Pod, Outside])
        .calls(NodePort)
        .over([Tcp, Udp])
        .sees(each([OnNode, OnOther])),
        case(
            "The only endpoint is in the network of this node",
            everywhere([OnNode])
                .internal_policy("Local")
                .external_policy("Local"),
        )
        .when([Pod, Node])
        .calls([ClusterIp, NodePort])
        .over([Tcp, Udp])
        .sees(each([OnNode]))
        .when(Outside)
        .calls([NodePort, LoadBalancer, ExternalIp])
        .over([Tcp, Udp])
        .sees(each([OnNode]).seeing_the_caller()),
    ]
}

/// Slices that are ignored, or name other ports; the end of all.
fn slices_that_differ() -> Vec<Case> {
    vec![
        case(
            "A slice with the label of headless Services does not count",
            cluster_ip([A]).slice_labelled("service.kubernetes.io/headless"),
        )
        .when([Pod, Node])
        .calls(ClusterIp)
        .sees(Refused)
        .then("the label goes", |web| web.on([A]))
        .when([Pod, Node])
        .calls(ClusterIp)
        .sees(each([A]))
        .then("the label is back", |web| {
            web.slice_labelled("service.kubernetes.io/headless")
        })
        .when([Pod, Node])
        .calls(ClusterIp)
        .sees(Refused),
        case(
            "Slices may name different target ports",
            node_port([A]).at_target(SECOND_TARGET),
        )
        .when(Pod)
        .calls([ClusterIp, NodePort])
        .over([Tcp, Udp])
        .sees(each([A]).at(SECOND_TARGET))
        .then("the pod is replaced by one with the usual port", |web| {
            web.on([B])
        })
        .when(Pod)
        .calls([ClusterIp, NodePort])
        .over([Tcp, Udp])
        .sees(each([B])),
        case("A deleted Service leaves nothing behind", everywhere(ALL))
            .when(Pod)
            .calls([ClusterIp, NodePort, LoadBalancer, ExternalIp])
            .sees(each(ALL))
            .then_deleted()
            .when([Pod, Node])
            .calls([ClusterIp, LoadBalancer, ExternalIp])
            .over([Tcp, Udp])
            .sees(Unserved)
            .when([Pod, Outside])
            .calls(NodePort)
            .over([Tcp, Udp])
            .sees(Refused),
    ]
}
