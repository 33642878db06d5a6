//! Sockets, files and limits of this process, and the abilities of the kernel. Nothing here knows
//! about Services.

pub mod inotify;
pub mod io_uring;
pub mod memory_limit;
pub mod open_files;
pub mod probe;
pub mod socket;
#[cfg(any(test, fuzzing))]
pub mod tests;
pub mod uptime;
