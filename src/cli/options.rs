//! The values of the flags, before a configuration file is read.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use super::Job;
use crate::{
    config::KubeProxyConfiguration,
    confine::Confinement,
    hold,
    kernel::probe::LeaveOut,
    modes::{
        iptables::plan::DispatchChoice,
        userspace::{ConnectionLimits, Io, capture::Requested},
    },
    services::Namespaces,
    status_api::SOCKET,
};

/// The values of the flags. `Default` is a command line without flags.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Flags that a configuration file can express.
    pub configuration: KubeProxyConfiguration,
    /// Sync periods, which depend on the mode, which another flag may name later.
    pub periods: Periods,
    /// Value of `--hostname-override`.
    pub hostname_override: Option<String>,
    /// Value of `--healthz-port`, which kube-proxy deprecates.
    pub healthz_port: Option<u16>,
    /// Value of `--metrics-port`, which kube-proxy deprecates.
    pub metrics_port: Option<u16>,
    /// Value of `--master`.
    pub master: String,
    /// Value of `--config`.
    pub config: String,
    /// Value of `--write-config-to`.
    pub write_config_to: String,
    /// Value of `--cleanup`.
    pub cleanup: bool,
    /// Value of `--init-only`.
    pub init_only: bool,
    /// Value of `--version`.
    pub version: Version,
    /// Value of `--machine-id-file`, which nothing reads.
    pub machine_id_file: String,
    /// Value of `--boot-id-file`, which nothing reads.
    pub boot_id_file: String,
    /// Flags that only Tripod has.
    pub own: Own,
}

/// Flags that only Tripod has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Own {
    /// Folder of manifests whose objects are served; `None`: those of the API server.
    pub manifests: Option<PathBuf>,
    /// Whether weights of Nodes are used with an API server, which means following all Nodes.
    pub node_weights: bool,
    /// How packets find their Service in iptables mode.
    pub iptables_dispatch: DispatchChoice,
    /// How long connections in ipvs mode continue to an endpoint that left; 0: as long as they
    /// last.
    pub ipvs_drain_timeout: Duration,
    /// How userspace mode gets its packets.
    pub capture: Requested,
    /// How userspace mode receives and sends.
    pub io: Io,
    /// Whether to end rather than run in a worse mode than the requested one.
    pub strict_mode: bool,
    /// Abilities that are not used even though the probe found them.
    pub without: LeaveOut,
    /// How long a silent UDP client keeps its backend in userspace mode.
    pub udp_timeout: Duration,
    /// Number of threads of the userspace data path; 0: one per core, at most 8.
    pub workers: usize,
    /// Whether endpoints of userspace mode see the client's address.
    pub transparent: bool,
    /// How many attempts userspace mode makes to connect one client to an endpoint.
    pub dial_attempts: usize,
    /// Time for all of these attempts together.
    pub dial_timeout: Duration,
    /// How long a peer of userspace mode may leave data unacknowledged; zero: as long as
    /// the kernel allows.
    pub tcp_user_timeout: Duration,
    /// How many connections Services and their clients may have in userspace mode.
    pub limits: ConnectionLimits,
    /// How long connections may keep the process from ending.
    pub drain_timeout: Duration,
    /// The unix socket of the process that keeps sockets while no proxy runs; `None`:
    /// nowhere.
    pub holder_socket: Option<PathBuf>,
    /// The unix socket on which the running proxy is asked; `None`: nowhere.
    pub status_socket: Option<PathBuf>,
    /// Namespaces whose endpoints have metrics of their own; `*`: all.
    pub service_metrics: Vec<String>,
    /// Where metrics and the API are served over TLS to clients that the API server
    /// authorizes; `None`: nowhere.
    pub metrics_secure: Option<SocketAddr>,
    /// The certificate of that address, in PEM; `None`: a self-signed one.
    pub tls_cert_file: Option<PathBuf>,
    /// The key of the certificate, in PEM; if `None`, the process makes a certificate itself.
    pub tls_private_key_file: Option<PathBuf>,
    /// Value of `--proxy-port-range`.
    pub proxy_port_range: Option<String>,
    /// How far the process confines itself.
    pub confinement: Confinement,
}

impl Own {
    /// Returns the namespaces whose endpoints have metrics of their own.
    pub fn counted(&self) -> Namespaces {
        Namespaces::new(self.service_metrics.iter().cloned())
    }
}

impl Default for Own {
    fn default() -> Self {
        Own {
            manifests: None,
            node_weights: false,
            iptables_dispatch: DispatchChoice::Auto,
            ipvs_drain_timeout: Duration::ZERO,
            capture: Requested::Auto,
            io: Io::Auto,
            strict_mode: false,
            without: LeaveOut::default(),
            udp_timeout: Duration::from_secs(30),
            workers: 0,
            transparent: false,
            dial_attempts: 8,
            dial_timeout: Duration::from_secs(5),
            tcp_user_timeout: Duration::from_secs(120),
            limits: ConnectionLimits::default(),
            drain_timeout: Duration::from_secs(20),
            holder_socket: Some(hold::SOCKET.into()),
            status_socket: Some(SOCKET.into()),
            service_metrics: Vec::new(),
            metrics_secure: None,
            tls_cert_file: None,
            tls_private_key_file: None,
            proxy_port_range: None,
            confinement: Confinement::default(),
        }
    }
}

/// Sync periods, for each mode that has flags for them.
#[derive(Clone, Debug, Default)]
pub struct Periods {
    /// Value of `--iptables-sync-period`.
    pub iptables: Option<Duration>,
    /// Value of `--iptables-min-sync-period`.
    pub iptables_min: Option<Duration>,
    /// Value of `--ipvs-sync-period`.
    pub ipvs: Option<Duration>,
    /// Value of `--ipvs-min-sync-period`.
    pub ipvs_min: Option<Duration>,
}

/// Values of `--version`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Version {
    /// Do not print it.
    #[default]
    No,
    /// Print the line.
    Line,
    /// Print everything about the version.
    Raw,
    /// Report a version that is not Tripod's, which has no effect.
    Reported,
}

/// A parsed command line.
#[derive(Clone, Debug)]
pub(super) struct CommandLine {
    pub(super) options: Options,
    /// The flags that were given, each with the value that counts.
    pub(super) given: Vec<(&'static str, String)>,
    /// The job of the subcommand, if one was given.
    pub(super) job: Option<Job>,
}

impl CommandLine {
    pub(super) fn has(&self, flag: &str) -> bool {
        self.given.iter().any(|(name, _)| *name == flag)
    }
}
