//! `loadBalancerSourceRanges`: the clients of a load-balancer IP.

use super::*;

const OUTSIDE: [&str; 2] = ["192.0.2.20/32", "2001:db8::20/128"];
const PODS: [&str; 2] = ["10.244.0.0/16", "fd00:244::/48"];
const NODE: [&str; 2] = ["192.0.2.10/32", "2001:db8::10/128"];
/// Load-balancer IPs: in ipvs mode the node has them and calls from them.
const BALANCERS: [&str; 2] = ["203.0.113.0/24", "2001:db8:113::/48"];
const NO_CLIENT: [&str; 2] = ["192.0.2.250/32", "2001:db8::250/128"];

/// Begins a case of a load-balancer IP that only `ranges` may call: `callers` over TCP and UDP see
/// `observation`.
fn guarded<const N: usize>(
    name: &'static str,
    ranges: &[&str],
    callers: [Caller; N],
    observation: Observation,
) -> Case {
    case(name, load_balancer(ALL).only_for(ranges))
        .when(callers)
        .calls(LoadBalancer)
        .over([Tcp, Udp])
        .sees(observation)
}

pub fn cases() -> Vec<Case> {
    [callers(), scope_and_changes()].concat()
}

/// Callers within the ranges, and others.
fn callers() -> Vec<Case> {
    vec![
        guarded(
            "Ranges that include everyone let everyone in",
            &["0.0.0.0/0", "::/0"],
            [Outside, Pod, Node],
            each(ALL),
        ),
        guarded(
            "A caller from outside in the ranges is served",
            &OUTSIDE,
            [Outside],
            each(ALL).seeing_the_node(),
        ),
        guarded(
            "A caller from outside, not in the ranges, is not",
            &NO_CLIENT,
            [Outside, OtherNode],
            Silent,
        ),
        guarded("A pod in the ranges is served", &PODS, [Pod], each(ALL))
            .when(Outside)
            .calls(LoadBalancer)
            .sees(Silent),
        guarded(
            "A pod that is not in the ranges is not",
            &OUTSIDE,
            [Pod],
            Silent,
        ),
        guarded("The node in the ranges is served", &NODE, [Node], each(ALL)),
        guarded(
            "The node, not in the ranges, is not",
            &OUTSIDE,
            [Node],
            Silent,
        ),
        guarded(
            "Ranges with the load-balancer IP itself do not let the node in",
            &BALANCERS,
            [Node],
            Silent,
        ),
        guarded(
            "The node in the ranges is served, with the load-balancer IP in them or not",
            &[BALANCERS, NODE].concat(),
            [Node],
            each(ALL),
        )
        .when(Outside)
        .calls(LoadBalancer)
        .sees(Silent),
    ]
}

/// The scope of ranges, and changes of them.
fn scope_and_changes() -> Vec<Case> {
    vec![
        case(
            "Ranges apply only to the load-balancer IP",
            everywhere(ALL).only_for(&NO_CLIENT),
        )
        .when(Outside)
        .calls([NodePort, ExternalIp])
        .sees(each(ALL))
        .when([Pod, Node])
        .calls([ClusterIp, NodePort, ExternalIp])
        .sees(each(ALL))
        .when(Outside)
        .calls(LoadBalancer)
        .sees(Silent),
        case(
            "Ranges change: callers are shut out and let in",
            load_balancer(ALL).only_for(&OUTSIDE),
        )
        .when(Outside)
        .calls(LoadBalancer)
        .sees(each(ALL))
        .then("others may call", |web| web.only_for(&PODS))
        .when(Outside)
        .calls(LoadBalancer)
        .over([Tcp, Udp])
        .sees(Silent)
        .when(Pod)
        .calls(LoadBalancer)
        .sees(each(ALL))
        .then("everybody may call", |web| web.only_for(&[]))
        .when([Outside, Pod, Node])
        .calls(LoadBalancer)
        .over([Tcp, Udp])
        .sees(each(ALL)),
        case(
            "Ranges of one family do not restrict the other",
            load_balancer(ALL).only_for(&["192.0.2.250/32"]),
        )
        .when(Outside)
        .calls(LoadBalancer)
        .by(V4)
        .sees(Silent)
        .when(Outside)
        .calls(LoadBalancer)
        .by(V6)
        .sees(each(ALL)),
        case(
            "Ranges with an external policy of Local: the caller keeps its address",
            load_balancer(ALL)
                .external_policy("Local")
                .only_for(&OUTSIDE),
        )
        .when(Outside)
        .calls(LoadBalancer)
        .over([Tcp, Udp])
        .sees(each(HERE).seeing_the_caller())
        .when(OtherNode)
        .calls(LoadBalancer)
        .over([Tcp, Udp])
        .sees(Silent),
    ]
}
