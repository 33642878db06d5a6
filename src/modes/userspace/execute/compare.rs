//! Differences between the current and the desired listeners.

use std::{collections::BTreeMap, net::SocketAddr};

use net::{Family, Protocol};

use super::{
    super::plan::{GroupKind, GroupName},
    Executor,
};
use crate::{
    modes::{Difference, Found},
    services::ServicePortName,
};

impl Executor {
    /// The missing listeners of `family`: those that could not be opened, with the reasons in
    /// `failed`, and those that no longer listen.
    pub fn missing_listeners(
        &self,
        family: Family,
        failed: &BTreeMap<ServicePortName, String>,
    ) -> Vec<Difference> {
        let failed = failed.iter().map(|(name, why)| {
            let object = format!("listeners: {why}");
            Difference::new(Some(name), object, Found::Missing)
        });
        let groups = self.groups.iter();
        let groups = groups.filter(|(name, _)| name.port.family == family);
        let ended = groups.flat_map(|(name, group)| {
            let port = &name.port;
            let ended = group.ended();
            ended.map(|at| Difference::new(Some(port), listener(at, port.protocol), Found::Missing))
        });
        let mut missing: Vec<Difference> = failed.chain(ended).collect();
        missing.sort_unstable();
        missing
    }

    /// Makes the groups of `port` listen again if another program closed a socket. The error says
    /// why one of them cannot.
    pub(super) fn reopen_ended(&mut self, port: &ServicePortName) -> Result<(), String> {
        let mut outcome = Ok(());
        for name in GroupKind::ALL.map(|kind| GroupName::of(port, kind)) {
            let Some(group) = self.groups.get_mut(&name) else {
                continue;
            };
            let reopened = group.reopen_ended();
            let failed = |(at, error)| self.cannot_bind(port.protocol, at, &error);
            outcome = outcome.and(reopened.map_err(failed));
        }
        outcome
    }

    /// The listeners that `port` has, as text.
    pub fn listeners(&self, port: &ServicePortName) -> Vec<String> {
        let groups = self.groups_of(port);
        let addresses = groups.flat_map(|(_, group)| group.listens_on());
        addresses.map(|at| listener(at, port.protocol)).collect()
    }
}

fn listener(at: SocketAddr, protocol: Protocol) -> String {
    format!("listener {at}/{protocol}")
}
