//! The effect of rules, by walking packets through them.

mod balance;
mod corners;
mod index;
mod kernels;
mod node_ports;
mod structure;
mod walk;
pub(super) mod world;
