//! iptables mode: the KUBE-SVC chains.

pub mod plan;
pub mod render;
