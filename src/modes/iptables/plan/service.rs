//! The rules of one ServicePort.

mod entries;

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use net::Protocol;
use xtables::{
    desired::{Chain, OwnerRules},
    extension::Extension,
    features::Features,
    rule::{Match, Negatable, Rule, Side, Table, Target, word},
};

use super::{
    Options,
    backends::{Backend, Backends},
    balance::Balance,
    names::{self, PortChains},
};
use crate::services::{ServicePort, TrafficPolicy};

/// Plans the rules of one ServicePort of the options' family. A range of ports is not served.
pub fn plan(port: &ServicePort, options: &Options) -> OwnerRules {
    if port.is_range() || !is_possible(port, &options.features) {
        return OwnerRules::default();
    }
    let shown = port.name.to_string();
    let protocol = port.name.protocol;
    let backends = Backends::of(port, &shown, word(protocol));
    let mut plan = Plan {
        chains: PortChains::new(&shown, word(protocol)),
        backends,
        port,
        options,
        shown,
        protocol,
        rules: OwnerRules::default(),
    };
    plan.endpoint_chains();
    plan.policy_chains();
    plan.external_chain();
    plan.firewall_chain();
    plan.cluster_ip();
    for ip in &port.external_ips {
        let chain = plan.chains.external.clone();
        plan.external_address(*ip, "external IP", &chain);
    }
    plan.load_balancer_addresses();
    plan.node_port();
    plan.health_check_port();
    plan.rules
}

/// The endpoints of `port`, each with the chain whose rule sends connections there.
pub fn endpoint_chains(port: &ServicePort) -> Vec<(SocketAddr, String)> {
    let shown = port.name.to_string();
    let backends = Backends::of(port, &shown, word(port.name.protocol)).all;
    let backends = backends.iter();
    backends
        .map(|backend| (backend.address, backend.chain.clone()))
        .collect()
}

/// Names of the chains to which rules of shared chains may jump for `port`; it need not use all of
/// them.
pub fn policy_chains(port: &ServicePort) -> PortChains {
    PortChains::new(&port.name.to_string(), word(port.name.protocol))
}

/// Returns whether rules can serve `port` with these features.
pub fn is_possible(port: &ServicePort, features: &Features) -> bool {
    port.name.protocol != Protocol::Sctp || features.contains(Extension::Sctp)
}

struct Plan<'a> {
    port: &'a ServicePort,
    options: &'a Options,
    /// The ServicePort as kube-proxy calls it.
    shown: String,
    protocol: Protocol,
    chains: PortChains,
    backends: Backends,
    rules: OwnerRules,
}

impl Plan<'_> {
    /// Answers to a caller on the endpoint's own pod would not come back
    /// through here, hence the first rule.
    fn endpoint_chains(&mut self) {
        for backend in self.backends.all.clone() {
            self.endpoint_chain(&backend);
        }
    }

    fn endpoint_chain(&mut self, backend: &Backend) {
        let mut features = self.options.features;
        if self.options.large_cluster {
            features -= Extension::Comment;
        }
        let commented = |rule: Rule| rule.commented(features, &self.shown);
        let hairpin = commented(Rule::new().source(backend.address.ip()));
        let mut dnat = commented(Rule::new().protocol(self.protocol));
        let sticky = self.port.session_affinity.is_some();
        if sticky && self.options.features.contains(Extension::Recent) {
            dnat = dnat.with(Match::RememberSource(backend.chain.clone()));
        }
        let dnat = dnat.with(Match::Transport(self.protocol));
        let rules = vec![
            hairpin.jump(names::MARK_MASQ),
            dnat.target(Target::Dnat(backend.address)),
        ];
        self.own_chain(&backend.chain.clone(), rules);
    }

    fn policy_chains(&mut self) {
        let internal = self.port.internal_traffic_policy;
        let internal = self.has_endpoints(internal).then_some(internal);
        for policy in [TrafficPolicy::Cluster, TrafficPolicy::Local] {
            let (name, backends) = match policy {
                TrafficPolicy::Cluster => (&self.chains.cluster, &self.backends.cluster),
                TrafficPolicy::Local => (&self.chains.local, &self.backends.local),
            };
            if backends.is_empty() || !self.follows(policy) {
                continue;
            }
            let name = name.clone();
            let balance = Balance {
                options: self.options,
                shown: &self.shown,
                protocol: self.protocol,
                affinity: self.port.session_affinity,
                backends,
            };
            let mut chains = balance.chains(&name);
            if internal == Some(policy)
                && let Some((_, rules)) = chains.last_mut()
            {
                rules.splice(0..0, self.masquerade_internal());
            }
            for (name, rules) in chains {
                self.own_chain(&name, rules);
            }
        }
    }

    /// Returns whether traffic of that policy has endpoints.
    fn has_endpoints(&self, policy: TrafficPolicy) -> bool {
        let backends = match policy {
            TrafficPolicy::Cluster => &self.backends.cluster,
            TrafficPolicy::Local => &self.backends.local,
        };
        self.backends.any && !backends.is_empty()
    }

    /// Returns whether some traffic follows that policy: pods and the node itself follow Cluster at
    /// all addresses that can be called from outside.
    fn follows(&self, policy: TrafficPolicy) -> bool {
        self.port.internal_traffic_policy == policy
            || self.accessible()
                && (policy == TrafficPolicy::Cluster || self.port.external_traffic_policy == policy)
    }

    /// A caller other than a pod of this node may have the whole service network routed
    /// to this node, and the endpoint may be on another: answers must come back here.
    fn masquerade_internal(&self) -> Option<Rule> {
        let rule = self.to_service(self.port.cluster_ip?, "cluster IP");
        let rule = if self.options.masquerade_all {
            Some(rule)
        } else {
            self.options.detect_local.not_local(rule)
        };
        rule.map(|rule| rule.jump(names::MARK_MASQ))
    }

    fn accessible(&self) -> bool {
        let port = self.port;
        port.node_port.is_some()
            || !port.external_ips.is_empty()
            || !port.load_balancer_ips.is_empty()
    }

    fn external_chain(&mut self) {
        if !self.backends.any || !self.accessible() {
            return;
        }
        let commented = |text: &str| {
            let text = format_args!("{text} for {} external destinations", self.shown);
            Rule::new().commented(self.options.features, text)
        };
        let cluster = self.chains.cluster.as_str();
        let mut rules = Vec::new();
        let policy_chain = match self.port.external_traffic_policy {
            TrafficPolicy::Cluster => {
                rules.push(commented("masquerade traffic").jump(names::MARK_MASQ));
                &self.chains.cluster
            }
            TrafficPolicy::Local => {
                // Pods and the node itself are not outside: to them the
                // policy is Cluster, as if the call had gone out to the load
                // balancer and come back.
                if !self.backends.cluster.is_empty() {
                    let pods = self.options.detect_local.local(commented("pod traffic"));
                    rules.extend(pods.map(|rule| rule.jump(cluster)));
                    let masquerade = self.of_node(commented("masquerade LOCAL traffic"));
                    let to_mark = |rule: Rule| rule.jump(names::MARK_MASQ);
                    rules.extend(masquerade.into_iter().map(to_mark));
                    let route = self.of_node(commented("route LOCAL traffic"));
                    rules.extend(route.into_iter().map(|rule| rule.jump(cluster)));
                }
                &self.chains.local
            }
        };
        if self.has_endpoints(self.port.external_traffic_policy) {
            rules.push(Rule::new().jump(policy_chain.as_str()));
        }
        let name = self.chains.external.clone();
        self.own_chain(&name, rules);
    }

    /// Returns the rule limited to calls from the node itself.
    fn of_node(&self, rule: Rule) -> Vec<Rule> {
        if self.options.features.contains(Extension::Addrtype) {
            let local = Match::LocalAddress(Negatable::Is(Side::Source));
            return vec![rule.with(local)];
        }
        let networks = self.options.local_networks();
        networks
            .map(|network| rule.clone().source(network))
            .collect()
    }

    fn has_source_ranges(&self) -> bool {
        self.backends.any
            && !self.port.load_balancer_ips.is_empty()
            && !self.port.load_balancer_source_ranges.is_empty()
    }

    /// Plans the chain for load-balancer addresses with source ranges. Admitted connections are
    /// sent to endpoints; the others keep their destination, by which KUBE-PROXY-FIREWALL
    /// recognizes them.
    fn firewall_chain(&mut self) {
        if !self.has_source_ranges() {
            return;
        }
        let ranges = &self.port.load_balancer_source_ranges;
        let features = self.options.features;
        let allow = |source: IpNet| {
            let rule = Rule::new().source(source);
            let rule = rule.commented(features, format_args!("{} loadbalancer IP", self.shown));
            rule.jump(self.chains.external.as_str())
        };
        let mut rules: Vec<Rule> = ranges.iter().copied().map(allow).collect();
        // Where the load balancer's address is one of the node's own, the node
        // calls from that.
        let own = |node_ip: IpAddr| ranges.iter().any(|range| range.contains(&node_ip));
        if self.options.node_ip.is_some_and(own) {
            let addresses = self.port.load_balancer_ips.iter();
            rules.extend(addresses.map(|ip| allow(IpNet::from(*ip))));
        }
        if features.contains(Extension::Comment) {
            let text = "will be dropped by KUBE-PROXY-FIREWALL";
            let text = format!("other traffic to {} {text}", self.shown);
            rules.push(Rule::new().comment(text));
        }
        let name = self.chains.firewall.clone();
        self.own_chain(&name, rules);
    }

    fn own_chain(&mut self, name: &str, rules: Vec<Rule>) {
        self.rules.chains.push(Chain {
            table: Table::Nat,
            name: name.to_owned(),
            rules,
        });
    }
}
