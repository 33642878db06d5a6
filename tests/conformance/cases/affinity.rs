//! `sessionAffinity: ClientIP`: clients stay with an endpoint.

use super::*;

/// Three hours, Kubernetes' default.
const LONG: u32 = 10_800;

pub fn cases() -> Vec<Case> {
    vec![
        case(
            "Clients stick to their endpoint",
            cluster_ip(ALL).sticky_for(LONG),
        )
        .when(Pod)
        .calls(ClusterIp)
        .over([Tcp, Udp])
        .sees(sticky(ALL).seeing_the_caller()),
        case(
            "Clients of node ports, load balancers and external IPs stick",
            everywhere(ALL).sticky_for(LONG),
        )
        .when(Pod)
        .calls([NodePort, LoadBalancer, ExternalIp])
        .sees(sticky(ALL)),
        case(
            "Clients stick with an internal policy of Local",
            cluster_ip(ALL).internal_policy("Local").sticky_for(LONG),
        )
        .when(Pod)
        .calls(ClusterIp)
        .sees(sticky(HERE)),
        case(
            "A client whose endpoint is removed sticks to another one",
            cluster_ip(ALL).sticky_for(LONG),
        )
        .when(Pod)
        .calls(ClusterIp)
        .over([Tcp, Udp])
        .sees(sticky(ALL))
        .then("c goes", |web| web.on(HERE))
        .when(Pod)
        .calls(ClusterIp)
        .over([Tcp, Udp])
        .sees(sticky(HERE)),
        case("Affinity is enabled and disabled", cluster_ip(ALL))
            .when(Pod)
            .calls(ClusterIp)
            .sees(each(ALL))
            .then("clients are to stick", |web| web.sticky_for(LONG))
            .when(Pod)
            .calls(ClusterIp)
            .sees(sticky(ALL))
            .then("they are not", |web| web.spec("sessionAffinity", "None"))
            .when(Pod)
            .calls(ClusterIp)
            .sees(each(ALL)),
        case(
            "Affinity ends after its timeout of silence",
            cluster_ip(ALL).sticky_for(1),
        )
        .when(Pod)
        .calls(ClusterIp)
        .over([Tcp, Udp])
        .sees(sticky_for_a_second(ALL))
        .but(ipvs, Why::AffinityOutlivesConnections, sticky(ALL))
        .but(rules_without_recent, Why::AffinityByAddress, sticky(ALL)),
    ]
}
