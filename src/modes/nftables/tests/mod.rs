//! Tests of nftables mode.

mod increments;
mod instructions;
mod kernel;
mod model;
mod random;
mod world;
