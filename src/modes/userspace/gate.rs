//! The listening sockets of one portal: opened on every worker, closed
//! without losing a connection that the kernel has already completed.

use std::{
    collections::BTreeSet,
    io,
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, Weak, atomic::Ordering::Relaxed},
};

use socket2::Socket;
use tokio::sync::OwnedSemaphorePermit;

use super::{
    Shared,
    admission::Filter,
    affinity::Affinity,
    backends::Backends,
    capture::Frontend,
    insiders::Insiders,
    listen::{self, Owner},
    plan::PortalPlan,
    portal::{Portal, Routing},
    ports::Held,
    steer, tcp, udp,
    watch::Token,
    workers::{Worker, Workers},
};
use crate::{
    net::{Family, Protocol},
    sched::Seed,
};

/// Alive as long as a connection that came in by an address is open.
pub type InUse = Weak<tcp::Door>;

/// One address that a portal listens on. Dropping it closes it.
#[derive(Debug)]
struct End {
    address: SocketAddr,
    protocol: Protocol,
    /// The workers that listen, and which of their listeners it is.
    places: Vec<(Arc<Worker>, Token)>,
    in_use: InUse,
    shared: Arc<Shared>,
    descriptors: Option<OwnedSemaphorePermit>,
}

impl Drop for End {
    /// Connections that the kernel has already completed are still served.
    fn drop(&mut self) {
        let descriptors = self.descriptors.take().map(Arc::new);
        for (worker, token) in &self.places {
            if self.protocol == Protocol::Udp {
                if let Some(listener) = worker.udp.remove(*token) {
                    listener.close();
                }
                continue;
            }
            let Some(listener) = worker.tcp.remove(*token) else {
                continue;
            };
            let (shared, descriptors) = (Arc::clone(&self.shared), descriptors.clone());
            worker.spawn(|| async move {
                tcp::serve_rest(&shared, &listener);
                drop((listener, descriptors));
            });
        }
    }
}

impl End {
    /// Puts `filter` on all of its TCP listeners.
    fn filter(&self, filter: &Filter) -> io::Result<()> {
        let mut outcome = Ok(());
        if self.protocol != Protocol::Tcp {
            return outcome;
        }
        for listener in self
            .places
            .iter()
            .filter_map(|(w, token)| w.tcp.get(*token))
        {
            listener.door.filtered.store(true, Relaxed);
            outcome = outcome.and(filter.attach(&listener.socket));
        }
        outcome
    }

    /// Has new connections go to `theirs` sockets of another process, which has
    /// opened them later; `None`: to any.
    fn steer(&self, theirs: Option<u32>) -> io::Result<()> {
        // One socket stands for all that share the address.
        let Some((worker, token)) = self.places.first() else {
            return Ok(());
        };
        let ours = u32::try_from(self.places.len()).unwrap_or(u32::MAX);
        let set = |socket: BorrowedFd<'_>| match theirs {
            Some(theirs) => steer::behind(&socket, ours, theirs),
            None => steer::nowhere(&socket),
        };
        let tcp = worker
            .tcp
            .get(*token)
            .filter(|_| self.protocol == Protocol::Tcp);
        let udp = worker
            .udp
            .get(*token)
            .filter(|_| self.protocol == Protocol::Udp);
        let tcp = tcp.map_or(Ok(()), |listener| set(listener.as_fd()));
        tcp.and(udp.map_or(Ok(()), |listener| set(listener.as_fd())))
    }
}

/// An address that is bound and silent.
struct Reserved {
    address: SocketAddr,
    _socket: Socket,
    _descriptor: OwnedSemaphorePermit,
}

/// A portal with its sockets.
pub struct Gate {
    /// The addresses that clients call.
    pub frontends: Box<[Frontend]>,
    /// Its local port, under redirect capture.
    pub held: Option<Held>,
    portal: Arc<Portal>,
    /// Where its schedulers begin.
    seed: Seed,
    associations: Option<Arc<udp::Associations>>,
    /// Who may call its TCP listeners.
    filter: Filter,
    ends: Vec<End>,
    /// Bound and silent while there is no endpoint: connections are refused,
    /// and nobody else's wildcard listener gets them.
    reserved: Vec<Reserved>,
}

impl Gate {
    /// A gate for `plan` that listens nowhere yet.
    pub fn new(shared: &Arc<Shared>, plan: &PortalPlan, affinity: Option<Arc<Affinity>>) -> Self {
        let label: Arc<str> = plan.name.port.to_string().into();
        let seed = Seed::of(&shared.node, &label);
        let routing = routing(plan, seed, affinity, None);
        let portal = Arc::new(Portal::new(label, Arc::clone(&shared.insiders), routing));
        let associations = (plan.name.port.protocol == Protocol::Udp)
            .then(|| udp::Associations::new(Arc::clone(shared), Arc::clone(&portal)));
        Gate {
            frontends: plan.frontends.as_slice().into(),
            held: None,
            portal,
            seed,
            associations,
            filter: Filter::default(),
            ends: Vec::new(),
            reserved: Vec::new(),
        }
    }

    /// Sends new traffic as `plan` says. Open TCP connections run on; UDP
    /// associations with endpoints that are no longer there end.
    pub fn reroute(&mut self, plan: &PortalPlan, affinity: Option<Arc<Affinity>>) {
        if *self.frontends != *plan.frontends {
            self.frontends = plan.frontends.as_slice().into();
        }
        let before = self.portal.routing();
        if is_of(&before, plan, affinity.as_ref()) {
            return;
        }
        let routing = routing(plan, self.seed, affinity, Some(&before));
        self.portal.reroute(routing);
        if let Some(associations) = &self.associations {
            associations.end_gone();
        }
    }

    /// The ServicePort, for logs and comments.
    pub fn label(&self) -> &Arc<str> {
        &self.portal.label
    }

    /// Has its TCP listeners let in who may call now; no filter that fits lets in
    /// everyone.
    ///
    /// # Errors
    /// When a filter does not fit.
    pub fn filter(&mut self, family: Family, insiders: &Insiders) -> io::Result<()> {
        let filter = Filter::of(family, &self.portal.routing(), insiders);
        if filter == self.filter {
            return Ok(());
        }
        self.filter = filter;
        let ends = self.ends.iter().map(|end| end.filter(&self.filter));
        ends.fold(Ok(()), Result::and)
    }

    /// Has its TCP listeners drop what still comes. A client that hears nothing
    /// tries again a second later, and meets the process that took over.
    pub fn fall_silent(&self) {
        for end in &self.ends {
            // Without it a few may be reset.
            let _ = end.filter(&Filter::nobody());
        }
    }

    /// Whether an address has fewer sockets than there are `workers`.
    pub fn is_short(&self, workers: usize) -> bool {
        self.ends.iter().any(|end| end.places.len() < workers)
    }

    /// Has what is new at its addresses go to `theirs` sockets of another
    /// process, which has opened them later; `None`: to any.
    ///
    /// # Errors
    /// Those of setsockopt(2), the first.
    pub fn steer(&self, theirs: Option<u32>) -> io::Result<()> {
        let ends = self.ends.iter().map(|end| end.steer(theirs));
        ends.fold(Ok(()), Result::and)
    }

    /// The addresses it listens on.
    pub fn listens_on(&self) -> impl Iterator<Item = SocketAddr> {
        self.ends.iter().map(|end| end.address)
    }

    /// Whether it listens on `address`.
    pub fn has(&self, address: SocketAddr) -> bool {
        self.listens_on().any(|other| other == address)
    }

    /// Listens on `address`, on every worker if descriptors allow.
    ///
    /// # Errors
    /// When the address cannot be bound; `AddrInUse` when another program has it.
    pub fn open(
        &mut self,
        shared: &Arc<Shared>,
        workers: &Workers,
        address: SocketAddr,
        protocol: Protocol,
        owner: Owner,
    ) -> io::Result<()> {
        // One socket a worker, unless listeners would leave too little for
        // connections.
        let spread = match shared.descriptors.free() > shared.descriptors.total() / 2 {
            true => workers.count(),
            false => 1,
        };
        let descriptors = shared.descriptors.take_now(spread)?;
        let some = || workers.some(shared.next_worker(spread), spread);
        let door = Arc::new(tcp::Door {
            portal: Arc::clone(&self.portal),
            called: self.called(address),
            filtered: (!self.filter.is_empty()).into(),
        });
        // Should anything fail, its drop closes what is open by then.
        let mut end = End {
            address,
            protocol,
            places: Vec::with_capacity(spread),
            in_use: Arc::downgrade(&door),
            shared: Arc::clone(shared),
            descriptors: Some(descriptors),
        };
        match (protocol, &self.associations) {
            (Protocol::Tcp, _) => {
                // All are bound before the first one listens, so that an
                // address that is taken leaves nothing behind.
                let bound = each(spread, || listen::tcp(address, owner))?;
                for (worker, socket) in some().zip(bound) {
                    if !self.filter.is_empty() {
                        // Said when it was made; who gets in is reset.
                        let _ = self.filter.attach(&socket);
                    }
                    let listener = tcp::Listener {
                        socket: listen::start(socket)?,
                        door: Arc::clone(&door),
                    };
                    let token = worker.tcp.add(Arc::new(listener))?;
                    end.places.push((Arc::clone(worker), token));
                }
            }
            (Protocol::Udp, Some(associations)) => {
                let bound = each(spread, || listen::udp(address, owner))?;
                for (worker, socket) in some().zip(bound) {
                    let listener = udp::Listener::new(socket, Arc::clone(associations));
                    let token = worker.udp.add(Arc::new(listener))?;
                    end.places.push((Arc::clone(worker), token));
                }
            }
            (Protocol::Udp | Protocol::Sctp, _) => {
                return Err(io::Error::new(
                    io::ErrorKind::Unsupported,
                    "userspace mode carries TCP and UDP, not SCTP; use iptables or ipvs mode for it",
                ));
            }
        }
        self.ends.push(end);
        self.reserved.retain(|other| other.address != address);
        Ok(())
    }

    /// Makes sure that connections to `address` are refused by the kernel.
    ///
    /// # Errors
    /// When another program would get them (`AddrInUse`), or the address
    /// cannot be bound.
    pub fn reserve(
        &mut self,
        shared: &Shared,
        address: SocketAddr,
        protocol: Protocol,
        owner: Owner,
    ) -> io::Result<()> {
        if self.reserved.iter().any(|other| other.address == address) {
            return Ok(());
        }
        match protocol {
            Protocol::Tcp => self.reserved.push(Reserved {
                address,
                _descriptor: shared.descriptors.take_now(1)?,
                _socket: listen::tcp(address, owner)?,
            }),
            // A bound UDP socket would swallow what is to be refused.
            Protocol::Udp | Protocol::Sctp => drop(listen::udp(address, owner)?),
        }
        Ok(())
    }

    /// Gives up reservations of other addresses than `desired`.
    pub fn keep_reserved(&mut self, desired: &BTreeSet<SocketAddr>) {
        self.reserved
            .retain(|reserved| desired.contains(&reserved.address));
    }

    /// Stops listening on `address`; connections that came in by it live on.
    /// Answers what is alive as long as one of them is.
    pub fn close(&mut self, address: SocketAddr) -> Option<InUse> {
        let at = self.ends.iter().position(|end| end.address == address)?;
        Some(self.ends.swap_remove(at).in_use.clone())
    }

    /// The address that clients call to reach `bound`: the cluster IP for a
    /// redirected portal, whose own sockets are bound to the wildcard.
    fn called(&self, bound: SocketAddr) -> std::net::IpAddr {
        match self.frontends.iter().find_map(|f| f.address) {
            Some(address) if bound.ip().is_unspecified() => address,
            _ => bound.ip(),
        }
    }
}

/// `count` sockets, or none.
fn each<T>(count: usize, bind: impl Fn() -> io::Result<T>) -> io::Result<Vec<T>> {
    (0..count).map(|_| bind()).collect()
}

/// Whether `routing` is what `plan` asks for.
fn is_of(routing: &Routing, plan: &PortalPlan, affinity: Option<&Arc<Affinity>>) -> bool {
    let inside = match (&routing.inside, &plan.inside) {
        (Some(inside), Some(targets)) => inside.is_of(plan.scheduler, targets),
        (None, None) => true,
        _ => false,
    };
    let affine = match (&routing.affinity, affinity) {
        (Some(held), Some(wanted)) => Arc::ptr_eq(held, wanted),
        (None, None) => true,
        _ => false,
    };
    inside
        && affine
        && routing.allowed == plan.allowed
        && routing.proxy_protocol == plan.proxy_protocol
        && routing.retry == plan.retry
        && routing.backends.is_of(plan.scheduler, &plan.targets)
}

/// The routing that `plan` asks for; what `before` knows of endpoints is kept.
fn routing(
    plan: &PortalPlan,
    seed: Seed,
    affinity: Option<Arc<Affinity>>,
    before: Option<&Routing>,
) -> Routing {
    let known = || before.into_iter().flat_map(Routing::servers);
    let previous = before.map(|b| &b.backends);
    let scheduler = (plan.scheduler, seed);
    let backends = Backends::new(scheduler, &plan.targets, previous, known());
    let inside = plan.inside.as_ref().map(|targets| {
        let previous = before.and_then(|b| b.inside.as_ref());
        // One endpoint has one state, whichever way a caller took to it.
        let known = known().chain(backends.servers());
        Backends::new(scheduler, targets, previous, known)
    });
    Routing {
        backends,
        inside,
        affinity,
        allowed: plan.allowed.clone(),
        proxy_protocol: plan.proxy_protocol,
        retry: plan.retry,
    }
}
