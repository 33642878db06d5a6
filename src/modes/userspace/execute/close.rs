//! Steps of a difference that wait until nothing is sent to a listener or group any more.

use std::mem;

use net::{Family, Frontend, PerFamily};

use super::Executor;
use crate::{
    modes::{
        Drain, MOST_DRAINS, SyncReport,
        userspace::{diff::Closing, plan::GroupName},
    },
    services::ServicePortName,
};

impl Executor {
    /// Runs the waiting steps of the `families`.
    pub fn close(&mut self, families: PerFamily<bool>) {
        let closing = mem::take(&mut self.closing);
        for (port, due) in closing {
            if !*families.get(port.family) {
                self.closing.insert(port, due);
                continue;
            }
            for closing in due {
                self.close_one(&port, closing);
            }
        }
        // Workers close the sockets; waiting makes runs of the simulation reproducible from their
        // seed.
        #[cfg(test)]
        self.workers.wait();
    }

    fn close_one(&mut self, port: &ServicePortName, closing: Closing) {
        let name = |kind| GroupName::of(port, kind);
        match closing {
            Closing::Route(plan) => self.reroute(&plan),
            Closing::Listeners(kind, address) => {
                let group = self.groups.get_mut(&name(kind));
                let Some(in_use) = group.and_then(|group| group.close(address)) else {
                    return;
                };
                let frontend = Frontend::service(port.protocol, address.ip(), address.port());
                // A listener may be closed long before its frontend is released, for instance while
                // no endpoint is ready.
                if self.desired.contains_key(&frontend) {
                    self.used.entry(frontend).or_default().push(in_use);
                }
            }
            Closing::Group(kind) => {
                self.loads.remove(&name(kind));
                self.assignments.remove_flows(&name(kind));
                let Some(mut group) = self.groups.remove(&name(kind)) else {
                    return;
                };
                self.unfiltered.remove(&name(kind));
                if let Some(port) = group.local_port.take() {
                    self.ports.give_up(port.bound);
                }
            }
        }
    }

    /// Stops capturing released frontends of `families` that no connection uses any more.
    /// Connections of an earlier process are not known here: until that process has ended, all of
    /// them stay.
    pub fn end_lingering(&mut self, families: PerFamily<bool>) {
        self.used.retain(|_, uses| {
            uses.retain(|one| one.strong_count() > 0);
            !uses.is_empty()
        });
        if self.has_predecessor() {
            return;
        }
        let used = &self.used;
        let unused = self.lingering.extract_if(.., |frontend| {
            *families.get(frontend.family) && !used.contains_key(frontend)
        });
        for frontend in unused.collect::<Vec<_>>() {
            self.capture(&frontend, None);
        }
    }

    /// Reports the frontends of `family` that stay captured until their last connection ends.
    pub fn report_lingering(&self, family: Family, report: &mut SyncReport) {
        let all = self.lingering.iter();
        let all = all.filter(|frontend| frontend.family == family);
        let drain = |frontend: &Frontend| Drain {
            address: frontend.to_string(),
            endpoint: None,
        };
        report.lingering = all.clone().count();
        report.drains = all.take(MOST_DRAINS).map(drain).collect();
    }
}
