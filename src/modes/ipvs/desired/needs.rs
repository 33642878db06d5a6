//! Objects that all ServicePorts need together. Members and addresses may be needed by several; a
//! frontend belongs to one ServicePort, as the service map decides.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::Hash,
    net::IpAddr,
};

use hashbrown::HashMap;
use net::{Family, PerFamily};

use crate::{
    modes::{
        ipvs::plan::{Member, NonEmptySets, ServerId, ServicePlan, Set},
        references::References,
    },
    services::ServicePortName,
};

/// Objects that all ServicePorts need together.
#[derive(Debug, Default)]
pub struct Needs {
    members: References<Member>,
    addresses: References<IpAddr>,
    owners: HashMap<ServerId, ServicePortName>,
    /// How many members each set has.
    set_sizes: PerFamily<[u32; NonEmptySets::variant_count() as usize]>,
}

/// Whether a virtual server that a member is about is there while the member is added or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serving {
    /// It is there before and after.
    Continues,
    /// There is none before, or none after.
    BeginsOrEnds,
}

/// Objects that may differ from the kernel, and must be compared with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dirty {
    /// Members of sets that were added or removed.
    pub members: BTreeMap<Member, Serving>,
    /// Addresses of the dummy link that were added or removed.
    pub addresses: BTreeSet<IpAddr>,
    /// Virtual servers that were added, changed or removed.
    pub frontends: BTreeSet<ServerId>,
}

impl Dirty {
    /// Adds the objects in `later`.
    pub fn extend(&mut self, later: Dirty) {
        self.members.extend(later.members);
        self.addresses.extend(later.addresses);
        self.frontends.extend(later.frontends);
    }
}

impl Needs {
    /// Replaces the needs of `name`, which were `old`, by `new`, and adds the resulting changes to
    /// `dirty`.
    pub fn replace(
        &mut self,
        name: &ServicePortName,
        old: &ServicePlan,
        new: &ServicePlan,
        dirty: &mut Dirty,
    ) {
        let serving = |member: &Member| {
            let mut stay = old.servers.iter().map(|server| &server.frontend);
            if stay.any(|frontend| member.is_about(frontend) && new.serves(frontend)) {
                Serving::Continues
            } else {
                Serving::BeginsOrEnds
            }
        };
        for member in replace(&mut self.members, &old.members, &new.members) {
            let size = &mut self.set_sizes.get_mut(member.family)[member.set as usize];
            *size = if self.members.contains(&member) {
                *size + 1
            } else {
                size.saturating_sub(1)
            };
            dirty.members.insert(member, serving(&member));
        }
        let addresses = replace(&mut self.addresses, &old.addresses, &new.addresses);
        dirty.addresses.extend(addresses);
        self.replace_servers(name, old, new, dirty);
    }

    fn replace_servers(
        &mut self,
        name: &ServicePortName,
        old: &ServicePlan,
        new: &ServicePlan,
        dirty: &mut Dirty,
    ) {
        for server in &old.servers {
            let frontend = server.frontend;
            if new.serves(&frontend) {
                continue;
            }
            // Another ServicePort may have it already.
            if self.owner(&frontend) == Some(name) {
                self.owners.remove(&frontend);
                dirty.frontends.insert(frontend);
            }
        }
        for server in &new.servers {
            if !old.servers.contains(server) {
                self.owners.insert(server.frontend, name.clone());
                dirty.frontends.insert(server.frontend);
            }
        }
    }

    /// Returns true if some ServicePort needs `member`.
    pub fn has_member(&self, member: &Member) -> bool {
        self.members.contains(member)
    }

    /// Returns true if some ServicePort needs `address` on the dummy link.
    pub fn has_address(&self, address: &IpAddr) -> bool {
        self.addresses.contains(address)
    }

    /// Returns the ServicePort whose virtual server is at `frontend`; `None`: none is there.
    pub fn owner(&self, frontend: &ServerId) -> Option<&ServicePortName> {
        self.owners.get(frontend)
    }

    /// Returns all members, in no particular order.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.iter()
    }

    /// Returns all addresses, in no particular order.
    pub fn addresses(&self) -> impl Iterator<Item = &IpAddr> {
        self.addresses.iter()
    }

    /// Returns all frontends, in no particular order.
    pub fn frontends(&self) -> impl Iterator<Item = &ServerId> {
        self.owners.keys()
    }

    /// Returns how many members `set` of `family` has.
    pub fn size(&self, set: Set, family: Family) -> u32 {
        self.set_sizes.get(family)[set as usize]
    }

    /// The sets of `family` that have members.
    pub fn non_empty(&self, family: Family) -> NonEmptySets {
        let all = Set::ALL.into_iter();
        all.filter(|set| self.size(*set, family) > 0).collect()
    }
}

/// Counts a user of each object in `new`, and one less of each in `old`; both are sorted. Returns
/// the objects that got their first user or lost their last one.
fn replace<T: Copy + Ord + Hash>(users: &mut References<T>, old: &[T], new: &[T]) -> Vec<T> {
    let is_among = |all: &[T], one: &T| all.binary_search(one).is_ok();
    // Additions come first: the count of an object that both need must not go to zero in between.
    let come = new.iter().filter(|one| !is_among(old, one));
    let mut changed: Vec<T> = come.copied().filter(|one| users.add(*one)).collect();
    let gone = old.iter().filter(|one| !is_among(new, one));
    changed.extend(gone.copied().filter(|one| users.release(one)));
    changed
}

#[cfg(test)]
mod tests {
    use ipvs::ipset::Element;
    use net::Protocol;

    use super::*;
    use crate::{modes::ipvs::plan::VirtualServer, services::service_ports::port_name};

    fn plan(port: u16) -> ServicePlan {
        let ip = IpAddr::from([10, 0, 0, 1]);
        ServicePlan {
            servers: vec![VirtualServer {
                frontend: ServerId::new((ip, port), Protocol::Tcp),
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
        }
    }

    #[test]
    fn what_two_need_stays_until_both_left() {
        let nothing = ServicePlan::default();
        let mut needs = Needs::default();
        let mut replace = |service: &str, old: &ServicePlan, new: &ServicePlan| {
            let mut dirty = Dirty::default();
            needs.replace(&port_name(service), old, new, &mut dirty);
            (
                dirty.members.len() + dirty.addresses.len(),
                dirty.frontends.len(),
            )
        };
        assert_eq!(replace("a", &nothing, &plan(80)), (2, 1));
        assert_eq!(replace("b", &nothing, &plan(81)), (0, 1));
        assert_eq!(replace("a", &plan(80), &plan(80)), (0, 0));
        assert_eq!(replace("a", &plan(80), &plan(82)), (0, 2));
        assert_eq!(replace("a", &plan(82), &nothing), (0, 1));
        assert_eq!(replace("b", &plan(81), &nothing), (2, 1));
        assert_eq!(needs.non_empty(Family::V4), NonEmptySets::default());
        assert_eq!(needs.members().count() + needs.addresses().count(), 0);
    }

    /// The new owner's plan may come before the old one's, and after.
    #[test]
    fn a_frontend_moves_from_one_to_the_other() {
        let nothing = ServicePlan::default();
        let frontend = plan(80).servers[0].frontend;
        for loser_first in [true, false] {
            let mut needs = Needs::default();
            let mut dirty = Dirty::default();
            needs.replace(&port_name("a"), &nothing, &plan(80), &mut dirty);
            let mut dirty = Dirty::default();
            let lose = |needs: &mut Needs, dirty: &mut Dirty| {
                needs.replace(&port_name("a"), &plan(80), &nothing, dirty);
            };
            if loser_first {
                lose(&mut needs, &mut dirty);
            }
            needs.replace(&port_name("b"), &nothing, &plan(80), &mut dirty);
            if !loser_first {
                lose(&mut needs, &mut dirty);
            }
            assert_eq!(needs.owner(&frontend), Some(&port_name("b")));
            assert!(dirty.frontends.contains(&frontend));
        }
    }
}
