//! ipvs mode, seen from outside.

mod adoption;
mod drain;
mod guest;
mod kernel;
mod node;
mod order;
mod recorded;
mod repair;
mod scale;
mod traffic;
mod vectors;
