//! The listening sockets of one service group: opened on every worker, closed
//! without losing a connection that the kernel has already completed.

mod admission;
mod ended;
pub mod inherited;
mod on_worker;
pub mod redirect_ports;

use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, Weak, atomic::Ordering::Relaxed},
};

use net::{Family, Frontend, Protocol};
use socket2::Socket;

use self::{inherited::adopt, on_worker::go_on, redirect_ports::RedirectPort};
use super::{
    plan::{GroupName, GroupPlan},
    proxy::{
        Shared,
        affinity::Affinity,
        cluster_local::ClusterLocal,
        descriptors::Permits,
        group::{Routing, ServiceGroup},
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
        records, reuseport,
    },
    sched::Seed,
};

/// Alive as long as a connection that came in at an address is open.
pub type InUse = Weak<tcp::ListenerAddress>;

/// The listeners of one address. Dropping them closes them.
#[derive(Debug)]
struct Listeners {
    bind: Bind,
    protocol: Protocol,
    on: Vec<WorkerListener>,
    in_use: InUse,
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
    /// Connections that the kernel has already completed are still served, unless the
    /// holder keeps them for the next process.
    fn drop(&mut self) {
        let left = self.shared.holding.is_left();
        let descriptors = self.descriptors.take().map(Arc::new);
        for WorkerListener {
            worker,
            token,
            held,
        } in self.on.drain(..)
        {
            if self.protocol == Protocol::Udp {
                if let Some(listener) = worker.udp.remove(token) {
                    listener.close();
                }
                continue;
            }
            let listener = worker.tcp.remove(token).filter(|_| !left);
            let Some(listener) = listener else {
                continue;
            };
            let (shared, descriptors) = (Arc::clone(&self.shared), descriptors.clone());
            let placement = worker.placement.clone();
            worker.spawn(|| async move {
                tcp::serve_rest(&shared, &placement, &listener);
                if held.is_some() {
                    // The holder has another descriptor.
                    records::stop_listening(&listener);
                }
                drop((listener, descriptors, held));
            });
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
        for listener in self.on.iter().filter_map(|l| l.worker.tcp.get(l.token)) {
            listener.address.filtered.store(true, Relaxed);
            outcome = outcome.and(filter.attach(&listener.socket));
        }
        outcome
    }

    /// Makes new connections go to the `theirs` sockets of another process, which has
    /// opened them later; `None`: to any.
    fn hand_over(&self, theirs: Option<u32>) -> io::Result<()> {
        // One socket stands for all that share the address.
        let Some(WorkerListener { worker, token, .. }) = self.on.first() else {
            return Ok(());
        };
        let ours = u32::try_from(self.on.len()).unwrap_or(u32::MAX);
        let set = |socket: BorrowedFd<'_>| match theirs {
            Some(theirs) => reuseport::hand_over(&socket, ours, theirs),
            None => reuseport::reset(&socket),
        };
        match self.protocol {
            Protocol::Tcp => worker.tcp.get(*token).map_or(Ok(()), |l| set(l.as_fd())),
            Protocol::Udp => worker.udp.get(*token).map_or(Ok(()), |l| set(l.as_fd())),
            Protocol::Sctp => Ok(()),
        }
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
        let seed = Seed::of(&shared.node, &label);
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
        let port = self.local_port.as_ref()?;
        Some(BoundAddress {
            protocol: self.name.port.protocol,
            address: port.address,
        })
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

    /// Makes new traffic go only to the sockets of the process that took over, as its
    /// own are about to close. What arrives at its TCP listeners all the same is
    /// dropped: a client that gets no answer tries again a second later.
    pub fn fall_silent(&self) {
        for listeners in &self.open {
            // While ours close, one after the other, the last socket of the group takes
            // the number of each (`__reuseport_detach_sock` in
            // net/core/sock_reuseport.c), and the first one after ours keeps its own,
            // unless the other process has fewer than this one.
            let _ = listeners.hand_over(Some(1));
            // Without it a few may be reset.
            let _ = listeners.filter(&Filter::deny_all());
        }
    }

    /// Returns whether an address has fewer sockets than there are `workers`.
    pub fn is_short(&self, workers: usize) -> bool {
        self.open
            .iter()
            .any(|listeners| listeners.on.len() < workers)
    }

    /// Makes what is new at its addresses go to the `theirs` sockets of another
    /// process, which has opened them later; `None`: to any.
    ///
    /// # Errors
    /// Those of setsockopt(2), the first.
    pub fn hand_over(&self, theirs: Option<u32>) -> io::Result<()> {
        let open = self.open.iter();
        let handed = open.map(|listeners| listeners.hand_over(theirs));
        handed.fold(Ok(()), Result::and)
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
        let fresh = spread.saturating_sub(inherited.len());
        let count = inherited.len() + fresh;
        // The local port's own descriptor counts for one of the listeners.
        let own = usize::from(self.local_port_at(bind.address).is_some());
        let descriptors = shared.descriptors.take_for_service(count - own)?;
        let address = Arc::new(tcp::ListenerAddress {
            group: Arc::clone(&self.group),
            called: self.called(bind.address),
            // Waiting connections may have a filter of the process before.
            filtered: (!self.filter.is_empty() || !inherited.is_empty()).into(),
        });
        // Should anything fail, its drop closes what is open by then.
        let mut listeners = Listeners {
            bind,
            protocol: self.name.port.protocol,
            on: Vec::with_capacity(count),
            in_use: Arc::downgrade(&address),
            shared: Arc::clone(shared),
            descriptors: Some(descriptors),
        };
        let on = workers.some(shared.next_worker(count), count);
        let releases = match (self.name.port.protocol, &self.associations) {
            (Protocol::Tcp, _) => {
                // All are bound before the first one listens, so that an
                // address that is taken leaves nothing behind.
                let bound = several(fresh, || listening::tcp(bind))?;
                let (sockets, releases) = adopt(inherited, bind)?;
                let sockets = sockets.into_iter().chain(bound);
                self.listen(&mut listeners, on, sockets, &address)?;
                releases
            }
            (Protocol::Udp, Some(associations)) => {
                let bound = several(fresh, || listening::udp(bind))?;
                let (sockets, releases) = adopt(inherited, bind)?;
                let sockets = sockets.into_iter().map(std::net::UdpSocket::from);
                for (worker, socket) in on.zip(sockets.chain(bound)) {
                    let listener = self.on_udp(&listeners, worker, socket, associations)?;
                    listeners.on.push(listener);
                }
                go_on(&listeners, associations);
                releases
            }
            (Protocol::Udp | Protocol::Sctp, _) => {
                return Err(io::Error::new(
                    io::ErrorKind::Unsupported,
                    "userspace mode carries TCP and UDP, not SCTP; use iptables or ipvs mode for it",
                ));
            }
        };
        // By now each of them is sent to the holder anew.
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

    /// Accepts connections from the `sockets`, one on each of the workers `on`.
    fn listen<'a>(
        &self,
        listeners: &mut Listeners,
        on: impl Iterator<Item = &'a Arc<Worker>>,
        sockets: impl Iterator<Item = Socket>,
        address: &Arc<tcp::ListenerAddress>,
    ) -> io::Result<()> {
        for (worker, socket) in on.zip(sockets) {
            let listener = self.on_tcp(listeners, worker, socket, address)?;
            listeners.on.push(listener);
        }
        Ok(())
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
        let bound = inherited.description().address;
        let address = tcp::ListenerAddress {
            group: Arc::clone(&self.group),
            called: self.called(bound),
            filtered: true.into(),
        };
        let (socket, release) = inherited.into_parts();
        let Ok(socket) = listening::adopt(socket, Bind::of_node(bound)) else {
            return;
        };
        let listener = Arc::new(tcp::Listener {
            socket: socket.into(),
            address: Arc::new(address),
        });
        let shared = Arc::clone(shared);
        let worker = workers.one(shared.next_worker(1));
        let placement = worker.placement.clone();
        worker.spawn(|| async move {
            tcp::serve_rest(&shared, &placement, &listener);
            records::stop_listening(&listener);
            drop(release);
        });
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
        Some(self.open.swap_remove(at).in_use.clone())
    }

    /// Reserves its local port, if nothing reserves it and nothing listens there.
    pub fn reserve_local_port(&mut self) {
        let open: Vec<_> = self.listens_on().collect();
        if let Some(port) = &mut self.local_port
            && !open.contains(&port.address)
        {
            port.reserve();
        }
    }

    /// Returns its local port if that is at `address`.
    fn local_port_at(&mut self, address: SocketAddr) -> Option<&mut RedirectPort> {
        let port = self.local_port.as_mut();
        port.filter(|port| port.address == address)
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

/// Returns `count` sockets, or none.
fn several<T>(count: usize, bind: impl Fn() -> io::Result<T>) -> io::Result<Vec<T>> {
    (0..count).map(|_| bind()).collect()
}
