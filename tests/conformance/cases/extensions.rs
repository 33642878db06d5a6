//! Requests in `tripod.proxy/…` annotations.

use super::*;

pub fn cases() -> Vec<Case> {
    [shares_of_endpoints(), others(), schedulers()].concat()
}

fn shares_of_endpoints() -> Vec<Case> {
    let three_to_one = || {
        cluster_ip([A])
            .weighing(3)
            .and_slice([ready(B)])
            .weighing(1)
    };
    vec![
        case(
            "Weights of slices, 3 to 1",
            three_to_one().annotated("tripod.proxy/scheduler", "wrr"),
        )
        .when(Pod)
        .calls(ClusterIp)
        .sees(shares([(A, 3), (B, 1)]))
        .but(ipvs_without_wrr, Why::RoundRobinInstead, equal_shares(HERE)),
        case("Weights alone, 3 to 1", three_to_one())
            .when(Pod)
            .calls(ClusterIp)
            .sees(shares([(A, 3), (B, 1)]))
            .but(ipvs_without_wrr, Why::RoundRobinInstead, equal_shares(HERE)),
        case(
            "Weights change",
            three_to_one().annotated("tripod.proxy/scheduler", "wrr"),
        )
        .then("now 1 to 3", |web| {
            web.on([A]).weighing(1).and_slice([ready(B)]).weighing(3)
        })
        .when(Pod)
        .calls(ClusterIp)
        .sees(shares([(A, 1), (B, 3)]))
        .but(ipvs_without_wrr, Why::RoundRobinInstead, equal_shares(HERE)),
        case(
            "Slow start: an endpoint that became ready gets a tenth of its share",
            cluster_ip([A]).annotated("tripod.proxy/slow-start", "1h"),
        )
        .then("B becomes ready", |web| web.on([A, B]))
        .when(Pod)
        .calls(ClusterIp)
        .sees(shares([(A, 10), (B, 1)]))
        .but(
            ipvs_without_wrr,
            Why::RoundRobinInstead,
            equal_shares([A, B]),
        ),
    ]
}

fn others() -> Vec<Case> {
    vec![
        case(
            "Limits of connections: those below are answered",
            cluster_ip([A, B])
                .annotated("tripod.proxy/max-connections", "1000")
                .annotated("tripod.proxy/max-connections-per-client", "500"),
        )
        .when([Pod, Node])
        .calls(ClusterIp)
        .sees(each([A, B])),
        case(
            "A Service that chooses userspace mode is relayed",
            load_balancer([A, B]).annotated("tripod.proxy/mode", "userspace"),
        )
        .when([Pod, Node])
        .calls(ClusterIp)
        .over([Tcp, Udp])
        .sees(each([A, B]).seeing_the_node())
        .when(Outside)
        .calls([NodePort, LoadBalancer])
        .over([Tcp, Udp])
        .sees(each([A, B]).seeing_the_node())
        .then("in the mode of the node again", |web| {
            web.annotated("tripod.proxy/mode", "")
        })
        .when(Pod)
        .calls(ClusterIp)
        .sees(each([A, B]).seeing_the_caller()),
        case(
            "Resets: an endpoint that leaves is not called, the others are",
            cluster_ip([A, B]).annotated("tripod.proxy/reset", "gone"),
        )
        .then("B leaves", |web| web.on([A]))
        .when([Pod, Node])
        .calls(ClusterIp)
        .sees(each([A])),
        case(
            "A range of ports is forwarded port for port",
            cluster_ip([A, B]).annotated("tripod.proxy/ports", "8000-9000/TCP"),
        )
        .when([Pod, Node])
        .calls(ClusterIp)
        .at_port(8081)
        .sees(each([A, B]).at(8081))
        .but(in_iptables, Why::NoRanges, Unserved)
        .but(userspace, Why::NoRanges, Unserved)
        .but(ipvs, Why::NoRanges, Refused)
        .but(nftables_without_fib, Why::NoRanges, Refused),
        case(
            "No endpoint is ready: those that were ready last are used",
            cluster_ip([A, B]).annotated("tripod.proxy/when-none-ready", "last"),
        )
        .then("none is ready", |web| web.with([unready(A), unready(B)]))
        .when([Pod, Node])
        .calls(ClusterIp)
        .sees(each([A, B])),
    ]
}

fn schedulers() -> Vec<Case> {
    vec![
        case(
            "Scheduler sh: a client stays where its address leads",
            cluster_ip(ALL).annotated("tripod.proxy/scheduler", "sh"),
        )
        .when(Pod)
        .calls(ClusterIp)
        .sees(sticky(ALL))
        .but(in_iptables, Why::RandomAlone, each(ALL)),
        case(
            "Scheduler mh: a client stays where its address leads",
            cluster_ip(ALL).annotated("tripod.proxy/scheduler", "mh"),
        )
        .when(Pod)
        .calls(ClusterIp)
        .sees(sticky(ALL))
        .but(in_iptables, Why::RandomAlone, each(ALL))
        .but(ipvs, Why::HashesPorts, each(ALL)),
        case(
            "Scheduler mh-port: the connections of one client are spread",
            cluster_ip(ALL).annotated("tripod.proxy/scheduler", "mh-port"),
        )
        .when(Pod)
        .calls(ClusterIp)
        .sees(each(ALL)),
        case(
            "kube-router.io/service.scheduler is understood",
            cluster_ip(ALL).annotated("kube-router.io/service.scheduler", "sh"),
        )
        .when(Pod)
        .calls(ClusterIp)
        .sees(sticky(ALL))
        .but(in_iptables, Why::RandomAlone, each(ALL)),
        case(
            "An unknown scheduler: the default one is used",
            cluster_ip(ALL).annotated("tripod.proxy/scheduler", "astrology"),
        )
        .when([Pod, Node])
        .calls(ClusterIp)
        .sees(each(ALL)),
    ]
}
