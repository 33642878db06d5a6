//! Builds the mode that the settings request.

use std::{error::Error, net::IpAddr, sync::Arc};

use net::{Family, PerFamily};
use prometheus::Registry;

use super::{chosen::Parts, mode::AnyMode};
use crate::{
    cli::Settings,
    config::ModeName,
    kernel::probe::{Ability, Kernel},
    modes::{
        UnwrittenCounter,
        handover::Handover,
        iptables::{self, Iptables},
        ipvs::{self, Ipvs},
        nftables::{self, Nftables, refused_on_loopback},
        userspace::{
            self, Capture, Counters, NodePortRelay, RelayMetrics, Rings, Role, Userspace,
            capture::{self, Method, Requested},
        },
    },
    node::{self, NodePorts},
    runner::metrics::Metrics,
    sched::SchedulerName,
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
    /// How Services that choose userspace mode are captured in modes of the kernel.
    pub(super) capture: Requested,
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
                    delivers: self.delivers(),
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
    pub(super) fn relay(
        &self,
        name: ModeName,
    ) -> Result<Option<(NodePortRelay, Counters)>, Box<dyn Error>> {
        // For Services that name none.
        let scheduler = match name {
            ModeName::Ipvs => self.settings.effective.scheduler,
            ModeName::Nftables => SchedulerName::Random,
            ModeName::Iptables | ModeName::Userspace => return Ok(None),
        };
        let addresses = self.node_ports.loopback().iter().copied();
        let able = |ip: &IpAddr| self.kernel.can(&Ability::Sockets(Family::of(ip)));
        let addresses: Vec<IpAddr> = addresses.filter(able).collect();
        if addresses.is_empty() {
            return Ok(None);
        }
        let options = userspace::Options {
            scheduler,
            ..self.data_path()?
        };
        let counters = Counters::register(self.registry)?;
        let metrics = RelayMetrics::register(self.registry)?;
        let relay = NodePortRelay::new(options, addresses, counters.clone(), metrics)?;
        Ok(Some((relay, counters)))
    }

    /// The parts of the mode that relays Services in the mode of that name, if they choose it.
    /// `counters` are those that are registered already.
    ///
    /// # Errors
    /// When the node has no name.
    pub(super) fn chosen(
        &self,
        name: ModeName,
        counters: Option<Counters>,
    ) -> Result<Option<Parts>, Box<dyn Error>> {
        if name == ModeName::Userspace {
            return Ok(None);
        }
        Ok(Some(Parts {
            options: userspace::Options {
                role: Role::Chosen,
                transparent: false,
                ..self.data_path()?
            },
            kernel: self.kernel.clone(),
            capture: self.capture,
            counters,
            registry: self.registry.clone(),
        }))
    }

    /// The families in which Services that choose userspace mode are captured by routes.
    fn delivers(&self) -> PerFamily<bool> {
        let choice = capture::choose(self.capture, self.kernel);
        choice.map_or_else(
            |_| PerFamily::default(),
            |choice| choice.methods.map(|_, method| method == Method::Local),
        )
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
