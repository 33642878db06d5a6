//! Builds the mode that the settings request.

use std::{error::Error, net::IpAddr, sync::Arc};

use net::Family;
use prometheus::Registry;

use super::{
    chosen::{Chosen, Parts},
    mode::{AnyMode, ServingMode},
    programs::Programs,
    takeover::TakeOver,
    traffic,
};
use crate::{
    cli::Settings,
    config::ModeName,
    kernel::probe::{Ability, Kernel},
    modes::{
        UnwrittenCounter,
        cleanup::Running,
        handover::Handover,
        iptables::{self, Iptables},
        ipvs::{self, Ipvs},
        nftables::{self, Nftables, refused_on_loopback},
        userspace::{
            self, Capture, Counters, NodePortRelay, RelayMetrics, Rings, Role, Userspace, capture,
        },
    },
    node::{self, NodePorts},
    runner::metrics::Metrics,
    sched::SchedulerName,
    serve::TrafficSource,
};

/// The settings and the parts of this node from which modes are built.
pub(super) struct NodeContext<'a> {
    pub(super) settings: &'a Settings,
    pub(super) kernel: &'a Kernel,
    pub(super) node_ports: &'a Arc<NodePorts>,
    pub(super) registry: &'a Registry,
    pub(super) metrics: &'a Metrics,
    pub(super) rings: Rings,
    pub(super) handover: Handover,
}

impl NodeContext<'_> {
    /// Builds the mode of that name, without changing anything on the node.
    ///
    /// # Errors
    /// When it turns out that the mode cannot run here.
    pub(super) fn mode(&self, name: ModeName) -> Result<AnyMode, Box<dyn Error>> {
        let metrics = |counters: &[UnwrittenCounter]| self.metrics.of_mode(self.registry, counters);
        Ok(match name {
            ModeName::Ipvs => {
                let Settings {
                    configuration,
                    effective,
                    ..
                } = self.settings;
                let limit = self.settings.own.ipvs_drain_timeout;
                let options = ipvs::Options {
                    drain_timeout: Some(limit).filter(|limit| !limit.is_zero()),
                    ..ipvs::Options::new(configuration, effective)
                };
                let node_ports = Arc::clone(self.node_ports);
                let mode = Ipvs::new(options, self.kernel, node_ports, metrics(&ipvs::UNWRITTEN)?)?;
                AnyMode::Ipvs(Box::new(mode))
            }
            ModeName::Nftables => {
                let setup = nftables::Setup {
                    configuration: self.settings.configuration.clone(),
                    configured: self.settings.effective.clone(),
                    node_ports: Arc::clone(self.node_ports),
                    counted: self.settings.own.counted(),
                    metrics: metrics(&nftables::UNWRITTEN)?,
                };
                refused_on_loopback::register(self.registry, &setup.configured.node_ports)?;
                AnyMode::Nftables(Box::new(Nftables::new(setup, self.kernel)?))
            }
            ModeName::Iptables => {
                let setup = iptables::Setup {
                    configuration: self.settings.configuration.clone(),
                    configured: self.settings.effective.clone(),
                    node_ports: Arc::clone(self.node_ports),
                    dispatch: self.settings.own.iptables_dispatch,
                    undivided: iptables::plan::UNDIVIDED,
                    metrics: metrics(&iptables::UNWRITTEN)?,
                };
                AnyMode::Iptables(Box::new(Iptables::new(setup, self.kernel, self.registry)?))
            }
            ModeName::Userspace => AnyMode::Userspace(Box::new(self.userspace()?)),
        })
    }

    fn userspace(&self) -> Result<Userspace, Box<dyn Error>> {
        let settings = self.settings;
        let choice = capture::choose(settings.own.capture, self.kernel)?;
        for reason in &choice.reasons {
            tracing::info!("{reason}");
        }
        let capture = Capture::new(choice, self.kernel)?;
        let options = userspace::Options {
            rings: self.rings.clone(),
            ..self.data_path()?
        };
        Ok(Userspace::new(
            options,
            self.kernel,
            capture,
            Counters::register(self.registry)?,
        )?)
    }

    /// The relay for node ports on loopback addresses in the mode of that name; `None` if the
    /// configuration names no loopback address, or if the mode itself serves them.
    ///
    /// # Errors
    /// When its threads cannot be started.
    fn relay(&self, name: ModeName) -> Result<Option<(NodePortRelay, Counters)>, Box<dyn Error>> {
        // The other modes serve them themselves.
        if !matches!(name, ModeName::Ipvs | ModeName::Nftables) {
            return Ok(None);
        }
        let addresses = self.node_ports.loopback().iter().copied();
        let able = |ip: &IpAddr| self.kernel.can(&Ability::Sockets(Family::of(ip)));
        let addresses: Vec<IpAddr> = addresses.filter(able).collect();
        if addresses.is_empty() {
            return Ok(None);
        }
        let options = userspace::Options {
            scheduler: self.scheduler(name),
            ..self.data_path()?
        };
        let counters = Counters::register(self.registry)?;
        let metrics = RelayMetrics::register(self.registry)?;
        let relay = NodePortRelay::new(options, addresses, counters.clone(), metrics)?;
        Ok(Some((relay, counters)))
    }

    /// Builds all that serves in the mode of that name, and the source of its traffic counts.
    ///
    /// # Errors
    /// When it turns out that the mode cannot run here.
    pub(super) fn serving(
        &self,
        name: ModeName,
        programs: &Programs,
    ) -> Result<(ServingMode, Arc<dyn TrafficSource>), Box<dyn Error>> {
        let settings = self.settings;
        let mode = self.mode(name)?;
        let (relay, counters) = self.relay(name)?.unzip();
        let running = Running {
            mode: Some(name),
            engines: mode.engines(),
            captures: Arc::default(),
            exclude: settings.effective.ipvs_exclude.clone().into(),
        };
        let loads = Arc::default();
        let traffic = traffic::source(&mode, self.node_ports, &settings.own.counted(), &loads);
        let parts = Parts {
            options: userspace::Options {
                role: Role::Chosen {
                    // The other modes relay them without capture.
                    loopback: name == ModeName::Iptables,
                },
                scheduler: self.scheduler(name),
                transparent: false,
                ..self.data_path()?
            },
            kernel: self.kernel.clone(),
            capture: capture::next_to(name),
            stays: name == ModeName::Ipvs,
            counters,
            registry: self.registry.clone(),
            captures: Arc::clone(&running.captures),
            loads,
        };
        let chosen = (name != ModeName::Userspace).then(|| Chosen::new(parts));
        let handover = self.handover.clone();
        let takeover = TakeOver::new(running, handover.clone(), programs.clone());
        let serving = ServingMode::new(mode, relay, chosen, handover, takeover);
        Ok((serving, traffic))
    }

    /// The scheduler of Services that name none, in the mode of that name.
    fn scheduler(&self, name: ModeName) -> SchedulerName {
        match name {
            ModeName::Ipvs | ModeName::Userspace => self.settings.effective.scheduler,
            ModeName::Nftables | ModeName::Iptables => SchedulerName::Random,
        }
    }

    fn data_path(&self) -> Result<userspace::Options, Box<dyn Error>> {
        let settings = self.settings;
        let effective = &settings.effective;
        Ok(userspace::Options {
            node: node::name(&settings.configuration.hostname_override)?.into(),
            port_range: effective.proxy_ports.clone(),
            udp_timeout: settings.own.udp_timeout,
            scheduler: effective.scheduler,
            node_ports: Arc::clone(self.node_ports),
            detect_local: effective.detect_local.clone(),
            workers: userspace::workers(settings.own.workers),
            role: Role::Mode,
            handover: self.handover.clone(),
            transparent: settings.own.transparent,
            dial: userspace::DialLimits {
                attempts: settings.own.dial_attempts,
                time: settings.own.dial_timeout,
            },
            tcp_user_timeout: settings.own.tcp_user_timeout,
            rings: Rings::default(),
            limits: settings.own.limits,
        })
    }
}
