//! The differences between a mode of Tripod and a mode of kube-proxy that do not depend on the
//! configuration; pure. docs/conformance.md shows the same case by case, tested.

use super::{
    origin::Given,
    report::{Chosen, Rows},
};
use crate::config::ModeName;

/// Adds that the node would get `mode`, if that is not kube-proxy's mode.
pub(super) fn chosen(given: &Given, mode: ModeName, chosen: Option<&Chosen>, rows: &mut Rows) {
    let asked = given.settings.effective.mode;
    let (gets, why) = match chosen {
        Some(chosen) => (chosen.mode.clone(), chosen.passed_over.join("; ")),
        None => (Some(asked.to_string()), String::new()),
    };
    let was = given.kube_proxy_mode();
    if gets != Some(mode.to_string()) || mode == was {
        return;
    }
    let because = match why.as_str() {
        "" => String::new(),
        why => format!(": {why}"),
    };
    if given.mode.is_empty() {
        rows.differs([
            "mode: \"\"",
            "runs iptables mode if none is named",
            &format!("runs {mode} mode, the best that this kernel can run{because}"),
            "set mode: iptables to keep it, or leave mode empty to run the best one",
        ]);
    } else {
        rows.differs([
            &format!("mode: {:?}", given.mode),
            &format!("runs {was} mode"),
            &format!("runs {mode} mode{because}"),
            "provide what the kernel lacks, or name the mode that should run; with \
             --strict-proxy-mode, Tripod ends instead",
        ]);
    }
}

/// Adds the differences between `mode` of Tripod and mode `was` of kube-proxy.
pub(super) fn rows(was: ModeName, mode: ModeName, rows: &mut Rows) {
    rows.note([
        "two Services that name the same address (externalIPs, load balancers)",
        "promises nothing about which of them gets it",
        "gives it to the cluster IP before others, then to the load-balancer IP, then to the older \
         Service, on all nodes alike",
        "look for Events AddressConflict on Services",
    ]);
    match mode {
        ModeName::Ipvs => ipvs(was, rows),
        ModeName::Nftables => nftables(was, rows),
        ModeName::Iptables => iptables(was, rows),
        ModeName::Userspace => userspace(was, rows),
    }
    if was != mode && mode != ModeName::Userspace {
        other_ports(was, mode, rows);
    }
    if (was == ModeName::Ipvs) != (mode == ModeName::Ipvs) {
        virtual_servers(mode, rows);
        external_addresses(mode, rows);
    }
    if was == ModeName::Ipvs && mode != ModeName::Ipvs {
        dummy_link(mode, rows);
    }
    if was != mode || mode == ModeName::Nftables {
        own_tools(was, mode, rows);
    }
}

fn ipvs(was: ModeName, rows: &mut Rows) {
    if was == ModeName::Ipvs {
        rows.differs([
            "internalTrafficPolicy: Local",
            "sends calls of the cluster IP to other nodes where the Service has a node port or an \
             external address and this node has no endpoint",
            "never sends them to another node",
            "expect such calls to fail, as in kube-proxy's other modes",
        ]);
    }
}

/// Adds the effects of IPVS's single virtual server for all callers and of its memory of
/// connections: those that begin in its mode, or end in another `mode`.
fn virtual_servers(mode: ModeName, rows: &mut Rows) {
    let (policy, affinity) = ("externalTrafficPolicy: Local", "sessionAffinity: ClientIP");
    if mode == ModeName::Ipvs {
        rows.differs([
            policy,
            "lets pods and the node itself reach every endpoint by the external address",
            "sends them to endpoints on the node, if there are any: IPVS has one virtual server \
             for all callers",
            "nothing, unless pods rely on endpoints elsewhere",
        ]);
        rows.differs([
            affinity,
            "ends affinity when its timeout has passed without a new connection",
            "keeps it while IPVS remembers connections of the client, two minutes after their end",
            "nothing, unless the timeout is shorter than that",
        ]);
    } else {
        rows.differs([
            policy,
            "sends pods and the node itself to endpoints on the node, if there are any, because \
             IPVS has one virtual server for all callers",
            "lets them reach every endpoint by the external address",
            "nothing, unless pods rely on endpoints of their own node",
        ]);
        rows.differs([
            affinity,
            "keeps affinity while IPVS remembers connections of the client, two minutes after \
             their end",
            "ends it when its timeout has passed without a new connection, also while one is open",
            "set a longer timeoutSeconds where clients keep connections open for longer than that",
        ]);
    }
}

/// Adds the differences for external IPs and load-balancer IPs, which ipvs mode assigns to its
/// link.
fn external_addresses(mode: ModeName, rows: &mut Rows) {
    let setting = "externalIPs, load-balancer IPs";
    let whole = "puts the whole address on kube-ipvs0: the node answers for it, and packets of the \
                 node and its pods to other ports of it stay on the node";
    let ports = "handles only packets to the ports of Services; the rest is routed as usual";
    if mode == ModeName::Ipvs {
        rows.differs([
            setting,
            ports,
            whole,
            "look for Services that name an address of another machine, which pods or nodes call at \
             other ports, too",
        ]);
    } else {
        rows.differs([
            setting,
            whole,
            ports,
            "provide a route to the node, or a program such as MetalLB, if callers found the \
             address by the node's answers to ARP; ping no longer shows whether it is served",
        ]);
    }
}

/// Adds the differences that come from the link, which only ipvs mode has.
fn dummy_link(mode: ModeName, rows: &mut Rows) {
    let after = match mode {
        ModeName::Userspace => {
            "removes the link; service addresses are on no link, except those of IPv4 with local \
             capture, which are on lo"
        }
        _ => "removes the link; service addresses are on no link",
    };
    rows.differs([
        "kube-ipvs0",
        "puts each service address on this link, where programs of the node can bind it",
        after,
        "look for programs that list or bind addresses of kube-ipvs0",
    ]);
}

fn nftables(was: ModeName, rows: &mut Rows) {
    if matches!(was, ModeName::Iptables | ModeName::Ipvs) {
        rows.differs([
            "chain FORWARD of iptables",
            "accepts traffic to pods there (KUBE-FORWARD)",
            "adds no iptables rules, like kube-proxy's nftables mode",
            "if its policy is DROP, as Docker sets it, accept traffic to and from pods",
        ]);
    }
}

fn iptables(was: ModeName, rows: &mut Rows) {
    if was == ModeName::Nftables {
        rows.note([
            "chain FORWARD of iptables",
            "adds no iptables rules",
            "accepts traffic to pods there (KUBE-FORWARD)",
            "nothing",
        ]);
    }
}

fn userspace(was: ModeName, rows: &mut Rows) {
    if was == ModeName::Userspace {
        return;
    }
    rows.differs([
        "the client's address",
        "lets endpoints see it unless the call is masqueraded",
        "connects to endpoints itself: they see the node's address",
        "annotate Services whose endpoints understand it with tripod.proxy/proxy-protocol: v2, \
         or start with --userspace-transparent",
    ]);
    rows.differs([
        "NetworkPolicies",
        "leaves the addresses of client and endpoint visible to the network plugin, which enforces \
         policies between them",
        "calls endpoints from the node for every client, which policies usually allow: they are \
         not enforced for calls through Services, even with --userspace-transparent",
        "run another mode if policies matter, with --strict-proxy-mode, so that no node falls back \
         to this one",
    ]);
    rows.differs([
        "SCTP",
        "serves it",
        "does not serve it",
        "run another mode if Services use SCTP",
    ]);
    rows.differs([
        "internalTrafficPolicy: Local without an endpoint on the node",
        "drops calls of the cluster IP",
        "refuses them",
        "nothing: callers get an error at once",
    ]);
}

/// Adds the behaviour of ports of a cluster IP that its Service does not name.
fn other_ports(was: ModeName, mode: ModeName, rows: &mut Rows) {
    let refuses = |mode| matches!(mode, ModeName::Ipvs | ModeName::Nftables);
    let words = |mode| {
        if refuses(mode) {
            "refuses calls"
        } else {
            "forwards packets to the router, so that callers wait"
        }
    };
    if refuses(was) != refuses(mode) {
        rows.differs([
            "ports of a cluster IP that its Service does not name",
            words(was),
            words(mode),
            "nothing, unless something relies on it",
        ]);
    }
}

/// Adds the commands that show the rules on the node.
fn own_tools(was: ModeName, mode: ModeName, rows: &mut Rows) {
    let command = |mode, table: &str| match mode {
        ModeName::Ipvs => "ipvsadm -Ln, ipset list and iptables-save show it".to_owned(),
        ModeName::Nftables => format!("nft list table ip {table} shows it"),
        ModeName::Iptables => "iptables-save shows it".to_owned(),
        ModeName::Userspace => "ss -ltnup shows it".to_owned(),
    };
    rows.note([
        "programs that read the rules",
        &command(was, "kube-proxy"),
        &command(mode, "tripod"),
        "tripod services shows Services and endpoints in every mode",
    ]);
}
