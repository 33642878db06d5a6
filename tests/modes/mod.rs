//! Which mode a kernel gets, and going from one mode to another.

mod choosing;
mod families;
mod guest;
mod leftovers;
mod links;
pub mod probe;
mod sctp;
mod switching;
mod unanswered;
