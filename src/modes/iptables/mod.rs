//! iptables mode: the KUBE-SVC chains.

pub mod plan;
