//! Makes [`Effective`] values from a configuration and reports everything that is wrong
//! with it (kube-proxy's rules are in `pkg/proxy/apis/config/validation`).

mod ranges;

use std::{net::SocketAddr, path::PathBuf};

use ipnet::IpNet;
use net::{
    Family,
    address::{parse_cidr, parse_ip},
};

use crate::{
    config::{
        DetectLocal, Effective, FeatureGate, KubeProxyConfiguration, ModeName, NodePortAddresses,
        Problem, bind, port_range, without_effect::without_effect,
    },
    sched::{SchedulerName, SchedulerNameError},
};

/// A configuration without faults.
#[derive(Clone, Debug, PartialEq)]
pub struct Checked {
    /// The complete configuration, including the values that depend on others.
    pub configuration: KubeProxyConfiguration,
    /// The values that follow from it.
    pub effective: Effective,
    /// Lines about fields without effect.
    pub warnings: Vec<String>,
}

/// Checks `configuration`, in which `problems` are known already.
///
/// # Errors
/// Returns all problems at once, those known already first.
pub fn check(
    mut configuration: KubeProxyConfiguration,
    problems: Vec<Problem>,
) -> Result<Checked, Vec<Problem>> {
    let mut check = Check {
        problems,
        warnings: Vec::new(),
        blank_mode: configuration.mode.is_empty(),
    };
    complete(&mut configuration);
    let c = &configuration;
    check.ranges(c);
    let effective = Effective {
        mode: check.mode(c),
        is_mode_named: !check.blank_mode,
        node_ip: check.node_ip(c),
        primary_family: primary_family(c),
        healthz: check.bind(
            "healthzBindAddress",
            "healthz-bind-address",
            &c.healthz_bind_address,
        ),
        metrics: check.bind(
            "metricsBindAddress",
            "metrics-bind-address",
            &c.metrics_bind_address,
        ),
        masquerade_bit: check.masquerade_bit(c),
        scheduler: check.scheduler(c),
        ipvs_exclude: check.ipvs_exclude(c),
        detect_local: check.detect_local(c),
        node_ports: check.node_ports(c),
        proxy_ports: check.proxy_ports(c),
        kubeconfig: Some(&c.client_connection.kubeconfig)
            .filter(|path| !path.is_empty())
            .map(PathBuf::from),
    };
    check.warnings.extend(without_effect(c));
    if check.problems.is_empty() {
        Ok(Checked {
            configuration,
            effective,
            warnings: check.warnings,
        })
    } else {
        Err(check.problems)
    }
}

/// Fills in what kube-proxy fills in last (`platformApplyDefaults` of
/// `cmd/kube-proxy/app/init_linux.go`), with the mode that Tripod prefers.
fn complete(c: &mut KubeProxyConfiguration) {
    if c.mode.is_empty() {
        let best = match c.is_enabled(FeatureGate::Ipvs) {
            true => ModeName::Ipvs,
            false => ModeName::Nftables,
        };
        c.mode = best.to_string();
    }
    if c.mode == "nftables" && c.node_port_addresses.is_empty() {
        c.node_port_addresses.push(PRIMARY.to_owned());
    }
    if c.detect_local_mode.is_empty() {
        c.detect_local_mode = "ClusterCIDR".to_owned();
    }
}

/// Returns the family that this node must have. Where `bindAddress` names no address of the node,
/// kube-proxy takes the family of the first address in the Node object (`detectNodeIPs` of
/// `cmd/kube-proxy/app/server.go`). That is not known yet when the mode is chosen; the first network
/// of the pods has the same family.
fn primary_family(c: &KubeProxyConfiguration) -> Family {
    let bound = parse_ip(&c.bind_address);
    let pods = c.cluster_cidrs().next().and_then(parse_cidr);
    match (bound, pods) {
        (Some(ip), Some(pods)) if ip.is_unspecified() => Family::of(&pods.addr()),
        (bound, _) => bound.map_or(Family::V4, |ip| Family::of(&ip)),
    }
}

const PRIMARY: &str = "primary";
const LOCAL_MODES: &str = "ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix";
const NODE_PORT_ADDRESS: &str =
    "it must be a CIDR, like 192.0.2.0/24 or 2001:db8::/64, or primary, localhost or all";
const CIDR: &str = "it must be a CIDR, like 10.244.0.0/16 or fd00:10:244::/56";

/// Longest name of an interface, in bytes (`IFNAMSIZ` of linux/if.h, less its NUL).
const INTERFACE_NAME: usize = 15;

/// Explains why `name` is neither an interface's name nor the beginning of one.
fn unfit_interface(name: &str) -> Option<String> {
    match name.len() {
        0 => Some("it must not be empty with this detectLocalMode".to_owned()),
        length if length > INTERFACE_NAME => Some(format!(
            "it must have at most {INTERFACE_NAME} bytes, like every interface name"
        )),
        _ => None,
    }
}

struct Check {
    problems: Vec<Problem>,
    warnings: Vec<String>,
    blank_mode: bool,
}

impl Check {
    /// Records a problem, unless one of the same field is known already.
    fn invalid(
        &mut self,
        field: impl Into<String>,
        flag: &'static str,
        value: impl std::fmt::Debug,
        why: impl std::fmt::Display,
    ) {
        let problem = Problem::invalid(field, Some(flag), value, why);
        if !self.problems.iter().any(|p| p.field == problem.field) {
            self.problems.push(problem);
        }
    }

    fn mode(&mut self, c: &KubeProxyConfiguration) -> ModeName {
        match c.mode.as_str() {
            "ipvs" => {
                if !c.is_enabled(FeatureGate::Ipvs) {
                    let why = "the feature gate KubeProxyIPVS is false: name another mode, or \
                               enable the gate";
                    self.invalid("mode", "proxy-mode", &c.mode, why);
                }
                ModeName::Ipvs
            }
            "iptables" => ModeName::Iptables,
            "userspace" => ModeName::Userspace,
            "nftables" => ModeName::Nftables,
            other => {
                let why = match other {
                    "kernelspace" => "that is kube-proxy's mode on Windows; ",
                    _ => "",
                };
                let why = format!("{why}it must be ipvs, iptables, userspace, nftables or empty");
                self.invalid("mode", "proxy-mode", other, why);
                ModeName::Ipvs
            }
        }
    }

    fn node_ip(&mut self, c: &KubeProxyConfiguration) -> Option<std::net::IpAddr> {
        match parse_ip(&c.bind_address) {
            Some(ip) => Some(ip).filter(|ip| !ip.is_unspecified()),
            None => {
                let why = "it must be an IP address";
                self.invalid("bindAddress", "bind-address", &c.bind_address, why);
                None
            }
        }
    }

    fn bind(&mut self, field: &str, flag: &'static str, text: &str) -> Option<SocketAddr> {
        if text.is_empty() {
            return None;
        }
        bind::parse(text)
            .map_err(|why| self.invalid(field, flag, text, why))
            .ok()
    }

    fn masquerade_bit(&mut self, c: &KubeProxyConfiguration) -> u8 {
        let bits = [
            ("iptables", c.iptables.masquerade_bit),
            ("nftables", c.nftables.masquerade_bit),
        ];
        // As in kube-proxy, the bit for iptables is checked in every mode.
        let is_nftables = c.mode_section() == ModeName::Nftables;
        let mut valid = 14;
        for (section, bit) in bits.into_iter().take(1 + usize::from(is_nftables)) {
            match u8::try_from(bit) {
                Ok(bit @ 0..=31) => valid = bit,
                _ => {
                    let field = format!("{section}.masqueradeBit");
                    let flag = "iptables-masquerade-bit";
                    self.invalid(field, flag, bit, "it must be from 0 to 31");
                }
            }
        }
        valid
    }

    /// Records a problem of a setting for ipvs mode. If another mode is configured by
    /// name, kube-proxy does not check such settings, so they must not prevent a node
    /// from starting there. An empty mode means ipvs.
    fn invalid_for_ipvs(
        &mut self,
        c: &KubeProxyConfiguration,
        field: String,
        flag: &'static str,
        value: &str,
        why: &str,
    ) {
        if ["ipvs", "userspace"].contains(&c.mode.as_str()) {
            self.invalid(field, flag, value, why);
        } else {
            let problem = Problem::invalid(field, Some(flag), value, why);
            self.warnings.push(format!("{problem}; ignored"));
        }
    }

    fn scheduler(&mut self, c: &KubeProxyConfiguration) -> SchedulerName {
        let (field, flag, name) = ("ipvs.scheduler", "ipvs-scheduler", &c.ipvs.scheduler);
        match name.parse() {
            Ok(scheduler) => return scheduler,
            // It is valid for kube-proxy and in ipvs mode, so it must not prevent a node from
            // starting.
            Err(SchedulerNameError::KernelOnly { .. }) => {
                let problem = Problem {
                    field: field.to_owned(),
                    flag: Some(flag),
                    what: format!(
                        "{name:?} is a scheduler that only the kernel's IPVS has: ipvs mode uses \
                         it, userspace mode uses {} instead",
                        SchedulerName::Rr
                    ),
                };
                self.warnings.push(problem.to_string());
            }
            Err(why) => self.invalid_for_ipvs(c, field.to_owned(), flag, name, &why.to_string()),
        }
        SchedulerName::Rr
    }

    fn ipvs_exclude(&mut self, c: &KubeProxyConfiguration) -> Vec<IpNet> {
        let mut cidrs = Vec::new();
        for (i, text) in c.ipvs.exclude_cidrs.iter().enumerate() {
            match parse_cidr(text) {
                Some(cidr) => cidrs.push(cidr),
                None => {
                    let field = format!("ipvs.excludeCIDRs[{i}]");
                    self.invalid_for_ipvs(c, field, "ipvs-exclude-cidrs", text, CIDR);
                }
            }
        }
        cidrs
    }

    fn detect_local(&mut self, c: &KubeProxyConfiguration) -> DetectLocal {
        let detect = &c.detect_local;
        match c.detect_local_mode.as_str() {
            "NodeCIDR" => DetectLocal::NodeCidr,
            "BridgeInterface" => {
                let name = detect.bridge_interface.clone();
                if let Some(why) = unfit_interface(&name) {
                    let field = "detectLocal.bridgeInterface";
                    self.invalid(field, "pod-bridge-interface", &name, why);
                }
                DetectLocal::BridgeInterface(name)
            }
            "InterfaceNamePrefix" => {
                let prefix = detect.interface_name_prefix.clone();
                if let Some(why) = unfit_interface(&prefix) {
                    let field = "detectLocal.interfaceNamePrefix";
                    self.invalid(field, "pod-interface-name-prefix", &prefix, why);
                }
                DetectLocal::InterfaceNamePrefix(prefix)
            }
            other => {
                if other != "ClusterCIDR" {
                    let why = format!("it must be {LOCAL_MODES}");
                    self.invalid("detectLocalMode", "detect-local-mode", other, why);
                }
                DetectLocal::ClusterCidr(self.cluster_cidrs(c))
            }
        }
    }

    fn cluster_cidrs(&mut self, c: &KubeProxyConfiguration) -> Vec<IpNet> {
        let cidrs: Vec<IpNet> = c.cluster_cidrs().filter_map(parse_cidr).collect();
        let why = match cidrs.as_slice() {
            _ if cidrs.len() < c.cluster_cidrs().count() => CIDR,
            [] | [_] => return cidrs,
            [IpNet::V4(_), IpNet::V6(_)] | [IpNet::V6(_), IpNet::V4(_)] => return cidrs,
            _ => "it must be one CIDR, or one of each family: 10.244.0.0/16,fd00:10:244::/56",
        };
        self.invalid("clusterCIDR", "cluster-cidr", &c.cluster_cidr, why);
        Vec::new()
    }

    fn node_ports(&mut self, c: &KubeProxyConfiguration) -> NodePortAddresses {
        let mut named = NodePortAddresses::default();
        for (i, text) in c.node_port_addresses.iter().enumerate() {
            match text.as_str() {
                PRIMARY => named.primary = true,
                "localhost" => named.networks.extend(NodePortAddresses::loopback()),
                "all" => named.networks.extend(NodePortAddresses::every()),
                _ => match parse_cidr(text) {
                    Some(network) => named.networks.push(network),
                    None => {
                        let field = format!("nodePortAddresses[{i}]");
                        self.invalid(field, "nodeport-addresses", text, NODE_PORT_ADDRESS);
                    }
                },
            }
        }
        if !named.primary {
            self.unnamed_family(c, &named.networks);
        }
        let gate = FeatureGate::LocalhostNodePorts;
        named.not_relayed = !c.is_enabled(gate);
        // The gate is off by default in kube-proxy, and a program of the node may listen there.
        named.refused_unnamed = c.feature_gates.get(gate.name()) == Some(&true);
        let is_loopback = |network: &IpNet| network.addr().is_loopback();
        let mode = ["ipvs", "nftables"].contains(&c.mode.as_str());
        if mode && named.not_relayed && named.networks.iter().any(is_loopback) {
            self.warnings.push(format!(
                "nodePortAddresses names loopback addresses, but node ports are not served there, \
                 because the feature gate {} is false",
                gate.name()
            ));
        }
        named
    }

    /// Warns of a family that `nodePortAddresses` does not name: all its addresses serve
    /// node ports, which is hardly intended if the cluster has that family.
    fn unnamed_family(&mut self, c: &KubeProxyConfiguration, named: &[IpNet]) {
        let cluster: Vec<IpNet> = c.cluster_cidrs().filter_map(parse_cidr).collect();
        for (family, is_v6) in [("IPv4", false), ("IPv6", true)] {
            let has = |nets: &[IpNet]| nets.iter().any(|net| net.addr().is_ipv6() == is_v6);
            if has(&cluster) && !has(named) && !named.is_empty() {
                self.warnings.push(format!(
                    "nodePortAddresses names no {family} CIDR: all {family} addresses of this \
                     node serve node ports"
                ));
            }
        }
    }

    fn proxy_ports(&mut self, c: &KubeProxyConfiguration) -> Option<std::ops::RangeInclusive<u16>> {
        let parsed = port_range::parse(&c.port_range);
        parsed.unwrap_or_else(|why| {
            let others = [ModeName::Ipvs, ModeName::Nftables, ModeName::Iptables];
            if !others.iter().any(|mode| c.mode == mode.name()) {
                self.invalid("portRange", "proxy-port-range", &c.port_range, why);
            } else {
                // kube-proxy does not read the field any more.
                self.warnings.push(format!(
                    "portRange: {:?} is ignored, because only userspace mode uses it: {why}",
                    c.port_range
                ));
            }
            None
        })
    }
}
