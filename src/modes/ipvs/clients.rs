//! The clients of the kernel's interfaces that the mode uses: IPVS, ipset, links and
//! addresses. Each call blocks for as long as the kernel takes.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use ipvs::{
    Ipvs, Timeouts,
    ipset::{Element, IpSets, Listed, TEMPORARY},
};
use net::Family;
use netlink::{
    Error, Protocol, Socket,
    addresses::{self, Address},
    links,
};
use nix::errno::Errno;

use super::{
    plan::{LINK, Member, ROUND_ROBIN, Set},
    steps::{Action, MemberStep},
};

/// IPVS, sets, links and addresses of the network namespace of the thread that
/// opened them.
pub struct Clients {
    /// Virtual and real servers.
    pub ipvs: Ipvs,
    sets: IpSets,
    /// Links and addresses.
    pub route: Socket,
    /// The index of the dummy link.
    pub link: u32,
    /// How many members each set takes, as last listed; 0: any number.
    room: BTreeMap<(Set, Family), u32>,
    /// Schedulers that the kernel is known to have.
    schedulers: BTreeSet<Arc<str>>,
    /// Schedulers that are not to be used, whether the kernel has them or not.
    left_out: BTreeSet<Arc<str>>,
}

/// A member that the kernel refused to add or remove.
#[derive(Debug)]
pub struct RefusedMember {
    /// The member that was refused.
    pub member: Member,
    /// Why; several members may share the reason.
    pub error: Arc<Error>,
}

impl Clients {
    /// Opens all of them; schedulers that are `left_out` count as missing.
    ///
    /// # Errors
    /// When the kernel lacks one.
    pub fn open(left_out: BTreeSet<Arc<str>>) -> Result<Clients, Error> {
        Ok(Clients {
            ipvs: Ipvs::open()?,
            sets: IpSets::open()?,
            route: Socket::open(Protocol::Route)?,
            link: 0,
            room: BTreeMap::new(),
            schedulers: BTreeSet::new(),
            left_out,
        })
    }

    /// Returns those of `names` that the kernel lacks. A scheduler about which its
    /// answer says nothing counts as present: then only the Services that ask for it
    /// fail.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn missing_schedulers(
        &mut self,
        names: BTreeSet<Arc<str>>,
    ) -> Result<BTreeSet<Arc<str>>, Error> {
        let (mut missing, names): (BTreeSet<_>, BTreeSet<_>) = names
            .into_iter()
            .partition(|name| self.left_out.contains(name));
        for name in names {
            if *name == *ROUND_ROBIN || self.schedulers.contains(&name) {
                continue;
            }
            match self.ipvs.try_scheduler(&name) {
                Ok(None) => drop(self.schedulers.insert(name)),
                Ok(Some(_)) => drop(missing.insert(name)),
                Err(error) if error.is_refused() => {
                    tracing::debug!(
                        "cannot find out whether there is a scheduler {name:?}: {error}"
                    );
                }
                Err(error) => return Err(error),
            }
        }
        Ok(missing)
    }

    /// Sets how long IPVS keeps idle connections. Returns, for each timeout that the kernel refuses,
    /// a line for the log: since Linux 5.0 one has at most as many seconds as fit into 31 bits of
    /// ticks (`ip_vs_set_timeout`), 24 days with 1000 ticks a second. Each is set by itself, so that
    /// this costs no other one.
    ///
    /// # Errors
    /// When the socket fails, or the kernel refuses for another reason.
    pub fn set_timeouts(&mut self, timeouts: &Timeouts) -> Result<Vec<String>, Error> {
        let Timeouts { tcp, tcp_fin, udp } = *timeouts;
        let none = Timeouts::default;
        let [of_tcp, of_fin, of_udp] = [
            Timeouts { tcp, ..none() },
            Timeouts { tcp_fin, ..none() },
            Timeouts { udp, ..none() },
        ];
        let mut refused = Vec::new();
        for (name, time, timeout) in [
            ("tcpTimeout (--ipvs-tcp-timeout)", tcp, of_tcp),
            ("tcpFinTimeout (--ipvs-tcpfin-timeout)", tcp_fin, of_fin),
            ("udpTimeout (--ipvs-udp-timeout)", udp, of_udp),
        ] {
            match self.ipvs.set_timeouts(&timeout) {
                Err(error) if error.errno() == Some(Errno::EINVAL) => refused.push(format!(
                    "ipvs.{name} {} s is not applied, so the kernel's own timeout stays: {error}; \
                     configure a shorter one",
                    time.as_secs()
                )),
                outcome => outcome?,
            }
        }
        Ok(refused)
    }

    /// Returns true, once, after IPVS was unloaded and loaded again: it has no
    /// virtual servers then, and the kernel's own timeouts.
    ///
    /// # Errors
    /// When the kernel has no IPVS any more.
    pub fn was_loaded_again(&mut self) -> Result<bool, Error> {
        let again = self.ipvs.was_loaded_again()?;
        if again {
            // Schedulers are modules of their own.
            self.schedulers.clear();
        }
        Ok(again)
    }

    /// Makes the dummy link, unless it is there. Returns true if it was not.
    ///
    /// # Errors
    /// When it cannot be made, or a link of another kind has its name: that one would
    /// send packets to the addresses of Services out of this node.
    pub fn ensure_link(&mut self) -> Result<bool, Error> {
        let made = links::add_dummy(&mut self.route, LINK)?;
        self.link = links::find(&mut self.route, LINK)?;
        Ok(made)
    }

    /// Returns true if `address` is one of the dummy link's.
    pub fn is_on_link(&self, address: &Address) -> bool {
        address.index == self.link
    }

    /// Adds addresses to the dummy link, or removes them from it. Returns the outcome
    /// of each.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn change_addresses(
        &mut self,
        addresses: &[IpAddr],
        action: Action,
    ) -> Result<Vec<Result<(), Error>>, Error> {
        match action {
            Action::Add => addresses::add(&mut self.route, self.link, addresses),
            Action::Remove => addresses::remove(&mut self.route, self.link, addresses),
        }
    }

    /// Creates the missing sets of `family`, each with room for as many members as `size` says;
    /// `None`: it is not needed. Returns the names of the created ones. An existing set is taken as
    /// it is, with any size.
    ///
    /// # Errors
    /// When a set cannot be created, or exists with another kind.
    pub fn ensure_sets(
        &mut self,
        family: Family,
        size: impl Fn(Set) -> Option<u32>,
    ) -> Result<Vec<&'static str>, Error> {
        let there = self.sets.list()?;
        let there: BTreeMap<&str, &Listed> =
            there.iter().map(|set| (set.name.as_str(), set)).collect();
        self.room.retain(|(_, of), _| *of != family);
        let mut made = Vec::new();
        for set in Set::ALL {
            let Some(members) = size(set) else {
                continue;
            };
            let found = there.get(set.name(family)).copied();
            self.ensure_set(set, family, members, found)?;
            if found.is_none() {
                made.push(set.name(family));
            }
        }
        // The set of a process that was killed while it enlarged another one.
        if there.contains_key(TEMPORARY)
            && let Err(error) = self.sets.destroy(TEMPORARY)
        {
            tracing::debug!("{error}");
        }
        Ok(made)
    }

    fn ensure_set(
        &mut self,
        set: Set,
        family: Family,
        members: u32,
        found: Option<&Listed>,
    ) -> Result<(), Error> {
        let sized = set.kernel_set(family).with_room_for(members);
        let room = match found {
            Some(found) if found.is(&sized) => found.max_members,
            _ => {
                // If one is there, the kernel says what is wrong with it.
                self.sets.create(&sized)?;
                sized.room()
            }
        };
        self.room.insert((set, family), room);
        Ok(())
    }

    /// Returns how many members each of the sets has that are ours, by its name.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set_sizes(&mut self) -> Result<BTreeMap<String, Option<u32>>, Error> {
        let listed = self.sets.list()?.into_iter();
        let ours = listed.filter(|set| Set::is_name(&set.name));
        Ok(ours.map(|set| (set.name, set.members)).collect())
    }

    /// Creates a missing set, and replaces one that cannot hold `members` members by a larger one.
    ///
    /// # Errors
    /// When the kernel refuses; then the set is unchanged.
    pub fn make_room(&mut self, set: Set, family: Family, members: u32) -> Result<(), Error> {
        if !self.room.contains_key(&(set, family)) {
            let there = self.sets.list()?;
            let found = there.iter().find(|listed| listed.name == set.name(family));
            self.ensure_set(set, family, members, found)?;
        }
        let room = self.room.entry((set, family)).or_default();
        if *room == 0 || members <= *room {
            return Ok(());
        }
        let larger = set.kernel_set(family).with_room_for(members);
        self.sets.enlarge(&larger)?;
        *room = larger.room();
        Ok(())
    }

    /// Lists the members of a set; none if there is no such set.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn members(&mut self, set: Set, family: Family) -> Result<Vec<Element>, Error> {
        self.sets.members_if_there(set.name(family))
    }

    /// Makes changes of sets in their order. Returns those that the kernel refused.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn change_members(&mut self, steps: &[MemberStep]) -> Result<Vec<RefusedMember>, Error> {
        let mut refused = Vec::new();
        // Steps of one set and direction may go together: their order does not matter, and the
        // order among sets is kept by `rank`.
        let mut groups: BTreeMap<(usize, Set, Family, Action), Vec<Element>> = BTreeMap::new();
        let mut rank = 0;
        let mut last = None;
        for MemberStep { member, action } in steps {
            let kind = (*action, member.set.admits());
            if last.is_some_and(|last| last != kind) {
                rank += 1;
            }
            last = Some(kind);
            let group = (rank, member.set, member.family, *action);
            groups.entry(group).or_default().push(member.element);
        }
        for ((_, set, family, action), elements) in groups {
            let kernel = set.kernel_set(family);
            let outcome = match action {
                Action::Add => self.sets.add(&kernel, &elements)?,
                Action::Remove => self.sets.remove(&kernel, &elements)?,
            };
            refused.extend(outcome.into_iter().map(|refused| RefusedMember {
                member: Member {
                    set,
                    family,
                    element: refused.element,
                },
                error: refused.error,
            }));
        }
        Ok(refused)
    }
}
