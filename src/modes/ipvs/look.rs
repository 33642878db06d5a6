//! Looking at the kernel: what is there already, and what somebody changed.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use hashbrown::{HashMap, HashSet};

use super::{
    Belief, Error, Ipvs,
    own_servers::NamedFrontends,
    plan::{self, Filled, Frontend, LINK, Member, Set, Site},
    report::{Report, log_repairs},
    settings,
    wanted::{Touched, Wanted},
};
use crate::{
    kernel::{
        addresses::Address,
        ipset::Element,
        ipvs::{Forwarding, ServerId, VirtualServer},
        netlink,
    },
    net::{Family, PerFamily, Protocol},
    services::ServiceMap,
};

/// What a full sync found in the kernel of one family, beside rules.
#[derive(Debug, Default)]
pub struct Look {
    /// What is not as wanted; frontends: all that are ours.
    pub touched: Touched,
    /// Addresses of the dummy link that the kernel may choose as a source:
    /// kube-proxy makes them so.
    pub eligible: Vec<IpAddr>,
    /// Which sets have members.
    pub filled: Filled,
    /// The real servers of each virtual server, as [`Backing`] counts them up;
    /// empty where the kernel does not show them at once.
    backings: Arc<Backings>,
    /// Sets that were missing, by their names.
    made: Vec<&'static str>,
}

/// The real servers of each virtual server.
type Backings = HashMap<Frontend, Backing>;

impl Look {
    /// `server` has exactly the real servers that it is to have, as far as the
    /// kernel shows them at once: thresholds and wrapping, which nobody asks
    /// Tripod for, are not seen.
    pub fn has_reals_of(&self, server: &plan::VirtualServer) -> bool {
        let wanted = server.reals.iter().map(|real| real.to_kernel());
        let wanted = wanted.map(|real| (real.address, real.weight, real.forwarding));
        self.backings.get(&server.frontend) == Some(&Backing::of(wanted))
    }
}

/// Real servers as a number each, whatever their order, because 25,000 of them
/// would take megabytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Backing {
    count: u32,
    digests: u64,
}

impl Backing {
    fn of(reals: impl Iterator<Item = (SocketAddr, u32, Forwarding)>) -> Backing {
        reals.fold(Backing::default(), |sum, real| {
            let mut hasher = DefaultHasher::new();
            real.hash(&mut hasher);
            Backing {
                count: sum.count.saturating_add(1),
                digests: sum.digests.wrapping_add(hasher.finish()),
            }
        })
    }
}

/// How a virtual server spreads connections, as a number.
pub fn digest(server: &VirtualServer) -> u64 {
    // Keys that are the same for each call: numbers are compared with others
    // of this process only.
    let mut hasher = DefaultHasher::new();
    server.hash(&mut hasher);
    hasher.finish()
}

impl Ipvs {
    /// Finds out what plans depend on, and ensures what they stand on:
    /// settings and the dummy link. Forgets what was learned if the node is
    /// another now.
    pub(super) fn survey(&mut self, map: &ServiceMap) -> Result<(), netlink::Error> {
        // Before settings, which come with the module.
        if self.doors.is_loaded_anew()? {
            tracing::warn!("the module of IPVS was loaded anew: its virtual servers are gone");
            self.set_timeouts()?;
        }
        let refused = settings::apply(&self.options);
        self.tell(refused);
        let known = self
            .belief
            .iter()
            .any(|(_, belief)| *belief != Belief::None);
        if self.doors.ensure_link()? && known {
            log_repairs(&[format!("link {LINK}")]);
        }
        let addresses = self.doors.addresses()?;
        let own = addresses
            .iter()
            .filter(|address| !self.doors.is_on_link(address))
            .map(|address| address.address);
        let served = self.node_ports.served();
        let node = map.this_node().map(|node| &**node);
        let mut site = Site::new(&self.options, node, &served, own);
        let asked = map
            .iter()
            .filter_map(|port| port.preferences().scheduler.clone())
            .chain([Arc::clone(&self.options.scheduler)]);
        site.lacking = self.doors.lacking(asked.collect())?;
        if site != self.site {
            self.site = site;
            self.ports.clear();
            self.wanted = Wanted::default();
            self.belief = PerFamily::default();
        }
        Ok(())
    }

    /// Applies the difference that a `look` at the kernel of `family` found. `touched`
    /// is what is known to differ; the rest is repair.
    pub(super) async fn repair(
        &mut self,
        family: Family,
        touched: Touched,
        look: Look,
        report: &mut Report,
    ) -> Result<(), Error> {
        if *self.belief.get(family) != Belief::None {
            let mut repaired: Vec<String> =
                look.made.iter().map(|set| format!("set {set}")).collect();
            let members = look.touched.members.keys();
            let members = members.filter(|member| !touched.members.contains_key(*member));
            repaired.extend(members.map(|member| {
                let set = member.set.name(member.family);
                format!("member {} of set {set}", member.element)
            }));
            let addresses = look.touched.addresses.difference(&touched.addresses);
            repaired.extend(addresses.map(|ip| format!("address {ip} of link {LINK}")));
            log_repairs(&repaired);
        }
        let mut all = look.touched.clone();
        // Those that are known to have changed are no repair.
        let known = touched.frontends;
        all.frontends.extend(&known);
        self.apply(family, &all, Some((&look, &known)), report)
            .await
    }

    /// Looks at what the kernel holds of the `due` families. Virtual servers and
    /// addresses are listed for both at once, sets for each.
    ///
    /// # Errors
    /// When what both need cannot be listed.
    pub(super) fn look(
        &mut self,
        due: PerFamily<bool>,
    ) -> Result<PerFamily<Option<Result<Look, netlink::Error>>>, netlink::Error> {
        let mut listed = self.doors.servers()?;
        let is_left = |id: &ServerId| {
            let frontend = Frontend::of(id);
            id.is_trial() && self.wanted.owner(&frontend).is_none()
        };
        if listed.iter().any(|listed| is_left(&listed.server.id)) {
            self.doors.remove_trial()?;
            listed.retain(|listed| !listed.server.id.is_trial());
        }
        let mut servers: PerFamily<HashMap<Frontend, u64>> = PerFamily::default();
        for listed in &listed {
            let frontend = Frontend::of(&listed.server.id);
            let of_family = servers.get_mut(Family::of(&frontend.address));
            of_family.insert(frontend, digest(&listed.server));
        }
        drop(listed);
        let mut addresses = self.doors.addresses()?;
        addresses.retain(|address| self.doors.is_on_link(address) && is_ours(&address.address));
        let mut looks = PerFamily::each(|_| None);
        for family in Family::ALL.into_iter().filter(|family| *due.get(*family)) {
            let servers = std::mem::take(servers.get_mut(family));
            *looks.get_mut(family) = Some(self.look_at(family, servers, &addresses));
        }
        let any = |look: &Option<Result<Look, _>>| matches!(look, Some(Ok(_)));
        if !self.servers.is_empty() && looks.iter().any(|(_, look)| any(look)) {
            let backings = Arc::new(self.backings());
            let seen = looks.iter_mut().filter_map(|(_, look)| look.as_mut());
            for look in seen.flatten() {
                look.backings = Arc::clone(&backings);
            }
        }
        Ok(looks)
    }

    /// Looks at one family: its virtual servers, the addresses of the dummy link, and
    /// its sets, which are made if they are missing.
    fn look_at(
        &mut self,
        family: Family,
        mut there: HashMap<Frontend, u64>,
        addresses: &[Address],
    ) -> Result<Look, netlink::Error> {
        let filled = self.wanted.filled(family);
        let made = self.doors.ensure_sets(family, |set| {
            let needed = set.is_kube_proxys() || filled.contains(set);
            needed.then(|| self.wanted.count(set, family))
        })?;
        let mut look = Look {
            made,
            ..Look::default()
        };
        let of_family = |ip: &IpAddr| Family::of(ip) == family;
        let bound: BTreeSet<IpAddr> = addresses.iter().map(|a| a.address).collect();
        let bound: BTreeSet<IpAddr> = bound.into_iter().filter(of_family).collect();
        let eligible = addresses.iter().filter(|a| a.is_eligible());
        let eligible = eligible.map(|a| a.address).filter(of_family);
        look.eligible = eligible.filter(|ip| self.wanted.has_address(ip)).collect();
        // Kube-proxy takes every virtual server for its own. One at an address
        // of the node that no set names may be of another program, so it stays.
        let is_known = |frontend: &Frontend| {
            self.wanted.owner(frontend).is_some()
                || self.servers.contains_key(frontend)
                || bound.contains(&frontend.address)
        };
        let at_node = |frontend: &Frontend| self.site.own.contains(&frontend.address);
        let named = match there.keys().any(|f| !is_known(f) && at_node(f)) {
            true => NamedFrontends::read(|set, family| self.doors.members(set, family))?,
            false => NamedFrontends::default(),
        };
        there.retain(|f, _| is_known(f) || at_node(f) && named.has(f));
        let wanted = self.wanted.frontends();
        let wanted = wanted.filter(|frontend| of_family(&frontend.address));
        look.touched.frontends.extend(there.keys());
        look.touched.frontends.extend(wanted);
        let wanted = self.wanted.addresses().filter(|ip| of_family(ip));
        for ip in wanted.filter(|ip| !bound.contains(*ip)) {
            look.touched.addresses.insert(*ip);
        }
        for ip in bound.iter().filter(|ip| !self.wanted.has_address(ip)) {
            look.touched.addresses.insert(*ip);
        }
        for set in Set::ALL {
            self.compare_set(set, family, &there, &mut look)?;
        }
        self.servers.retain(|f, _| !of_family(&f.address));
        self.servers.extend(there);
        Ok(look)
    }

    fn backings(&mut self) -> Backings {
        let mut backings = HashMap::with_capacity(self.servers.len());
        let outcome = self.doors.each_server(|id, reals| {
            let reals = reals.iter();
            let backing = Backing::of(reals.map(|r| (r.address, r.weight, r.forwarding)));
            backings.insert(Frontend::of(&id), backing);
        });
        if let Err(error) = outcome {
            tracing::debug!("real servers are listed one virtual server at a time: {error}");
            backings.clear();
        }
        backings
    }

    fn compare_set(
        &mut self,
        set: Set,
        family: Family,
        servers: &HashMap<Frontend, u64>,
        look: &mut Look,
    ) -> Result<(), netlink::Error> {
        let members: HashSet<Element> = self.doors.members(set, family)?.into_iter().collect();
        if !members.is_empty() {
            look.filled.insert(set);
        }
        let of_set = |member: &&Member| member.set == set && member.family == family;
        let mut differing: BTreeMap<Member, bool> = BTreeMap::new();
        for member in self.wanted.members().filter(of_set) {
            if !members.contains(&member.element) {
                differing.insert(*member, self.is_served(member, servers));
            }
        }
        for element in members {
            let member = Member {
                set,
                family,
                element,
            };
            if !self.wanted.has_member(&member) {
                differing.insert(member, self.is_wanted(&member));
            }
        }
        look.touched.members.extend(differing);
        Ok(())
    }

    /// A virtual server is there at what `member` speaks of.
    fn is_served(&self, member: &Member, servers: &HashMap<Frontend, u64>) -> bool {
        self.frontends(member)
            .iter()
            .any(|frontend| servers.contains_key(frontend))
    }

    /// A virtual server is to stay at what `member` speaks of.
    fn is_wanted(&self, member: &Member) -> bool {
        self.frontends(member)
            .iter()
            .any(|frontend| self.wanted.owner(frontend).is_some())
    }

    /// The frontends that `member` speaks of.
    pub(super) fn frontends(&self, member: &Member) -> Vec<Frontend> {
        let protocol = match member.set {
            Set::NodePortUdp | Set::NodePortLocalUdp => Protocol::Udp,
            _ => Protocol::Tcp,
        };
        if let Element::Port(port) = member.element {
            let of_family = |ip: &&IpAddr| Family::of(ip) == member.family;
            let served = self.site.node_ports.iter().filter(of_family);
            return served
                .map(|ip| Frontend {
                    address: *ip,
                    port,
                    protocol,
                })
                .collect();
        }
        let Some((address, number, port)) = member.frontend() else {
            return Vec::new();
        };
        let protocol = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp]
            .into_iter()
            .find(|protocol| plan::number(*protocol) == number);
        protocol
            .map(|protocol| Frontend {
                address,
                port,
                protocol,
            })
            .into_iter()
            .collect()
    }
}

/// The kernel gives a link that is up an address of its own.
fn is_ours(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(_) => true,
        IpAddr::V6(ip) => !ip.is_unicast_link_local(),
    }
}
