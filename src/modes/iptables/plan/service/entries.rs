//! A ServicePort's rules in the chains that all share.

use std::net::IpAddr;

use net::Protocol;
use xtables::{
    extension::Extension,
    rule::{CtState, Match, Negatable, Rule, Table, Target},
};

use super::Plan;
use crate::{
    modes::iptables::plan::{
        index::{self, Key},
        names,
    },
    services::TrafficPolicy,
};

impl Plan<'_> {
    pub(super) fn cluster_ip(&mut self) {
        let Some(ip) = self.port.cluster_ip else {
            return;
        };
        if self.has_endpoints(self.port.internal_traffic_policy) {
            let chain = match self.port.internal_traffic_policy {
                TrafficPolicy::Cluster => &self.chains.cluster,
                TrafficPolicy::Local => &self.chains.local,
            };
            let rule = self.to_service(ip, "cluster IP").jump(chain.as_str());
            self.enter(Table::Nat, names::SERVICES, Key::Address(ip), rule);
        } else {
            let rule = self.refuse(self.to_service(ip, self.without()));
            self.enter(Table::Filter, names::SERVICES, Key::Address(ip), rule);
        }
    }

    pub(super) fn load_balancer_addresses(&mut self) {
        let filtered = self.has_source_ranges();
        let chain = if filtered {
            self.chains.firewall.clone()
        } else {
            self.chains.external.clone()
        };
        for ip in &self.port.load_balancer_ips {
            if filtered {
                let text = format!("traffic not accepted by {chain}");
                let rule = self.to_service(*ip, &text).target(Target::Drop);
                let key = Key::Address(*ip);
                self.enter(Table::Filter, names::PROXY_FIREWALL, key, rule);
            }
            self.external_address(*ip, "loadbalancer IP", &chain);
        }
    }

    /// Even without endpoints for outside callers, the chain may have some for others;
    /// callers that it does not send to one are refused afterwards.
    pub(super) fn external_address(&mut self, ip: IpAddr, what: &str, chain: &str) {
        let key = Key::Address(ip);
        if self.backends.any {
            let rule = self.to_service(ip, what).jump(chain);
            self.enter(Table::Nat, names::SERVICES, key, rule);
        }
        if !self.has_endpoints(self.port.external_traffic_policy) {
            let rule = self.untranslated(self.to_service(ip, self.without()));
            self.enter(
                Table::Filter,
                names::EXTERNAL_SERVICES,
                key,
                self.refuse(rule),
            );
        }
    }

    pub(super) fn node_port(&mut self) {
        let Some(node_port) = self.port.node_port else {
            return;
        };
        let (protocol, features) = (self.protocol, self.options.features);
        let key = Key::Port(protocol, node_port);
        if self.backends.any {
            let to_port = |rule: Rule| {
                let rule = rule.protocol(protocol).commented(features, &self.shown);
                rule.destination_port(protocol, node_port)
            };
            let external = self.chains.external.clone();
            let counted = (self.options.serves_localhost()
                && self.options.features.contains(Extension::Nfacct))
            .then(|| {
                to_port(Rule::new().destination(self.options.family.loopback()))
                    .with(Match::Account(names::LOCALHOST_ACCEPTED))
            });
            let all = to_port(Rule::new());
            for rule in counted.into_iter().chain([all]) {
                let rule = rule.jump(external.as_str());
                self.enter(Table::Nat, names::NODE_PORTS, key, rule);
            }
        }
        if !self.has_endpoints(self.port.external_traffic_policy) {
            let rule = Rule::new().protocol(protocol);
            let text = format_args!("{} {}", self.shown, self.without());
            let rule = rule.commented(features, text);
            for rule in self.options.to_node(rule) {
                let rule = self.refuse(rule.destination_port(protocol, node_port));
                self.enter(Table::Filter, names::EXTERNAL_SERVICES, key, rule);
            }
        }
    }

    /// The load balancer asks whether this node has endpoints, whatever the node's own firewall
    /// drops.
    pub(super) fn health_check_port(&mut self) {
        let Some(port) = self.port.health_check_node_port else {
            return;
        };
        let rule = Rule::new().protocol(Protocol::Tcp);
        let text = format_args!("{} health check node port", self.shown);
        let rule = rule.commented(self.options.features, text);
        let rule = rule.destination_port(Protocol::Tcp, port);
        let rule = rule.target(Target::Accept);
        let key = Key::Port(Protocol::Tcp, port);
        self.enter(Table::Filter, names::NODE_PORTS, key, rule);
    }

    /// Packets to the Service's port on one of its addresses.
    pub(super) fn to_service(&self, ip: IpAddr, what: &str) -> Rule {
        let rule = Rule::new().destination(ip).protocol(self.protocol);
        let text = format_args!("{} {what}", self.shown);
        let rule = rule.commented(self.options.features, text);
        rule.destination_port(self.protocol, self.port.port)
    }

    fn without(&self) -> &'static str {
        if self.backends.any {
            "has no local endpoints"
        } else {
            "has no endpoints"
        }
    }

    /// The table `filter` sees packets after their translation: an external IP may also be the
    /// address of another Service's endpoint, whose clients did not call this Service.
    fn untranslated(&self, rule: Rule) -> Rule {
        if !self.options.features.contains(Extension::Conntrack) {
            return rule;
        }
        rule.with(Match::ConnectionState(Negatable::IsNot(&[CtState::Dnat])))
    }

    /// Only a Service that no client could reach is refused: where other nodes
    /// have endpoints, a client that tries again may get there.
    fn refuse(&self, rule: Rule) -> Rule {
        let is_dropped = self.backends.any || !self.options.features.contains(Extension::Reject);
        rule.target(if is_dropped {
            Target::Drop
        } else {
            Target::Reject
        })
    }

    fn enter(&mut self, table: Table, root: &str, key: Key, rule: Rule) {
        index::enter(&mut self.rules, self.options, table, root, key, rule);
    }
}
