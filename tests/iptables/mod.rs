//! iptables mode, seen from outside.

mod neighbours;
mod noticed;
mod order;
mod recordings;
mod repair;
mod rig;
mod unreadable;
mod vectors;
