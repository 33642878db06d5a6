//! What the rules do, by walking packets through them.

mod balance;
mod corners;
mod index;
mod kernels;
mod node_ports;
mod shape;
mod walk;
mod world;
