//! The command line: kube-proxy's flags with kube-proxy's names and meanings,
//! our own beside them, and the subcommands.

use std::{net::SocketAddr, ops::RangeInclusive, path::PathBuf, time::Duration};

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use ipnet::IpNet;

use crate::{
    config::{duration, port_range},
    modes::{ModeName, userspace::capture::Requested},
    sched::{SchedulerName, SchedulerNameError},
};

const ABOUT: &str = "\
Tripod carries the traffic of Kubernetes Services on this node: a drop-in
replacement for kube-proxy that works on any kernel.";

const EXAMPLES: &str = "\
Examples:
  Serve the Services and EndpointSlices in a folder, no cluster needed:
      tripod --proxy-mode=userspace --manifests /etc/tripod/manifests
  Remove everything that Tripod ever installed on this node:
      tripod cleanup";

/// The whole command line.
#[derive(Debug, Parser)]
#[command(name = "tripod", version, about = ABOUT, after_help = EXAMPLES, max_term_width = 100)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Cli {
    /// What to do; without one, Tripod serves.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// How to serve.
    #[command(flatten)]
    pub serve: Serve,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Remove every rule, chain and route that Tripod ever installed here, and exit
    Cleanup,
}

/// Flags of the serving program.
#[derive(Clone, Debug, Args)]
pub struct Serve {
    /// Folder of manifests (*.yaml, *.yml, *.json) to serve Services,
    /// EndpointSlices and Nodes from; changes are followed
    #[arg(long, value_name = "DIR", help_heading = "Objects")]
    pub manifests: Option<PathBuf>,

    /// Name of this node, if it is not the machine's host name
    #[arg(
        long,
        value_name = "NAME",
        default_value = "",
        hide_default_value = true,
        help_heading = "Objects"
    )]
    pub hostname_override: String,

    /// How traffic is carried; a mode that this build or this kernel cannot
    /// run falls back to the next: ipvs, iptables, userspace
    #[arg(
        long,
        value_name = "MODE",
        default_value = "ipvs",
        help_heading = "Proxying"
    )]
    pub proxy_mode: ProxyMode,

    /// Scheduler of Services that name none: rr, random, wrr, lc, wlc, sed,
    /// nq, sh, dh or mh; also used in userspace mode
    #[arg(long, value_name = "NAME", default_value = "rr", value_parser = parse_scheduler, help_heading = "Proxying")]
    pub ipvs_scheduler: Scheduler,

    /// CIDRs of node addresses that serve node ports; all, if none is given
    #[arg(
        long,
        value_name = "CIDRS",
        value_delimiter = ',',
        help_heading = "Proxying"
    )]
    pub nodeport_addresses: Vec<IpNet>,

    /// How userspace mode gets the packets of service addresses: nat rules
    /// that redirect them (redirect), local routes without any netfilter
    /// (local), or what this kernel can (auto)
    #[arg(
        long,
        value_name = "HOW",
        default_value = "auto",
        help_heading = "Userspace mode"
    )]
    pub userspace_capture: CaptureBy,

    /// Local ports for redirect capture, like 20000-21999; if not given, the
    /// kernel picks free ones
    #[arg(long, value_name = "FIRST-LAST", default_value = "", hide_default_value = true, value_parser = parse_port_range, help_heading = "Userspace mode")]
    pub proxy_port_range: PortRange,

    /// How long a UDP client that is silent keeps its backend
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_positive, help_heading = "Userspace mode")]
    pub udp_timeout: Duration,

    /// Threads of the data path; 0: one a core, at most 8
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        help_heading = "Userspace mode"
    )]
    pub userspace_workers: usize,

    /// Where /healthz is served; empty: nowhere
    #[arg(long, value_name = "IP:PORT", default_value = "0.0.0.0:10256", value_parser = parse_bind, help_heading = "Observing")]
    pub healthz_bind_address: Bind,

    /// Where /metrics is served; empty: nowhere
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:10249", value_parser = parse_bind, help_heading = "Observing")]
    pub metrics_bind_address: Bind,

    /// How much is logged: 0 what an operator must know, 2 each sync too, 4
    /// each attempt to reach an endpoint that failed too
    #[arg(
        short,
        long = "v",
        value_name = "LEVEL",
        default_value_t = 0,
        help_heading = "Observing"
    )]
    pub verbosity: u8,

    /// Remove what Tripod installed, like the subcommand, and exit
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false, action = ArgAction::Set, value_name = "BOOL", hide_default_value = true, hide_possible_values = true)]
    pub cleanup: bool,
}

/// Values of `--proxy-mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProxyMode {
    /// Virtual servers in the kernel's IPVS.
    Ipvs,
    /// The KUBE-SVC chains.
    Iptables,
    /// Connections accepted and spliced by Tripod itself.
    Userspace,
}

/// Values of `--userspace-capture`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CaptureBy {
    /// What this kernel can.
    Auto,
    /// nat rules.
    Redirect,
    /// Local routes.
    Local,
}

impl From<CaptureBy> for Requested {
    fn from(by: CaptureBy) -> Self {
        match by {
            CaptureBy::Auto => Requested::Auto,
            CaptureBy::Redirect => Requested::Redirect,
            CaptureBy::Local => Requested::Local,
        }
    }
}

impl From<ProxyMode> for ModeName {
    fn from(mode: ProxyMode) -> Self {
        match mode {
            ProxyMode::Ipvs => ModeName::Ipvs,
            ProxyMode::Iptables => ModeName::Iptables,
            ProxyMode::Userspace => ModeName::Userspace,
        }
    }
}

/// `--ipvs-scheduler`, with what to say about it in the log.
#[derive(Clone, Debug)]
pub struct Scheduler {
    /// The one to use.
    pub name: SchedulerName,
    /// Why it is not the one that was asked for.
    pub warning: Option<String>,
}

/// `--proxy-port-range`; `None`: any port.
#[derive(Clone, Debug)]
pub struct PortRange(pub Option<RangeInclusive<u16>>);

/// An address to serve on, or none.
#[derive(Clone, Copy, Debug)]
pub struct Bind(pub Option<SocketAddr>);

fn parse_scheduler(text: &str) -> Result<Scheduler, SchedulerNameError> {
    match text.parse() {
        Ok(name) => Ok(Scheduler {
            name,
            warning: None,
        }),
        // Valid for kube-proxy, so it must not keep a node from starting.
        Err(why @ SchedulerNameError::KernelOnly { .. }) => Ok(Scheduler {
            name: SchedulerName::Rr,
            warning: Some(format!("--ipvs-scheduler: {why}; using rr")),
        }),
        Err(why) => Err(why),
    }
}

fn parse_port_range(text: &str) -> Result<PortRange, String> {
    port_range::parse(text).map(PortRange)
}

fn parse_positive(text: &str) -> Result<Duration, String> {
    match duration::parse(text)? {
        Duration::ZERO => Err("it must be greater than 0".to_owned()),
        positive => Ok(positive),
    }
}

fn parse_bind(text: &str) -> Result<Bind, String> {
    if text.is_empty() {
        return Ok(Bind(None));
    }
    text.parse()
        .map(|address| Bind(Some(address)))
        .map_err(|_| "it must be an IP address and a port, like 127.0.0.1:10249".to_owned())
}

/// Reads the command line of this process. `--help`, `--version` and errors
/// are printed, and end it: with status 0, 0 and 2.
pub fn parse() -> Cli {
    Cli::parse_from(std::env::args_os().map(|argument| match argument.to_str() {
        Some(text) => normalized(text).into(),
        None => argument,
    }))
}

/// kube-proxy takes flag names with underscores for those with dashes
/// (`WordSepNormalizeFunc` of k8s.io/component-base).
fn normalized(argument: &str) -> String {
    let (name, value) = match argument.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (argument, None),
    };
    if !name.starts_with("--") || !name.contains('_') {
        return argument.to_owned();
    }
    let name = name.replace('_', "-");
    match value {
        Some(value) => format!("{name}={value}"),
        None => name,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn flags_are_read_as_kube_proxy_reads_them() {
        let read = |arguments: &[&str]| {
            let all = std::iter::once("tripod").chain(arguments.iter().copied());
            Cli::try_parse_from(all.map(normalized)).map(|cli| cli.serve)
        };
        assert!(!read(&[]).unwrap().cleanup);
        assert!(read(&["--cleanup"]).unwrap().cleanup);
        assert!(!read(&["--cleanup=false"]).unwrap().cleanup);
        assert_eq!(read(&["--v", "4"]).unwrap().verbosity, 4);
        assert_eq!(read(&["-v=4"]).unwrap().verbosity, 4);
        let mode = read(&["--proxy_mode=userspace"]).unwrap().proxy_mode;
        assert_eq!(mode, ProxyMode::Userspace);
        let serve = read(&["--udp-timeout=250ms", "--proxy-port-range=1-2"]).unwrap();
        assert_eq!(serve.udp_timeout, Duration::from_millis(250));
        assert_eq!(serve.proxy_port_range.0, Some(1..=2));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (arguments, words) in [
            (&["--no-such-flag"][..], &["--no-such-flag"][..]),
            (&["--udp-timeout=5"], &["--udp-timeout", "unit is missing"]),
            (&["--udp-timeout=0s"], &["--udp-timeout", "greater than 0"]),
            (
                &["--proxy-mode=magic"],
                &["--proxy-mode", "magic", "userspace"],
            ),
            (
                &["--ipvs-scheduler=magic"],
                &["--ipvs-scheduler", "magic", "wrr"],
            ),
            (&["--proxy-port-range=9-8"], &["--proxy-port-range", "9-8"]),
            (
                &["--nodeport-addresses=nowhere"],
                &["--nodeport-addresses", "nowhere"],
            ),
            (
                &["--metrics-bind-address=here"],
                &["--metrics-bind-address", "127.0.0.1:10249"],
            ),
            (
                &["--userspace-capture=net"],
                &["--userspace-capture", "redirect"],
            ),
        ] {
            let all = std::iter::once(&"tripod").chain(arguments);
            let error = Cli::try_parse_from(all).expect_err("is wrong");
            assert_eq!(error.exit_code(), 2);
            let text = error.to_string();
            for word in words {
                assert!(text.contains(word), "{text}");
            }
        }
    }
}
