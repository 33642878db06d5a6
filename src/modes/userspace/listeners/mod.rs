//! The listening sockets of one service group: opened on every worker, closed
//! without losing a connection that the kernel has already completed.

mod admission;
mod ended;
pub mod inherited;
mod on_worker;
pub mod redirect_ports;

use std::{
    io, mem,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Weak, atomic::Ordering::Relaxed},
};

use net::{Family, Frontend, Protocol};
use socket2::Socket;

use self::{inherited::adopt, on_worker::serve_rest, redirect_ports::RedirectPort};
use super::{
    plan::{GroupName, GroupPlan},
    proxy::{
        Shared,
        affinity::Affinity,
        cluster_local::ClusterLocal,
        descriptors::Permits,
        group::{ListenerAddress, Routing, ServiceGroup},
        tcp, udp,
        workers::{Worker, Workers},
    },
};
use crate::{
    hold::{Held, InheritedSocket},
    kernel::socket::{
        bound::BoundAddress,
        filter::Filter,
        listening::{self, Bind},
        poller::Token,
    },
    sched::Seed,
};

/// Alive as long as a connection that came in at an address is open.
pub type InUse = Weak<ListenerAddress>;

/// The listeners of one address. Dropping them closes them.
#[derive(Debug)]
struct Listeners {
    bind: Bind,
    protocol: Protocol,
    /// The name of their service group for other processes.
    label: Arc<str>,
    on: Vec<WorkerListener>,
    address: Arc<ListenerAddress>,
    shared: Arc<Shared>,
    descriptors: Option<Permits>,
}

/// A listener on one worker.
#[derive(Debug)]
struct WorkerListener {
    worker: Arc<Worker>,
    /// Which of the worker's sockets it is.
    token: Token,
    /// What makes the holder keep it.
    held: Option<Held>,
}

impl Drop for Listeners {
    /// Connections that the kernel has already completed are still served, unless it is another
    /// process that accepts them.
    fn drop(&mut self) {
        let is_left = self.shared.options.handover.holding().is_left();
        let descriptors = self.descriptors.take().map(Arc::new);
        for WorkerListener {
            worker,
            token,
            held,
        } in self.on.drain(..)
        {
            let listener = worker.remove(self.protocol, token);
            if let Some(listener) = listener.filter(|one| !is_left && !one.is_left()) {
                serve_rest(&worker, &self.shared, listener, (descriptors.clone(), held));
            }
        }
    }
}

impl Listeners {
    /// Puts `filter` on all of its TCP listeners.
    fn filter(&self, filter: &Filter) -> io::Result<()> {
        let mut outcome = Ok(());
        if self.protocol != Protocol::Tcp {
            return outcome;
        }
        self.address.filtered.store(true, Relaxed);
        for listener in self.on.iter().filter_map(|l| l.worker.tcp.get(l.token)) {
            outcome = outcome.and(filter.attach(&listener.socket));
        }
        outcome
    }
}

/// An address that is bound and silent.
struct Reserved {
    address: SocketAddr,
    _socket: Socket,
    _descriptor: Permits,
}

/// A service group with its sockets.
pub struct ListenerSet {
    /// The addresses that clients call.
    pub frontends: Box<[Frontend]>,
    /// Its local port with redirect capture; `None`: it has none.
    pub local_port: Option<RedirectPort>,
    name: GroupName,
    group: Arc<ServiceGroup>,
    /// Where its schedulers begin.
    seed: Seed,
    associations: Option<Arc<udp::Associations>>,
    /// The filter of its TCP listeners: which callers they let in.
    filter: Filter,
    open: Vec<Listeners>,
    /// Bound and silent while there is no endpoint: connections are refused,
    /// and no wildcard listener of another program gets them.
    reserved: Vec<Reserved>,
}

impl ListenerSet {
    /// Returns a set for `plan` that listens nowhere yet.
    pub fn new(shared: &Arc<Shared>, plan: &GroupPlan, affinity: Option<Arc<Affinity>>) -> Self {
        let label: Arc<str> = plan.name.port.to_string().into();
        let seed = Seed::of(&shared.options.node, &label);
        let routing = Routing::new(plan, seed, affinity, None);
        let cluster_local = Arc::clone(&shared.cluster_local);
        let usage = shared.usages.of(&plan.name.port.service);
        let group = Arc::new(ServiceGroup::new(label, cluster_local, usage, routing));
        let associations = (plan.name.port.protocol == Protocol::Udp)
            .then(|| udp::Associations::new(Arc::clone(shared), Arc::clone(&group)));
        ListenerSet {
            frontends: plan.frontends.as_slice().into(),
            local_port: None,
            name: plan.name.clone(),
            group,
            seed,
            associations,
            filter: Filter::default(),
            open: Vec::new(),
            reserved: Vec::new(),
        }
    }

    /// Returns whether clients call it at this port: a rule that redirects there would
    /// have nothing to translate.
    pub fn is_called_at(&self, port: u16) -> bool {
        self.frontends.iter().any(|frontend| frontend.port == port)
    }

    /// Returns its protocol and local address; `None`: it has no local port, as with local capture.
    pub fn bound(&self) -> Option<BoundAddress> {
        self.local_port.as_ref().map(|port| port.bound)
    }

    /// Returns its UDP flows, if it has any.
    pub fn associations(&self) -> Option<&Arc<udp::Associations>> {
        self.associations.as_ref()
    }

    /// Returns its service group.
    pub fn group(&self) -> &Arc<ServiceGroup> {
        &self.group
    }

    /// Sends new traffic as `plan` says. Open TCP connections run on; UDP
    /// associations with endpoints that are no longer there end.
    pub fn reroute(&mut self, plan: &GroupPlan, affinity: Option<Arc<Affinity>>) {
        if *self.frontends != *plan.frontends {
            self.frontends = plan.frontends.as_slice().into();
        }
        let before = self.group.routing();
        if before.is_of(plan, affinity.as_ref()) {
            return;
        }
        let routing = Routing::new(plan, self.seed, affinity, Some(&before));
        self.group.reroute(routing);
        if let Some(associations) = &self.associations {
            associations.end_gone();
        }
    }

    /// Makes its TCP listeners let in the callers that may call now; if the filter does not
    /// fit, they let in everyone. Returns whether the filter fits on all of them; `None`:
    /// it is the same as before.
    pub fn filter(
        &mut self,
        family: Family,
        cluster_local: &ClusterLocal,
    ) -> Option<io::Result<()>> {
        let filter = admission::filter(family, &self.group.routing(), cluster_local);
        if filter == self.filter {
            return None;
        }
        self.filter = filter;
        let open = self.open.iter();
        let filtered = open.map(|listeners| listeners.filter(&self.filter));
        Some(filtered.fold(Ok(()), Result::and))
    }

    /// Returns how many descriptors its listeners, reservations and local port have.
    pub fn descriptors(&self) -> usize {
        let listening: usize = self.open.iter().map(|listeners| listeners.on.len()).sum();
        let own = self.local_port.is_some() && self.open.is_empty();
        listening + self.reserved.len() + usize::from(own)
    }

    /// Returns the addresses it listens on.
    pub fn listens_on(&self) -> impl Iterator<Item = SocketAddr> {
        self.open.iter().map(|listeners| listeners.bind.address)
    }

    /// Returns the addresses that are bound and silent.
    pub fn reserved(&self) -> impl Iterator<Item = SocketAddr> {
        self.reserved.iter().map(|reserved| reserved.address)
    }

    /// Listens on an address, on every worker if descriptors allow, and with all that was
    /// `inherited` there: a socket that is left out would get connections, too.
    ///
    /// # Errors
    /// When the address cannot be bound; `AddrInUse` when another program has bound it. What was
    /// inherited is left then: connections may wait there.
    pub fn open(
        &mut self,
        shared: &Arc<Shared>,
        workers: &Workers,
        bind: Bind,
        inherited: &mut Vec<InheritedSocket>,
    ) -> io::Result<()> {
        let spread = shared.descriptors.sockets_each(workers.count());
        // Nobody accepts at others before it is this process's turn.
        let is_shared = inherited.iter().any(InheritedSocket::is_shared);
        let fresh = if is_shared {
            0
        } else {
            spread.saturating_sub(inherited.len())
        };
        let count = inherited.len() + fresh;
        // The local port's own descriptor counts for one of the listeners.
        let own = usize::from(self.local_port_at(bind.address).is_some());
        let descriptors = shared.descriptors.take_for_service(count - own)?;
        let protocol = self.name.port.protocol;
        // Should anything fail, its drop closes what is open by then.
        let mut listeners = Listeners {
            bind,
            protocol,
            label: self.name.label(),
            on: Vec::with_capacity(count),
            address: Arc::new(ListenerAddress {
                group: Arc::clone(&self.group),
                called: self.called(bind.address),
                // Waiting connections may have a filter of the process before.
                filtered: (!self.filter.is_empty() || !inherited.is_empty()).into(),
            }),
            shared: Arc::clone(shared),
            descriptors: Some(descriptors),
        };
        // All are bound before the first one listens, so that an address that is taken leaves
        // nothing behind.
        let fresh = (0..fresh).map(|_| bound(protocol, bind));
        let fresh = fresh.collect::<io::Result<Vec<_>>>()?;
        let (sockets, releases) = adopt(inherited, bind)?;
        let on = workers.some(shared.next_worker(count), count);
        for (worker, socket) in on.zip(sockets.into_iter().chain(fresh)) {
            let listener = self.on(&listeners, worker, socket, is_shared)?;
            listeners.on.push(listener);
        }
        if let Some(associations) = self.associations.as_ref().filter(|_| !is_shared) {
            listeners.go_on(associations);
        }
        // By now each of them is sent to the holder again.
        drop(releases);
        // Nearly every group listens at one address; a vector that grows makes room for four.
        self.open.reserve_exact(1);
        self.open.push(listeners);
        self.unreserve(bind.address);
        if let Some(port) = self.local_port_at(bind.address) {
            port.is_listened_on();
        }
        Ok(())
    }

    /// Serves a socket of another process, too, next to those that are open at its address.
    ///
    /// # Errors
    /// Those of setsockopt(2) and epoll_ctl(2).
    pub fn join(&mut self, workers: &Workers, inherited: InheritedSocket) -> io::Result<()> {
        let address = inherited.description().bound.address;
        let mut open = mem::take(&mut self.open);
        let there = open.iter_mut().find(|one| one.bind.address == address);
        let joined = there.map_or(Ok(()), |listeners| {
            let (socket, _) = inherited.take();
            let socket = listening::adopt(socket, listeners.bind)?;
            self.add(listeners, workers, socket, true)
        });
        self.open = open;
        joined
    }

    /// Serves a bound `socket`, too, next to those of `listeners`.
    fn add(
        &self,
        listeners: &mut Listeners,
        workers: &Workers,
        socket: Socket,
        is_shared: bool,
    ) -> io::Result<()> {
        let worker = workers.one(listeners.on.len());
        let descriptor = listeners.shared.descriptors.take_for_service(1)?;
        let listener = self.on(listeners, worker, socket, is_shared)?;
        listeners.on.push(listener);
        if let Some(descriptors) = &mut listeners.descriptors {
            descriptors.merge(descriptor);
        }
        Ok(())
    }

    /// Acts on the end of another process's turn at sockets that it shares with this one: what waits
    /// there is accepted, UDP flows that came in there continue, and workers without a socket get
    /// one, as far as descriptors allow.
    pub fn begin_turn(&mut self, shared: &Shared, workers: &Workers) {
        let mut open = mem::take(&mut self.open);
        for listeners in &mut open {
            for WorkerListener { worker, token, .. } in &listeners.on {
                worker.wake(listeners.protocol, *token);
            }
            if let Some(associations) = &self.associations {
                listeners.go_on(associations);
            }
            let wanted = shared.descriptors.sockets_each(workers.count());
            for _ in listeners.on.len()..wanted {
                let socket = bound(listeners.protocol, listeners.bind);
                let added = socket.and_then(|socket| self.add(listeners, workers, socket, false));
                if added.is_err() {
                    // The others serve.
                    break;
                }
            }
        }
        self.open = open;
    }

    /// Serves the connections that wait at a socket of an ended process, and closes it:
    /// its address is not that of this group any more, or this process has sockets of
    /// its own there.
    pub fn serve_rest_of(
        &self,
        shared: &Arc<Shared>,
        workers: &Workers,
        inherited: InheritedSocket,
    ) {
        if self.name.port.protocol != Protocol::Tcp {
            return inherited.close();
        }
        let bound = inherited.description().bound.address;
        let address = ListenerAddress {
            group: Arc::clone(&self.group),
            called: self.called(bound),
            filtered: true.into(),
        };
        let (socket, release) = inherited.take();
        let Ok(socket) = listening::adopt(socket, Bind::of_node(bound)) else {
            return;
        };
        let listener = Arc::new(tcp::Listener::new(socket, Arc::new(address)));
        serve_rest(
            workers.one(shared.next_worker(1)),
            shared,
            listener,
            release,
        );
    }

    /// Makes sure that connections to an address are refused by the kernel.
    ///
    /// # Errors
    /// When another program would get them (`AddrInUse`), or the address
    /// cannot be bound.
    pub fn reserve(&mut self, shared: &Shared, bind: Bind) -> io::Result<()> {
        if self.reserved().any(|address| address == bind.address) {
            return Ok(());
        }
        let descriptor = shared.descriptors.take_for_service(1)?;
        let socket = match self.name.port.protocol {
            Protocol::Tcp => Some(listening::reserve_tcp(bind)?),
            Protocol::Udp | Protocol::Sctp => listening::reserve_udp(bind)?.1,
        };
        self.reserved.extend(socket.map(|socket| Reserved {
            address: bind.address,
            _socket: socket,
            _descriptor: descriptor,
        }));
        Ok(())
    }

    /// Gives up the reservation of `address`.
    pub fn unreserve(&mut self, address: SocketAddr) {
        self.reserved.retain(|reserved| reserved.address != address);
    }

    /// Stops listening on `address`; connections that came in there live on. Returns
    /// what is alive as long as one of them is.
    pub fn close(&mut self, address: SocketAddr) -> Option<InUse> {
        let at = self
            .open
            .iter()
            .position(|listeners| listeners.bind.address == address)?;
        if let Some(port) = self.local_port_at(address) {
            port.reserve();
        }
        Some(Arc::downgrade(&self.open.swap_remove(at).address))
    }

    /// Returns its local port if that is at `address`.
    fn local_port_at(&mut self, address: SocketAddr) -> Option<&mut RedirectPort> {
        let port = self.local_port.as_mut();
        port.filter(|port| port.bound.address == address)
    }

    /// Returns the address that clients call to reach `bound`: the cluster IP for a
    /// redirected group, whose own sockets are bound to the wildcard.
    fn called(&self, bound: SocketAddr) -> IpAddr {
        match self.frontends.iter().find_map(|f| f.address) {
            Some(address) if bound.ip().is_unspecified() => address,
            _ => bound.ip(),
        }
    }
}

/// Opens a bound socket.
fn bound(protocol: Protocol, bind: Bind) -> io::Result<Socket> {
    match protocol {
        Protocol::Tcp => listening::tcp(bind),
        Protocol::Udp => Ok(listening::udp(bind)?.into()),
        Protocol::Sctp => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "userspace mode carries TCP and UDP, not SCTP; the other modes forward it",
        )),
    }
}
