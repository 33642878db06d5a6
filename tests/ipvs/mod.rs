//! ipvs mode, seen from outside.

mod recorded;
mod vectors;
