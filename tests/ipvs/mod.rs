//! ipvs mode, seen from outside.

mod adoption;
mod annotations;
mod blocked;
mod drain;
mod guest;
mod kernel;
mod node;
mod order;
mod recorded;
mod repair;
mod scale;
mod sets;
mod stale;
mod traffic;
mod vectors;
