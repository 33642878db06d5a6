//! What tests see of the groups.

pub mod listening;
