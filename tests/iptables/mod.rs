//! iptables mode, seen from outside.

mod vectors;
