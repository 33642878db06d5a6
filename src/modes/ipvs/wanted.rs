//! What all ServicePorts together need. Members and addresses may be needed by
//! several; a frontend is one ServicePort's, as the service map decides.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use hashbrown::HashMap;

use super::plan::{Filled, Frontend, Member, ServicePlan, Set};
use crate::{
    net::{Family, PerFamily},
    services::ServicePortName,
};

/// What all ServicePorts together need.
#[derive(Debug, Default)]
pub struct Wanted {
    members: HashMap<Member, u32>,
    addresses: HashMap<IpAddr, u32>,
    owners: HashMap<Frontend, ServicePortName>,
    /// How many members each set has.
    filled: PerFamily<[u32; Set::ALL.len()]>,
}

/// What is to be compared with the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    /// Members that came or went; true: of a ServicePort that was and is
    /// served.
    pub members: BTreeMap<Member, bool>,
    /// Addresses that came or went.
    pub addresses: BTreeSet<IpAddr>,
    /// Virtual servers that came, changed or went.
    pub frontends: BTreeSet<Frontend>,
}

impl Touched {
    /// Adds what `later` has.
    pub fn extend(&mut self, later: Touched) {
        self.members.extend(later.members);
        self.addresses.extend(later.addresses);
        self.frontends.extend(later.frontends);
    }
}

impl Wanted {
    /// What `name` needs is `new` now and was `old`. Notes what is `touched`.
    pub fn replace(
        &mut self,
        name: &ServicePortName,
        old: &ServicePlan,
        new: &ServicePlan,
        touched: &mut Touched,
    ) {
        let continuing = !old.servers.is_empty() && !new.servers.is_empty();
        // What both need must not go to zero in between.
        for member in missing(&new.members, &old.members) {
            let count = self.members.entry(*member).or_default();
            *count += 1;
            if *count == 1 {
                self.filled.get_mut(member.family)[member.set as usize] += 1;
                touched.members.insert(*member, continuing);
            }
        }
        for member in missing(&old.members, &new.members) {
            if release(&mut self.members, member) {
                let filled = &mut self.filled.get_mut(member.family)[member.set as usize];
                *filled = filled.saturating_sub(1);
                touched.members.insert(*member, continuing);
            }
        }
        for address in new.addresses.iter().filter(|a| !old.addresses.contains(a)) {
            let count = self.addresses.entry(*address).or_default();
            *count += 1;
            if *count == 1 {
                touched.addresses.insert(*address);
            }
        }
        for address in old.addresses.iter().filter(|a| !new.addresses.contains(a)) {
            if release(&mut self.addresses, address) {
                touched.addresses.insert(*address);
            }
        }
        self.replace_servers(name, old, new, touched);
    }

    fn replace_servers(
        &mut self,
        name: &ServicePortName,
        old: &ServicePlan,
        new: &ServicePlan,
        touched: &mut Touched,
    ) {
        for server in &old.servers {
            let frontend = server.frontend;
            if new.servers.iter().any(|s| s.frontend == frontend) {
                continue;
            }
            // Another ServicePort may have it already.
            if self.owner(&frontend) == Some(name) {
                self.owners.remove(&frontend);
                touched.frontends.insert(frontend);
            }
        }
        for server in &new.servers {
            if !old.servers.contains(server) {
                self.owners.insert(server.frontend, name.clone());
                touched.frontends.insert(server.frontend);
            }
        }
    }

    /// Some ServicePort needs it.
    pub fn has_member(&self, member: &Member) -> bool {
        self.members.contains_key(member)
    }

    /// Some ServicePort needs it.
    pub fn has_address(&self, address: &IpAddr) -> bool {
        self.addresses.contains_key(address)
    }

    /// Whose virtual server is at `frontend`.
    pub fn owner(&self, frontend: &Frontend) -> Option<&ServicePortName> {
        self.owners.get(frontend)
    }

    /// All members, in no particular order.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.keys()
    }

    /// All addresses, in no particular order.
    pub fn addresses(&self) -> impl Iterator<Item = &IpAddr> {
        self.addresses.keys()
    }

    /// All frontends, in no particular order.
    pub fn frontends(&self) -> impl Iterator<Item = &Frontend> {
        self.owners.keys()
    }

    /// How many members `set` of `family` has.
    pub fn count(&self, set: Set, family: Family) -> u32 {
        self.filled.get(family)[set as usize]
    }

    /// Which sets of `family` have members.
    pub fn filled(&self, family: Family) -> Filled {
        let counts = self.filled.get(family);
        let all = Set::ALL.into_iter();
        all.filter(|set| counts[*set as usize] > 0).collect()
    }
}

/// Those of `a` that `b` has not; both are sorted.
fn missing<'a, T: Ord>(a: &'a [T], b: &'a [T]) -> impl Iterator<Item = &'a T> {
    a.iter().filter(|one| b.binary_search(one).is_err())
}

/// Counts one less; true if none is left.
fn release<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, u32>, key: &K) -> bool {
    match counts.get_mut(key) {
        Some(count) if *count > 1 => {
            *count -= 1;
            false
        }
        Some(_) => counts.remove(key).is_some(),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        kernel::ipset::Element, modes::ipvs::plan::VirtualServer, net::Protocol,
        services::ServiceName,
    };

    fn name(service: &str) -> ServicePortName {
        ServicePortName {
            service: ServiceName {
                namespace: "default".into(),
                name: service.into(),
            },
            port: "".into(),
            protocol: Protocol::Tcp,
            family: Family::V4,
        }
    }

    fn plan(port: u16) -> ServicePlan {
        let ip = IpAddr::from([10, 0, 0, 1]);
        let frontend = Frontend {
            address: ip,
            port,
            protocol: Protocol::Tcp,
        };
        ServicePlan {
            servers: vec![VirtualServer {
                frontend,
                scheduler: "rr".into(),
                persistence: None,
                reals: Box::default(),
            }],
            members: vec![Member {
                set: Set::ServiceIps,
                family: Family::V4,
                element: Element::Ip(ip),
            }],
            addresses: vec![ip],
            unsupported: Vec::new(),
        }
    }

    #[test]
    fn what_two_need_stays_until_both_left() {
        let nothing = ServicePlan::default();
        let mut wanted = Wanted::default();
        let mut replace = |service: &str, old: &ServicePlan, new: &ServicePlan| {
            let mut touched = Touched::default();
            wanted.replace(&name(service), old, new, &mut touched);
            (
                touched.members.len() + touched.addresses.len(),
                touched.frontends.len(),
            )
        };
        assert_eq!(replace("a", &nothing, &plan(80)), (2, 1));
        assert_eq!(replace("b", &nothing, &plan(81)), (0, 1));
        assert_eq!(replace("a", &plan(80), &plan(80)), (0, 0));
        assert_eq!(replace("a", &plan(80), &plan(82)), (0, 2));
        assert_eq!(replace("a", &plan(82), &nothing), (0, 1));
        assert_eq!(replace("b", &plan(81), &nothing), (2, 1));
        assert_eq!(wanted.filled(Family::V4), Filled::default());
        assert_eq!(wanted.members().count() + wanted.addresses().count(), 0);
    }

    /// The new owner's plan may come before the old one's, and after.
    #[test]
    fn a_frontend_moves_from_one_to_the_other() {
        let nothing = ServicePlan::default();
        let frontend = plan(80).servers[0].frontend;
        for loser_first in [true, false] {
            let mut wanted = Wanted::default();
            let mut touched = Touched::default();
            wanted.replace(&name("a"), &nothing, &plan(80), &mut touched);
            let mut touched = Touched::default();
            let lose = |wanted: &mut Wanted, touched: &mut Touched| {
                wanted.replace(&name("a"), &plan(80), &nothing, touched);
            };
            if loser_first {
                lose(&mut wanted, &mut touched);
            }
            wanted.replace(&name("b"), &nothing, &plan(80), &mut touched);
            if !loser_first {
                lose(&mut wanted, &mut touched);
            }
            assert_eq!(wanted.owner(&frontend), Some(&name("b")));
            assert!(touched.frontends.contains(&frontend));
        }
    }
}
