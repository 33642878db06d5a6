//! Tripod, a service proxy that runs on any Linux kernel.
//!
//! Data flows one way: [`watch`] → [`services`] → [`modes`] → [`kernel`].
//! `ARCHITECTURE.md` has the map and the flow of one Service through the code.

// Code that the library's tests share with those of `tests/` refers to the library by this name.
#[cfg(test)]
extern crate self as tripod;

pub mod api_client;
pub mod ask;
pub mod authorize;
pub mod backoff;
pub mod cli;
pub mod config;
pub mod confine;
pub mod duration;
pub mod ejection;
pub mod events;
mod family_metrics;
mod first_answer;
pub mod hold;
pub mod kernel;
pub mod lifecycle;
mod listing;
pub mod log;
pub mod log_once;
pub mod migrate;
pub mod modes;
mod native_histograms;
pub mod node;
pub mod reset;
pub mod runner;
pub mod sched;
pub mod serve;
pub mod services;
#[cfg(test)]
mod simulation;
pub mod start;
pub mod status_api;
pub mod test;
#[cfg(test)]
mod tests;
pub mod trace;
pub mod trouble;
pub mod watch;
pub mod yaml;
