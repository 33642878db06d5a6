//! Tripod, the service proxy that stands on any kernel.
//!
//! Data flows one way: [`watch`] → [`services`] → [`modes`] → [`kernel`].
//! `ARCHITECTURE.md` has the map and the flow of one Service through the code.

pub mod kernel;
pub mod modes;
pub mod sched;
pub mod services;
pub mod watch;
