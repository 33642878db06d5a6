//! State of one family in the kernel, and its difference from the desired state. Pure.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    hash::{BuildHasher, RandomState},
};

use net::Frontend;

use super::plan::{self, Delivery, Environment, Object};
use crate::modes::{
    references::References,
    userspace::capture::{Desired, Report},
};

/// Objects in the kernel, and the frontends that use them.
#[derive(Default)]
pub struct Applied {
    /// How packets to each frontend are delivered.
    deliveries: BTreeMap<Frontend, Delivery>,
    /// Number of frontends that use each object, by the object's hash: each frontend has several
    /// objects, which together would be the largest part of its memory. The chance that two among a
    /// million have the same 64-bit hash is one in 37 million; as the key is our own, no client can
    /// provoke it; and the effect would be one object that stays too long.
    users: References<u64>,
    key: RandomState,
}

/// Steps from the current to the desired state, in this order.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Steps {
    /// Objects to remove first, because they block objects that are added.
    pub blocking: Vec<Object>,
    /// Objects to add.
    pub add: Vec<Object>,
    /// Objects to remove.
    pub remove: Vec<Object>,
}

impl Applied {
    /// The desired state of a family. What an operator should know is added to `report`.
    pub fn of(desired: &Desired, environment: &Environment, report: &mut Report) -> Applied {
        let mut applied = Applied::default();
        let ours = desired.keys().filter(|f| f.family == environment.family);
        for frontend in ours {
            if let Some(delivery) = delivery(frontend, desired, environment, report) {
                applied.insert(*frontend, delivery, environment);
            }
        }
        applied
    }

    /// Records that packets to `frontend` are delivered. Returns the objects for it that no other
    /// frontend uses.
    fn insert(
        &mut self,
        frontend: Frontend,
        delivery: Delivery,
        environment: &Environment,
    ) -> Vec<Object> {
        self.deliveries.insert(frontend, delivery);
        let mut objects = plan::objects(&frontend, delivery, environment);
        objects.retain(|object| self.users.add(self.key.hash_one(object)));
        objects
    }

    fn users(&self, object: &Object) -> u32 {
        self.users.count(&self.key.hash_one(object))
    }

    pub fn frontends(&self) -> impl Iterator<Item = &Frontend> {
        self.deliveries.keys()
    }

    /// The objects that deliver packets to `frontend`.
    pub fn objects(&self, frontend: &Frontend, environment: &Environment) -> Vec<Object> {
        let delivery = self.deliveries.get(frontend);
        delivery.map_or_else(Vec::new, |d| plan::objects(frontend, *d, environment))
    }

    /// Updates this to the desired state for `changed`, and returns the steps to it.
    pub fn update(
        &mut self,
        desired: &Desired,
        changed: &BTreeSet<Frontend>,
        environment: &Environment,
        report: &mut Report,
    ) -> Steps {
        let mut steps = Steps::default();
        for frontend in changed {
            steps.remove.extend(self.objects(frontend, environment));
            self.deliveries.remove(frontend);
            if let Some(delivery) = delivery(frontend, desired, environment, report) {
                let new = self.insert(*frontend, delivery, environment);
                steps.add.extend(new);
            }
        }
        // An object that is used before and after always has a user.
        let is_unused = |object: &Object| self.users.release(&self.key.hash_one(object));
        steps.remove.retain(is_unused);
        steps
    }

    /// The steps from the `observed` state to this one.
    pub fn reconcile(&self, observed: Vec<Object>, environment: &Environment) -> Steps {
        let (present, surplus): (Vec<_>, Vec<_>) = observed
            .into_iter()
            .partition(|object| self.users(object) > 0);
        let present: HashSet<_> = present.into_iter().collect();
        let desired = self.frontends().flat_map(|f| self.objects(f, environment));
        // Addresses are always assigned again: the kernel may have restored the route that was
        // withdrawn.
        let missing: HashSet<_> = desired
            .filter(|o| matches!(o, Object::Address(_)) || !present.contains(o))
            .collect();
        // A route that differs only in its source would block the right one.
        let place = |object: &Object| match object {
            Object::Route(route) => Some((route.table, route.destination)),
            _ => None,
        };
        let places: HashSet<_> = missing.iter().filter_map(place).collect();
        let (blocking, remove): (Vec<_>, Vec<_>) = surplus
            .into_iter()
            .partition(|o| place(o).is_some_and(|p| places.contains(&p)));
        Steps {
            blocking,
            add: missing.into_iter().collect(),
            remove,
        }
    }
}

/// How packets for `frontend` are delivered; `None` if it is not desired.
fn delivery(
    frontend: &Frontend,
    desired: &Desired,
    environment: &Environment,
    report: &mut Report,
) -> Option<Delivery> {
    let delivery = plan::delivery(frontend, desired.get(frontend)?, environment);
    if delivery == Delivery::WholeAddress && environment.matches_ports {
        report.messages.push(format!(
            "{frontend}: all ports of the address reach programs that listen on all addresses of \
             this node, because routing rules cannot match port 65535"
        ));
    }
    Some(delivery)
}
