//! Steps that change sets, virtual servers and addresses, in the order that `diff` gives
//! them and in which `execute` runs them.

use std::{collections::BTreeMap, net::IpAddr};

use hashbrown::HashSet;
use net::Family;

use super::plan::{Member, ServerId, Set};

/// The change of a member or an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// It is removed.
    Remove,
    /// It is added, where it is not there yet.
    Add,
}

/// A member that is added or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberStep {
    /// The member of a set.
    pub member: Member,
    /// Its change.
    pub action: Action,
}

/// The steps of one family, each kind in the order in which it is run.
#[derive(Debug)]
pub struct Steps {
    /// The most members that each set has meanwhile, for sets that a member is added
    /// to.
    pub room: BTreeMap<(Set, Family), u32>,
    /// Members of sets that are added and removed.
    pub members: MemberSteps,
    /// Virtual servers that are open, and follow their endpoints.
    pub follow: HashSet<ServerId>,
    /// Virtual servers to open.
    pub open: HashSet<ServerId>,
    /// Addresses that the dummy link gets ...
    pub add_addresses: Vec<IpAddr>,
    /// ... and those that it loses.
    pub remove_addresses: Vec<IpAddr>,
    /// Virtual servers that are deleted.
    pub close: Vec<ServerId>,
    /// Frontends that no ServicePort needs, those to close among them.
    pub gone: Vec<ServerId>,
}

impl Steps {
    /// Returns how many there are.
    pub fn count(&self) -> usize {
        let addresses = self.add_addresses.len() + self.remove_addresses.len();
        let servers = self.follow.len() + self.open.len() + self.close.len();
        let MemberSteps {
            before,
            followed,
            opened,
            after,
        } = &self.members;
        let members = [before, followed, opened, after].map(Vec::len);
        addresses + servers + members.into_iter().sum::<usize>()
    }
}

/// Changes of sets, by when they are due.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberSteps {
    /// Before anything is opened.
    pub before: Vec<MemberStep>,
    /// When virtual servers that are open send to their new endpoints.
    pub followed: Vec<MemberStep>,
    /// When virtual servers and addresses are as desired, before any is removed.
    pub opened: Vec<MemberStep>,
    /// When everything else has been removed.
    pub after: Vec<MemberStep>,
}
