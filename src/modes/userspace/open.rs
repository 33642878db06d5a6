//! Making a portal exist: whose its addresses are, where it listens, and what
//! is to be captured for it.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use super::{
    Failures, Userspace,
    capture::{Frontend, Method, OtherPorts, Target},
    gate::Gate,
    listen::Owner,
    plan::PortalPlan,
};
use crate::net::{Family, Protocol};

/// Frontends to capture, with the local port where that matters, and the
/// addresses that their portal should be bound to.
type Opened = (BTreeMap<Frontend, u16>, BTreeSet<SocketAddr>);

impl Userspace {
    /// Makes the portal of `plan` exist and listen where it should.
    pub(super) fn open(&mut self, plan: PortalPlan, failed: &mut Failures) {
        let name = plan.name.clone();
        self.gone.remove(&name);
        let affinity = self.affinity(&plan);
        let owned = plan.frontends.iter();
        self.owners.extend(owned.map(|f| (*f, name.clone())));
        let listening = !plan.is_hopeless();
        let mut gate = match self.gates.remove(&name) {
            Some(mut gate) => {
                gate.reroute(&plan, affinity);
                gate
            }
            None => Box::new(Gate::new(&self.shared, &plan, affinity)),
        };

        let filtered = gate.filter(name.port.family, &self.shared.insiders);
        self.log_filter(filtered, gate.label());

        let (captured, desired) = match self.capture.method(name.port.family) {
            Method::Redirect => self.open_redirected(&mut gate, &plan, failed),
            Method::Local => self.open_routed(&mut gate, &plan, failed),
        };
        for address in gate.listens_on() {
            let end = (name.clone(), address);
            match listening && desired.contains(&address) {
                true => self.closing.remove(&end),
                false => self.closing.insert(end),
            };
        }
        for frontend in &plan.frontends {
            self.retiring.remove(frontend);
            let target = captured.get(frontend).map(|port| Target {
                port: *port,
                name: Arc::clone(gate.label()),
                other_ports: match frontend.address.is_some() && frontend.address == plan.cluster_ip
                {
                    true => OtherPorts::Refuse,
                    false => OtherPorts::PassOn,
                },
            });
            self.capture_as(frontend, target);
        }
        self.gates.insert(name, gate);
    }

    /// Listens on the local port of a portal that nat rules lead to. Answers
    /// what is to be captured, with that port, and where it should listen.
    fn open_redirected(
        &mut self,
        gate: &mut Gate,
        plan: &PortalPlan,
        failed: &mut Failures,
    ) -> Opened {
        let name = &plan.name;
        let address = loop {
            let address = match self.local_port(gate, plan) {
                Ok(address) => address,
                Err(e) => {
                    failed.add(name, format!("no local port for it: {e}"));
                    return Opened::default();
                }
            };
            // Without endpoints the held port refuses.
            if plan.is_hopeless() {
                break address;
            }
            match self.listen(gate, address, name.port.protocol, Owner::Node) {
                Ok(()) => break address,
                // Somebody took the port while nobody listened on it: another
                // one serves as well.
                Err(e) if e.kind() == io::ErrorKind::AddrInUse => {
                    if let Some(lost) = gate.held.take() {
                        self.ports.release(&lost);
                    }
                }
                Err(e) => {
                    failed.add(name, format!("cannot listen on {address}: {e}"));
                    return Opened::default();
                }
            }
        };
        let captured = plan.frontends.iter().map(|f| (*f, address.port()));
        (captured.collect(), BTreeSet::from([address]))
    }

    /// Listens on the service addresses themselves, which routes lead to.
    /// Answers as `open_redirected` does.
    fn open_routed(&mut self, gate: &mut Gate, plan: &PortalPlan, failed: &mut Failures) -> Opened {
        let mut opened = Opened::default();
        let protocol = plan.name.port.protocol;
        for frontend in &plan.frontends {
            let mut ours = true;
            for (address, owner) in self.binds(frontend, &plan.not_at) {
                opened.1.insert(address);
                let bound = match plan.is_hopeless() {
                    true if self.yields() => Ok(()),
                    true => gate.reserve(&self.shared, address, protocol, owner),
                    false => self.listen(gate, address, protocol, owner),
                };
                if let Err(e) = bound {
                    failed.add(&plan.name, cannot_bind(address, &e));
                    ours = false;
                }
            }
            // A captured address that is not bound by us would reach whoever
            // listens on that port of the node.
            if ours && frontend.address.is_some() {
                opened.0.insert(*frontend, 0);
            }
        }
        gate.keep_reserved(&opened.1);
        opened
    }

    /// The local port of a redirected portal: never one that its clients call,
    /// because a rule would have nothing to translate then.
    fn local_port(&mut self, gate: &mut Gate, plan: &PortalPlan) -> io::Result<SocketAddr> {
        let called: Vec<u16> = plan.frontends.iter().map(|f| f.port).collect();
        let name = &plan.name.port;
        let mut unfit = Vec::new();
        let held = loop {
            let held = match gate.held.take() {
                Some(held) => held,
                None => self.ports.hold(name.protocol, name.family)?,
            };
            match called.contains(&held.address.port()) {
                true => unfit.push(held),
                false => break held,
            }
        };
        for held in &unfit {
            self.ports.release(held);
        }
        let address = held.address;
        gate.held = Some(held);
        Ok(address)
    }

    /// Says once that who may not call is reset instead of hearing nothing.
    pub(super) fn log_filter(&mut self, filtered: io::Result<()>, service: &str) {
        if let Err(error) = filtered
            && !std::mem::replace(&mut self.filter_logged, true)
        {
            tracing::warn!(
                service,
                "who may not call is reset instead of hearing nothing, as their filter does not fit \
                 on the listener: {error}; give fewer loadBalancerSourceRanges, or raise \
                 net.core.optmem_max"
            );
        }
    }

    fn listen(
        &self,
        gate: &mut Gate,
        address: SocketAddr,
        protocol: Protocol,
        owner: Owner,
    ) -> io::Result<()> {
        // A successor opens what is still missing.
        if gate.has(address) || self.yields() {
            return Ok(());
        }
        gate.open(&self.shared, &self.workers, address, protocol, owner)
    }

    /// Where to listen for `frontend` without netfilter; if it is a node port,
    /// `not_at` these addresses.
    fn binds(&self, frontend: &Frontend, not_at: &[IpAddr]) -> Vec<(SocketAddr, Owner)> {
        match frontend.address {
            Some(ip) if self.node_addresses.contains(&ip) => {
                vec![((ip, frontend.port).into(), Owner::Node)]
            }
            Some(ip) => vec![((ip, frontend.port).into(), Owner::Service)],
            None => self
                .node_addresses
                .iter()
                .filter(|ip| {
                    Family::of(ip) == frontend.family
                        && !not_at.contains(ip)
                        && self.options.node_ports.served().contains(ip)
                })
                .map(|ip| ((*ip, frontend.port).into(), Owner::Node))
                .collect(),
        }
    }
}

fn cannot_bind(address: SocketAddr, error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::AddrInUse {
        format!(
            "cannot listen on {address}: another program on this node has that port on this \
             address or on all addresses; bind it to one address, or use \
             --userspace-capture=redirect"
        )
    } else {
        format!("cannot listen on {address}: {error}")
    }
}
