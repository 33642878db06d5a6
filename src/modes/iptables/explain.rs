//! How packets find their way in iptables mode.

use super::{Iptables, Setup, family::FamilyRules, plan};
use crate::{
    kernel::netlink::Error,
    modes::{
        comparison,
        explain::{Behaviour, Explain, Loopback, OtherPorts, Pods, Selection},
    },
    net::{Family, ModeName},
    node,
    services::{Changes, ServiceMap, ServicePort},
};

impl Explain for Iptables {
    fn behaviour(&mut self, map: &ServiceMap, family: Family) -> Result<Behaviour, Error> {
        let setup = &self.setup;
        let rules = self.families.get_mut(family).as_mut();
        let serves_localhost = rules.is_some_and(|rules| rules.serves_localhost(setup, map));
        let this_node = map.this_node().map(|node| &**node);
        Ok(Behaviour {
            mode: ModeName::Iptables,
            pods: Pods::new(&setup.configured.detect_local, this_node),
            own: node::addresses::own()?,
            served: setup.node_ports.served(),
            loopback: Loopback::Rules {
                served: serves_localhost,
            },
            other_ports: OtherPorts::PassOn,
            // Rules choose at random.
            selection: |_, _| Selection::Weighted,
            scheduler: String::new(),
            dropped_networks: Vec::new(),
        })
    }

    fn objects(&mut self, map: &ServiceMap, port: &ServicePort) -> Vec<String> {
        let rules = self.families.get_mut(port.name.family).as_mut();
        rules.map_or_else(Vec::new, |rules| rules.objects(&self.setup, map, port))
    }
}

impl FamilyRules {
    fn serves_localhost(&mut self, setup: &Setup, map: &ServiceMap) -> bool {
        let options = self.options(setup, map, &Changes::default());
        options.serves_localhost()
    }

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
