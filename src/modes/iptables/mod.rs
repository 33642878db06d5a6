//! iptables mode: the KUBE-SVC chains.
