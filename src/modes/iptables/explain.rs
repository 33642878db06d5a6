//! How packets find their way in iptables mode.

use net::Family;
use netlink::Error;
use xtables::extension::Extension;

use super::{Iptables, Setup, family::ServedFamily, plan};
use crate::{
    config::ModeName,
    modes::{
        comparison,
        explain::{
            Behaviour, Carrier, Explain, Loopback, OtherPorts, Pods, Properties, Rules, Selection,
        },
    },
    node,
    services::{Changes, ServiceMap, ServicePort},
};

/// Behaviour of iptables mode that is the same on every node.
pub(in crate::modes) const PROPERTIES: Properties = Properties {
    mode: ModeName::Iptables,
    carrier: Carrier::Rules,
    // Its rules come first.
    external_ips_first: true,
    // Rules that refuse are for packets that come to the node.
    refuses_own: false,
    // Unlike rules that translate, they do not look at nodePortAddresses.
    refuses_unserved: true,
};

impl Explain for Iptables {
    fn behaviour(&mut self, map: &ServiceMap, family: Family) -> Result<Behaviour, Error> {
        let setup = &self.setup;
        let family = self.families.get_mut(family).as_mut().ok();
        let options = family.map(|rules| rules.options(setup, map, &Changes::default()));
        let serves_localhost = (options.as_ref()).is_some_and(plan::Options::serves_localhost);
        let this_node = map.this_node();
        Ok(Behaviour {
            properties: &PROPERTIES,
            unserved: options.is_none().then(Behaviour::unable),
            pods: Pods::new(&setup.configured.detect_local, this_node),
            own: node::addresses::own()?,
            node_ip: options.as_ref().and_then(|options| options.node_ip),
            has_service_addresses: false,
            served: setup.node_ports.served(),
            loopback: Loopback::Rules {
                served: serves_localhost,
            },
            other_ports: OtherPorts::PassOn,
            rules: options.as_ref().map_or_else(Rules::complete, rules),
            dropped_networks: Vec::new(),
        })
    }

    fn selection(&self, port: &ServicePort) -> Selection {
        let served = self.families.get(port.name.family).as_ref().ok();
        let remembers = served.is_none_or(|rules| rules.features.contains(Extension::Recent));
        if port.session_affinity.is_some() && !remembers {
            Selection::Hashed
        } else {
            // Rules choose at random.
            Selection::Weighted
        }
    }

    fn objects(&mut self, map: &ServiceMap, port: &ServicePort) -> Vec<String> {
        let rules = self.families.get_mut(port.name.family).as_mut().ok();
        rules.map_or_else(Vec::new, |rules| rules.objects(&self.setup, map, port))
    }
}

fn rules(options: &plan::Options) -> Rules {
    let has = |extension| options.features.contains(extension);
    Rules {
        refuse: has(Extension::Reject),
        remember: has(Extension::Recent),
        countable: 0,
        pass_marked: false,
        known: (!has(Extension::Addrtype)).then(|| options.node_addresses.clone()),
        ranges: false,
        refused_on_loopback: Vec::new(),
    }
}

impl ServedFamily {
    /// Returns the chains and rules of `port`.
    fn objects(&mut self, setup: &Setup, map: &ServiceMap, port: &ServicePort) -> Vec<String> {
        let options = self.options(setup, map, &Changes::default());
        let rules = plan::plan(port, &options);
        let entries = rules.entries.iter().map(|entry| {
            let words = entry.rule.words(self.family);
            comparison::rule(entry.table, &entry.chain, words)
        });
        let chains = rules.chains.iter().rev();
        let chains = chains.map(|chain| comparison::chain(chain.table, &chain.name));
        entries.chain(chains).collect()
    }
}
