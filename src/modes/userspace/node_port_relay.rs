//! The data path of this mode for node ports on addresses that only this node calls, in modes whose
//! kernel part does not translate such packets.
//!
//! Nothing is captured: it listens on the addresses themselves. But the kernel translates packets of
//! this process like any other, so that an endpoint with the external IP of another Service would be
//! one of that Service.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use net::{Family, PerFamily};
use prometheus::{IntCounterVec, IntGaugeVec, Opts, Registry};

use super::{
    capture::{Extent, Method},
    execute::Executor,
    options::{Options, Role},
    plan::{self, listen::NodeContext},
    proxy::counters::Counters,
};
use crate::{
    family_metrics::{FAMILY, counter, registered},
    modes::{Asked, Difference, SyncReport, state::FamilyState},
    node::Served,
    sched::SchedulerName,
    services::{Changes, ServiceMap, ServicePort, ServicePortName},
};

/// Metrics of the relay, under kube-proxy's names (KEP-6032).
#[derive(Clone, Debug)]
pub struct RelayMetrics {
    listeners: IntGaugeVec,
    failures: IntCounterVec,
}

impl RelayMetrics {
    /// Registers the metrics with `registry`, at zero.
    ///
    /// # Errors
    /// When `registry` has metrics of these names already.
    pub fn register(registry: &Registry) -> prometheus::Result<RelayMetrics> {
        let name = |what: &str| format!("kubeproxy_nftables_localhost_nodeport_{what}");
        let listeners = Opts::new(
            name("listeners"),
            "Node ports that are relayed on loopback.",
        );
        let failures = name("listener_creation_failures_total");
        Ok(RelayMetrics {
            listeners: registered(registry, IntGaugeVec::new(listeners, &[FAMILY])?)?,
            failures: counter(
                registry,
                &failures,
                "Times that Tripod could not listen on a node port.",
            )?,
        })
    }
}

/// The node port of `port`, if it is relayed, and the endpoints that its connections may reach.
pub fn relayed(port: &ServicePort) -> Option<(u16, Vec<SocketAddr>)> {
    let plan = plan::node_port(port, SchedulerName::default())?;
    let targets = plan.targets.iter().filter(|target| target.weight > 0);
    Some((
        port.node_port?,
        targets.map(|target| target.address).collect(),
    ))
}

/// Listeners on node ports (TCP only), and the workers that relay their connections.
pub struct NodePortRelay {
    executor: Executor,
    families: PerFamily<FamilyState<()>>,
    node: NodeContext,
    metrics: RelayMetrics,
}

impl NodePortRelay {
    /// A relay for `addresses` of the node that does not listen yet.
    ///
    /// # Errors
    /// When its threads cannot be started.
    pub fn new(
        options: Options,
        addresses: Vec<IpAddr>,
        counters: Counters,
        metrics: RelayMetrics,
    ) -> io::Result<NodePortRelay> {
        let role = Role::LoopbackNodePorts;
        let executor = Executor::start(Options { role, ..options }, counters)?;
        Ok(NodePortRelay {
            executor,
            families: PerFamily::default(),
            node: NodeContext {
                methods: PerFamily::each(|_| Method::Local),
                addresses,
                node_ports: Arc::new(Served::All),
                opens_listeners: true,
            },
            metrics,
        })
    }

    /// Returns whether it serves addresses of `family`.
    pub fn serves(&self, family: Family) -> bool {
        let mut addresses = self.node.addresses.iter();
        addresses.any(|address| Family::of(address) == family)
    }

    /// Makes the listeners match `map` for the families that are `asked` for. Returns the failures
    /// of each family.
    pub fn sync(&mut self, map: &ServiceMap, asked: Asked<'_>) -> PerFamily<Option<SyncReport>> {
        self.executor.begin_sync(&mut self.families);
        self.node.opens_listeners = !self.executor.yields();
        let reports = asked.map(|family, changes| {
            let changes = changes.filter(|_| self.serves(family))?;
            Some(self.sync_family(family, map, changes))
        });
        // Without a listener there is nothing to hand over.
        if self.executor.ports().next().is_some() || self.executor.handover().has_served() {
            self.executor.end_sync(asked);
        }
        reports
    }

    /// The missing listeners of `family`: not opened, or ended by another program.
    pub fn missing_listeners(&self, family: Family) -> Vec<Difference> {
        let failed = self.families.get(family).failed();
        self.executor.missing_listeners(family, failed)
    }

    /// The listeners of `port`, as text.
    pub fn listeners(&self, port: &ServicePortName) -> Vec<String> {
        self.executor.listeners(port)
    }

    fn sync_family(&mut self, family: Family, map: &ServiceMap, changes: &Changes) -> SyncReport {
        let captured = &self.executor.shared().captured;
        captured.translate(family, map, changes);
        let state = self.families.get_mut(family);
        let extent = Extent::of(state, changes);
        self.executor.count_descriptors(extent);
        let has_node_port = |port: &ServicePort| port.node_port.is_some();
        let names = self
            .executor
            .due(family, state, map, changes, has_node_port);
        let label = [family.to_string()];
        let mut report = SyncReport {
            examined: names.len(),
            ..SyncReport::default()
        };
        let scheduler = self.executor.shared().options.scheduler;
        let failures = &self.metrics.failures;
        let plan = |port: &ServicePort| Some(vec![plan::node_port(port, scheduler)?]);
        let done = |name, opened: Result<(), String>| {
            if opened.is_err() {
                failures.with_label_values(&label).inc();
            }
            state.record(name, opened);
        };
        self.executor.update(names, map, &self.node, plan, done);
        let this = PerFamily::each(|one| one == family);
        self.executor.close(this);
        self.executor.end_lingering(this);
        if extent == Extent::Full {
            self.executor.close_inherited(family);
        }
        let listeners = self.executor.listening(family);
        let gauge = self.metrics.listeners.with_label_values(&label);
        gauge.set(i64::try_from(listeners).unwrap_or(i64::MAX));
        let state = self.families.get_mut(family);
        state.applied();
        state.report(&mut report);
        report
    }

    /// Waits until another process starts or stops taking over from this one; then a sync of both
    /// families is due.
    pub async fn other_processes_changed(&mut self) {
        self.executor.others_changed().await;
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::Read,
        net::{TcpListener, TcpStream},
        time::{Duration, Instant},
    };

    use super::*;
    use crate::{
        modes::userspace,
        services::service_ports::{endpoint, endpoints, service_port},
    };

    /// A loopback address that only this process uses, where all ports are free: process ids have
    /// 22 bits (proc(5), `pid_max`).
    fn own_address() -> IpAddr {
        let own = std::process::id() & 0x3f_ffff;
        std::net::Ipv4Addr::from_bits(0x7f80_0000 | own).into()
    }

    fn relay() -> NodePortRelay {
        let options = Options {
            workers: 1,
            ..userspace::tests::options()
        };
        let registry = Registry::new();
        let counters = Counters::register(&registry).unwrap();
        let metrics = RelayMetrics::register(&registry).unwrap();
        NodePortRelay::new(options, vec![own_address()], counters, metrics).unwrap()
    }

    /// A Service whose node port has an endpoint that sends `byte`.
    fn service(name: &str, node_port: u16, byte: u8) -> ServicePort {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let _ = io::Write::write_all(&mut stream, &[byte]);
            }
        });
        ServicePort {
            node_port: Some(node_port),
            endpoints: endpoints([endpoint(address)]),
            ..service_port(name, [10, 96, 0, 1])
        }
    }

    fn call(port: u16) -> io::Result<u8> {
        let mut stream = TcpStream::connect((own_address(), port))?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        let mut byte = [0];
        stream.read_exact(&mut byte).map(|()| byte[0])
    }

    /// Waits until calls fail: a worker first handles earlier messages, then closes the socket.
    fn comes_to_fail(port: u16) {
        let begun = Instant::now();
        while call(port).is_ok() {
            assert!(begun.elapsed() < Duration::from_secs(20), "port {port}");
            std::thread::yield_now();
        }
    }

    /// Syncs IPv4 alone.
    fn sync(relay: &mut NodePortRelay, map: &ServiceMap, changes: &Changes) -> SyncReport {
        let asked = PerFamily {
            v4: Some(changes),
            v6: None,
        };
        relay.sync(map, asked).v4.expect("it serves IPv4")
    }

    fn changed(names: &[&ServicePort]) -> Changes {
        Changes {
            ports: names.iter().map(|port| port.name.clone()).collect(),
            ..Changes::default()
        }
    }

    #[test]
    fn an_endpoint_with_the_external_ip_of_another_service_is_not_called() {
        let web = service("web", 30_011, 7);
        let endpoint = web.endpoints.all[0].address;
        let other = ServicePort {
            external_ips: [endpoint.ip()].into(),
            port: endpoint.port(),
            ..service_port("other", [10, 96, 0, 2])
        };
        let mut relay = relay();
        let map = [web.clone(), other.clone()].into_iter().collect();
        let full = Changes {
            full: true,
            ..Changes::default()
        };
        sync(&mut relay, &map, &full);
        assert!(call(30_011).is_err(), "it would reach the other Service");
        let map = [web].into_iter().collect();
        sync(&mut relay, &map, &changed(&[&other]));
        assert_eq!(call(30_011).unwrap(), 7);
    }

    #[test]
    fn only_what_changed_is_compared_and_what_failed_when_a_retry_is_due() {
        let (one, two) = (service("one", 30_001, 1), service("two", 30_002, 2));
        let taken = TcpListener::bind((own_address(), 30_002)).unwrap();
        let mut relay = relay();
        let mut map: ServiceMap = [one.clone(), two.clone()].into_iter().collect();
        let first = sync(&mut relay, &map, &Changes::default());
        assert_eq!(first.examined, 2, "everything is new");
        let failed: Vec<_> = first.failed.keys().collect();
        assert_eq!(failed, [&two.name]);
        assert_eq!(call(30_001).unwrap(), 1);

        let other = service("one", 30_003, 3);
        map = [other, two.clone()].into_iter().collect();
        let second = sync(&mut relay, &map, &changed(&[&one]));
        assert_eq!((second.examined, second.failed.len()), (1, 1));
        assert_eq!(call(30_003).unwrap(), 3);
        comes_to_fail(30_001);

        drop(taken);
        let idle = sync(&mut relay, &map, &Changes::default());
        assert_eq!((idle.examined, idle.failed.len()), (0, 1), "not its time");
        let retry = Changes {
            retry: true,
            ..Changes::default()
        };
        let mut again = sync(&mut relay, &map, &retry);
        let deadline = Instant::now() + Duration::from_secs(10);
        // A program that another test starts has the port until its exec(2).
        while !again.failed.is_empty() && Instant::now() < deadline {
            again = sync(&mut relay, &map, &retry);
        }
        assert_eq!((again.examined, again.failed.len()), (1, 0));
        assert_eq!(call(30_002).unwrap(), 2);

        map = ServiceMap::default();
        sync(&mut relay, &map, &changed(&[&one, &two]));
        comes_to_fail(30_002);
        comes_to_fail(30_003);
        assert_eq!(relay.executor.ports().count(), 0);
    }
}
