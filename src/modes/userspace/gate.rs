//! The listening sockets of one portal: opened on every worker, closed
//! without losing a connection that the kernel has already completed.

use std::{
    collections::BTreeSet,
    io,
    net::SocketAddr,
    sync::{Arc, Weak},
};

use hashbrown::{HashMap, HashSet};
use tokio::sync::{OwnedSemaphorePermit, watch};

use super::{
    Shared,
    backends::Backends,
    listen::{self, Owner},
    plan::PortalPlan,
    portal::{Portal, Routing},
    ports::Held,
    tcp, udp,
    workers::Workers,
};
use crate::{modes::userspace::affinity::Affinity, services::Protocol};

/// Alive as long as a connection that came in by an address is open.
pub type InUse = Weak<()>;

/// One address that a portal listens on. Dropping it closes it.
#[derive(Debug)]
struct End {
    /// Its drop tells the workers.
    _closing: watch::Sender<bool>,
    in_use: InUse,
}

/// A portal with its sockets.
pub struct Gate {
    /// What it was made for.
    pub plan: PortalPlan,
    /// Its local port, under redirect capture.
    pub held: Option<Held>,
    portal: Arc<Portal>,
    associations: Arc<udp::Associations>,
    ends: HashMap<SocketAddr, End>,
    /// Bound and silent while there is no endpoint: connections are refused,
    /// and nobody else's wildcard listener gets them.
    reserved: HashMap<SocketAddr, socket2::Socket>,
}

impl Gate {
    /// A gate for `plan` that listens nowhere yet.
    pub fn new(shared: &Arc<Shared>, plan: PortalPlan, affinity: Option<Arc<Affinity>>) -> Self {
        let routing = routing(&plan, affinity, None);
        let label = plan.name.port.to_string().into();
        let portal = Arc::new(Portal::new(label, Arc::clone(&shared.insiders), routing));
        Gate {
            associations: udp::Associations::new(Arc::clone(shared), Arc::clone(&portal)),
            plan,
            held: None,
            portal,
            ends: HashMap::new(),
            reserved: HashMap::new(),
        }
    }

    /// Sends new traffic as `plan` says.
    pub fn reroute(&mut self, plan: PortalPlan, affinity: Option<Arc<Affinity>>) {
        let before = self.portal.routing();
        self.portal.reroute(routing(&plan, affinity, Some(&before)));
        self.plan = plan;
    }

    /// The ServicePort, for logs and comments.
    pub fn label(&self) -> &Arc<str> {
        &self.portal.label
    }

    /// The addresses it listens on.
    pub fn listens_on(&self) -> impl Iterator<Item = SocketAddr> {
        self.ends.keys().copied()
    }

    /// Whether it listens on `address`.
    pub fn has(&self, address: SocketAddr) -> bool {
        self.ends.contains_key(&address)
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
        owner: Owner,
    ) -> io::Result<()> {
        let protocol = self.plan.name.port.protocol;
        // One socket a worker, unless listeners would leave too little for
        // connections.
        let spread = match shared.descriptors.free() > shared.descriptors.total() / 2 {
            true => workers.count(),
            false => 1,
        };
        let descriptors = u32::try_from(spread)
            .ok()
            .and_then(|n| shared.descriptors.try_take(n))
            .ok_or_else(|| {
                io::Error::other("no file descriptors are left for it; raise the limit (ulimit -n)")
            })?;
        let descriptors: Arc<OwnedSemaphorePermit> = Arc::new(descriptors);
        let first = shared.next_worker(spread);
        let (closing, closed) = watch::channel(false);
        let hold: tcp::Hold = Arc::new(());
        let in_use = Arc::downgrade(&hold);
        match protocol {
            Protocol::Tcp => {
                // All are bound before the first one listens, so that an
                // address that is taken leaves nothing behind.
                let bound = each(spread, || listen::tcp(address, owner))?;
                for (i, socket) in bound.into_iter().enumerate() {
                    let listener = listen::start(socket)?;
                    let (shared, portal) = (Arc::clone(shared), Arc::clone(&self.portal));
                    let (closed, hold) = (closed.clone(), hold.clone());
                    let descriptors = Arc::clone(&descriptors);
                    let called = self.called(address);
                    workers.spawn(first + i, move || async move {
                        tcp::accept_loop(shared, portal, listener, called, hold, closed).await;
                        drop(descriptors);
                    });
                }
            }
            Protocol::Udp => {
                let bound = each(spread, || listen::udp(address, owner))?;
                for (i, socket) in bound.into_iter().enumerate() {
                    let (closed, descriptors) = (closed.clone(), Arc::clone(&descriptors));
                    let associations = Arc::clone(&self.associations);
                    workers.spawn(first + i, move || async move {
                        udp::receive_loop(associations, socket, closed).await;
                        drop(descriptors);
                    });
                }
            }
            Protocol::Sctp => {
                return Err(io::Error::new(
                    io::ErrorKind::Unsupported,
                    "userspace mode carries TCP and UDP, not SCTP; use iptables or ipvs mode for it",
                ));
            }
        }
        let end = End {
            _closing: closing,
            in_use,
        };
        self.ends.insert(address, end);
        self.reserved.remove(&address);
        Ok(())
    }

    /// Makes sure that connections to `address` are refused by the kernel.
    ///
    /// # Errors
    /// When another program would get them (`AddrInUse`), or the address
    /// cannot be bound.
    pub fn reserve(&mut self, address: SocketAddr, owner: Owner) -> io::Result<()> {
        if self.reserved.contains_key(&address) {
            return Ok(());
        }
        match self.plan.name.port.protocol {
            Protocol::Tcp => {
                self.reserved.insert(address, listen::tcp(address, owner)?);
            }
            // A bound UDP socket would swallow what is to be refused.
            Protocol::Udp | Protocol::Sctp => drop(listen::udp(address, owner)?),
        }
        Ok(())
    }

    /// Gives up reservations of other addresses than `desired`.
    pub fn keep_reserved(&mut self, desired: &BTreeSet<SocketAddr>) {
        self.reserved.retain(|address, _| desired.contains(address));
    }

    /// Stops listening on `address`; connections that came in by it live on.
    /// Answers what is alive as long as one of them is.
    pub fn close(&mut self, address: SocketAddr) -> Option<InUse> {
        self.ends.remove(&address).map(|end| end.in_use)
    }

    /// The address that clients call to reach `bound`: the cluster IP for a
    /// redirected portal, whose own sockets are bound to the wildcard.
    fn called(&self, bound: SocketAddr) -> std::net::IpAddr {
        match self.plan.frontends.iter().find_map(|f| f.address) {
            Some(address) if bound.ip().is_unspecified() => address,
            _ => bound.ip(),
        }
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.portal.routing().retire_except(&HashSet::new());
    }
}

/// `count` sockets, or none.
fn each<T>(count: usize, bind: impl Fn() -> io::Result<T>) -> io::Result<Vec<T>> {
    (0..count).map(|_| bind()).collect()
}

/// The routing that `plan` asks for; what `before` knows of endpoints is kept.
fn routing(
    plan: &PortalPlan,
    affinity: Option<Arc<Affinity>>,
    before: Option<&Routing>,
) -> Routing {
    let known = || before.into_iter().flat_map(Routing::endpoints);
    let previous = before.map(|b| &b.backends);
    let backends = Backends::new(plan.scheduler, &plan.targets, previous, known());
    let inside = plan.inside.as_ref().map(|targets| {
        let previous = before.and_then(|b| b.inside.as_ref());
        // One endpoint has one state, whichever way a caller took to it.
        let known = known().chain(backends.endpoints());
        Backends::new(plan.scheduler, targets, previous, known)
    });
    Routing {
        backends,
        inside,
        affinity,
        allowed: plan.allowed.clone(),
    }
}
