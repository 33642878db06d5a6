//! ipvs mode, seen from outside.

mod kernel;
mod recorded;
mod vectors;
