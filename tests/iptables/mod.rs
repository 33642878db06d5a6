//! iptables mode, seen from outside.

mod neighbours;
mod order;
mod recordings;
mod repair;
mod rig;
mod vectors;
