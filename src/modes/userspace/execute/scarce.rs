//! Distribution of descriptors and local ports if there are not enough for all.

use hashbrown::HashMap;
use net::{Family, Frontend, Protocol};

use super::{
    super::{
        capture::Method,
        diff::{Applied, AppliedGroup},
        plan::{
            GroupName, GroupPlan,
            listen::{NodeContext, binds},
        },
        shares::{Claim, Held, share_out},
    },
    Executor,
};
use crate::services::ServicePortName;

/// Why a ServicePort is not served, or only on some of its addresses. The same for all, so that it
/// is logged once.
const NO_DESCRIPTORS: &str = "the remaining file descriptors are reserved for other namespaces and \
                              Services; raise the limit (ulimit -n), or name fewer ports and \
                              addresses";

/// The same with redirect capture, which needs a local port for each service group.
const NO_PORTS: &str = "the remaining local ports are reserved for other namespaces and Services; \
                        widen --proxy-port-range, or net.ipv4.ip_local_port_range if none is \
                        given, or name fewer ports";

/// Share of a ServicePort that does not get everything, and why.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limited {
    /// Number of descriptors, each for one address.
    granted: usize,
    pub(super) why: &'static str,
}

impl Executor {
    /// The descriptors that `port` still needs to be served according to `plans`; `None` if none. The
    /// same for a process that does not open listeners now: it may have to take everything back.
    pub(super) fn claim(
        &self,
        port: &ServicePortName,
        plans: &[GroupPlan],
        node: &NodeContext,
    ) -> Option<Claim> {
        if plans.is_empty() {
            return None;
        }
        let applied = self.applied(port);
        let none = AppliedGroup::default();
        let missing = plans.iter().map(|plan| {
            let group = applied.get(&plan.name.kind).unwrap_or(&none);
            missing(plan, group, node)
        });
        let wants = missing.sum::<usize>();
        (wants > 0).then(|| Claim {
            name: port.clone(),
            wants,
            was_served: plans.iter().any(|plan| self.was_served(plan, node)),
        })
    }

    /// Returns whether an earlier process served the group of `plan`, as far as known.
    fn was_served(&self, plan: &GroupPlan, node: &NodeContext) -> bool {
        let (protocol, family) = (plan.name.port.protocol, plan.name.port.family);
        let mut frontends = plan.frontends.iter();
        if frontends.any(|frontend| self.previous.captured(frontend)) {
            return true;
        }
        match node.methods.get(family) {
            Method::Redirect => {
                let port = self
                    .inherited
                    .local_port(protocol, family, plan.name.label());
                port.is_some()
            }
            Method::Local => {
                let frontends = plan.frontends.iter();
                let mut binds = frontends.flat_map(|frontend| binds(frontend, plan, node));
                binds.any(|bind| self.inherited.is_there(protocol, bind.address))
            }
        }
    }

    /// The ServicePorts whose `claims` are not granted in full.
    pub(super) fn share_out(
        &self,
        mut claims: Vec<Claim>,
        node: &NodeContext,
    ) -> HashMap<ServicePortName, Limited> {
        if claims.is_empty() {
            return HashMap::new();
        }
        let wanted: Vec<usize> = claims.iter().map(|claim| claim.wants).collect();
        let mut reasons = vec![NO_DESCRIPTORS; claims.len()];
        let pools = [Protocol::Tcp, Protocol::Udp].into_iter();
        let pools = pools.flat_map(|protocol| Family::ALL.map(|family| (protocol, family)));
        for (protocol, family) in pools.filter(|(_, f)| *node.methods.get(*f) == Method::Redirect) {
            let is_of = |name: &ServicePortName| name.protocol == protocol && name.family == family;
            let of_pool = claims.iter_mut().zip(&mut reasons);
            let of_pool = of_pool.filter(|(claim, _)| is_of(&claim.name));
            let mut of_pool: Vec<(&mut Claim, &mut &str)> = of_pool.collect();
            let room = self.ports.room(protocol, family);
            if room.is_ample_for(of_pool.iter().map(|(claim, _)| claim.wants).sum()) {
                continue;
            }
            let held = self.held(|name, _| usize::from(is_of(&name.port)));
            let asked: Vec<Claim> = of_pool.iter().map(|(claim, _)| (**claim).clone()).collect();
            let granted = share_out(room, held, &asked);
            for ((claim, why), granted) in of_pool.iter_mut().zip(granted) {
                if granted < claim.wants {
                    claim.wants = granted;
                    **why = NO_PORTS;
                }
            }
        }
        let descriptors = &self.shared.descriptors;
        let each = descriptors.sockets_each(self.workers.count());
        let sum: usize = claims.iter().map(|claim| claim.wants).sum();
        let room = descriptors.for_services();
        let granted = if room.is_ample_for(sum.saturating_mul(each)) {
            claims.iter().map(|claim| claim.wants).collect()
        } else {
            share_out(room, self.held(|_, descriptors| descriptors), &claims)
        };
        let all = claims.into_iter().zip(granted).zip(wanted).zip(reasons);
        let limited = all.filter_map(|(((claim, granted), wanted), why)| {
            (granted < wanted).then_some((claim.name, Limited { granted, why }))
        });
        limited.collect()
    }

    /// The current holdings of all Services. `units` converts the number of a group's descriptors.
    fn held(&self, units: impl Fn(&GroupName, usize) -> usize) -> Held {
        let mut held = Held::default();
        for (name, group) in &self.groups {
            held.add(&name.port.service, units(name, group.descriptors()));
        }
        held
    }
}

/// Keeps in `plans` the frontends that have sockets in `applied`, and as many others as are
/// granted.
pub(super) fn limit(
    plans: &mut Vec<GroupPlan>,
    applied: &Applied,
    node: &NodeContext,
    Limited { mut granted, .. }: Limited,
) {
    let none = AppliedGroup::default();
    let mut fits = |lacks: usize| {
        let fits = lacks <= granted;
        granted -= if fits { lacks } else { 0 };
        fits
    };
    for plan in &mut *plans {
        let group = applied.get(&plan.name.kind).unwrap_or(&none);
        let is_kept: Vec<bool> = match node.methods.get(plan.name.port.family) {
            Method::Redirect => {
                let fits = fits(missing(plan, group, node));
                vec![fits; plan.frontends.len()]
            }
            Method::Local => {
                let frontends = plan.frontends.iter();
                let lacks = frontends.map(|frontend| lacks(frontend, plan, group, node));
                lacks.map(&mut fits).collect()
            }
        };
        let mut is_kept = is_kept.into_iter();
        plan.frontends.retain(|_| is_kept.next() == Some(true));
    }
    plans.retain(|plan| !plan.frontends.is_empty());
}

/// Number of sockets that `group` still needs for `plan`.
fn missing(plan: &GroupPlan, group: &AppliedGroup, node: &NodeContext) -> usize {
    match node.methods.get(plan.name.port.family) {
        Method::Redirect => usize::from(group.local_port.is_none()),
        Method::Local => {
            let frontends = plan.frontends.iter();
            let lacks = frontends.map(|frontend| lacks(frontend, plan, group, node));
            lacks.sum()
        }
    }
}

/// Number of sockets that `group` still needs for a frontend of `plan` with local capture. A
/// frontend that it owns but could not bind takes none from others.
fn lacks(frontend: &Frontend, plan: &GroupPlan, group: &AppliedGroup, node: &NodeContext) -> usize {
    if group.frontends.contains(frontend) {
        return 0;
    }
    binds(frontend, plan, node).len()
}
