//! Plans rules for ServicePorts: the desired state of iptables and ip6tables, with kube-proxy's
//! chains, by kube-proxy's names (`pkg/proxy/iptables`, 1.36).
//!
//! Pure: nothing here reads the kernel or remembers anything. A ServicePort's rules depend on it
//! and on the [`Options`] alone, never on other Services, so a change concerns only the results of
//! [`plan`](plan()) for the ports that changed.
//!
//! A plan has three parts:
//! - chains of a ServicePort's own, which are written whole;
//! - entries in chains that all share (KUBE-SERVICES and the like);
//! - steps on the way to a shared chain of the [index](Dispatch::Indexed). Ports
//!   that need the same step give equal ones: it is there as long as one of them
//!   is.

mod backends;
mod balance;
mod fixed;
mod index;
mod lost;
pub mod names;
mod options;
mod service;
mod unsupported;

pub use self::{
    fixed::{accounts, fixed, loopback_guard},
    lost::{LOST, NEEDED},
    options::{Dispatch, DispatchChoice, Options, UNDIVIDED, is_large_cluster},
    service::{endpoint_chains, is_possible, plan, policy_chains},
    unsupported::unsupported,
};
pub use crate::modes::detect_local::DetectLocal;

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(super) use self::tests::world::options as usual_options;
