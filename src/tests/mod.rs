//! Tests of the library as a whole.

pub mod instructions;
