//! Names of chains.

/// Shared by all ServicePorts: service addresses (nat, filter).
pub const SERVICES: &str = "KUBE-SERVICES";
/// Shared: service addresses that are called from outside (filter).
pub const EXTERNAL_SERVICES: &str = "KUBE-EXTERNAL-SERVICES";
/// Shared: node ports (nat), health-check node ports (filter).
pub const NODE_PORTS: &str = "KUBE-NODEPORTS";
/// Shared: what source ranges keep out (filter).
pub const PROXY_FIREWALL: &str = "KUBE-PROXY-FIREWALL";
/// SNAT of what was marked for it (nat).
pub const POSTROUTING: &str = "KUBE-POSTROUTING";
/// Marks for SNAT (nat).
pub const MARK_MASQ: &str = "KUBE-MARK-MASQ";
/// Lets service traffic through the FORWARD chain (filter).
pub const FORWARD: &str = "KUBE-FORWARD";
/// The kubelet's, with one rule that kube-proxy writes too (filter).
pub const FIREWALL: &str = "KUBE-FIREWALL";
/// Empty, in each table: whether somebody flushed it.
pub const CANARY: &str = "KUBE-PROXY-CANARY";
