//! What of a difference is due when nothing leads to it any more.

use std::mem;

use super::Executor;
use crate::{
    modes::userspace::{capture::Frontend, diff::Closing, plan::GroupName},
    net::PerFamily,
    services::ServicePortName,
};

impl Executor {
    /// Closes what is due of the `families`.
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
                if let Some(uses) = self.lingering.get_mut(&frontend) {
                    uses.push(in_use);
                }
            }
            Closing::Group(kind) => {
                self.loads.remove(&name(kind));
                self.assignments.remove_flows(&name(kind));
                let group = self.groups.remove(&name(kind));
                if let Some(port) = group.and_then(|mut group| group.local_port.take()) {
                    self.ports.release(&port);
                }
            }
        }
    }

    /// Stops capturing released frontends of `families` that no connection uses any
    /// more.
    pub fn end_lingering(&mut self, families: PerFamily<bool>) {
        let unused: Vec<Frontend> = self
            .lingering
            .iter()
            .filter(|(frontend, _)| *families.get(frontend.family))
            .filter(|(_, uses)| uses.iter().all(|u| u.strong_count() == 0))
            .map(|(frontend, _)| *frontend)
            .collect();
        for frontend in unused {
            self.lingering.remove(&frontend);
            self.capture(&frontend, None);
        }
    }
}
