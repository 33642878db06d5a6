//! Tests of nftables mode.

mod increments;
mod kernel;
mod model;
mod random;
mod world;
