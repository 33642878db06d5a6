//! What one family has in the kernel, and the difference to what is desired. Pure.

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

/// What is in the kernel, and for which frontends.
#[derive(Default)]
pub struct Applied {
    /// How packets for each frontend are delivered.
    deliveries: BTreeMap<Frontend, Delivery>,
    /// How many frontends use each object, by its hash: there are several objects for
    /// each frontend, which together would be the largest thing about it. The chance
    /// that two among a million have the same hash of 64 bits is one in 37 million; as
    /// the key is our own, no client can bring it about; and it would keep one object
    /// too long.
    users: References<u64>,
    key: RandomState,
}

/// The steps from what is in the kernel to what is desired, in this order.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Steps {
    /// To be removed first, because it is in the way of what is added.
    pub blocking: Vec<Object>,
    /// Objects that must be added.
    pub add: Vec<Object>,
    /// Objects that must be removed.
    pub remove: Vec<Object>,
}

impl Applied {
    /// Returns what is to be in the kernel for all that is desired of a family. What
    /// cannot be is in the `report`.
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

    /// Records that packets for `frontend` are delivered. Returns the objects for it
    /// that no other frontend uses.
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

    /// Returns the frontends that packets are delivered for.
    pub fn frontends(&self) -> impl Iterator<Item = &Frontend> {
        self.deliveries.keys()
    }

    /// Returns the objects that deliver packets for `frontend`.
    pub fn objects(&self, frontend: &Frontend, environment: &Environment) -> Vec<Object> {
        let delivery = self.deliveries.get(frontend);
        delivery.map_or_else(Vec::new, |d| plan::objects(frontend, *d, environment))
    }

    /// Updates this to what is desired for `changed`, and returns the steps to it.
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

    /// Returns the steps from what was `observed` to all of this.
    pub fn reconcile(&self, observed: Vec<Object>, environment: &Environment) -> Steps {
        let (present, surplus): (Vec<_>, Vec<_>) = observed
            .into_iter()
            .partition(|object| self.users(object) > 0);
        let present: HashSet<_> = present.into_iter().collect();
        let desired = self.frontends().flat_map(|f| self.objects(f, environment));
        // Addresses are assigned again: the kernel may have made anew the
        // route that was withdrawn.
        let missing: HashSet<_> = desired
            .filter(|o| matches!(o, Object::Address(_)) || !present.contains(o))
            .collect();
        // A route that differs in its source only would block the right one.
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

fn delivery(
    frontend: &Frontend,
    desired: &Desired,
    environment: &Environment,
    report: &mut Report,
) -> Option<Delivery> {
    let target = desired.get(frontend)?;
    match plan::delivery(frontend, target, environment) {
        Ok(delivery) => {
            if delivery == Delivery::WholeAddress && environment.matches_ports {
                report.messages.push(format!(
                    "{frontend}: all ports of the address reach programs that listen on all \
                     addresses of this node, because routing rules cannot match port 65535"
                ));
            }
            Some(delivery)
        }
        Err(reason) => {
            report.failed.push((*frontend, reason));
            None
        }
    }
}
