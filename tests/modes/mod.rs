//! The mode that a kernel gets, and switching from one mode to another.

mod begun;
mod changes;
mod choosing;
mod confined;
mod convergence;
mod crowd;
mod ejection;
mod example;
mod families;
mod guest;
mod hostile;
mod links;
mod migrate;
pub mod probe;
mod sctp;
mod stale_state;
mod surge;
mod switching;
mod unanswered;
