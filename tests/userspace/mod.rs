//! Userspace mode, seen from outside.

mod addresses;
mod affinity;
pub mod capture;
mod changes;
mod circles;
mod command_line;
mod descriptors;
mod ended;
mod ending;
mod families;
pub mod firewall;
pub mod gap;
mod guest;
mod idle;
mod limits;
mod manifests;
mod many;
mod overload;
mod policies;
mod preferences;
mod proxy_protocol;
mod refused;
mod retry;
mod strangers;
mod streams;
pub mod succession;
mod transparent;
mod udp;
mod unfinished;
mod upgrades;
mod workers;

use std::io;
use std::time::Duration;

use crate::lab::eventually;

/// Time within which an edit of a manifest must be applied, also on a slow machine: less than the
/// 30 s, in most of these tests an hour, after which everything is compared.
const SOON: Duration = Duration::from_secs(20);

/// Calls until each of `names` has answered. Any other name, and any error, fails.
fn reaches(what: &str, names: &[&str], mut call: impl FnMut() -> io::Result<String>) {
    let mut missing = names.to_vec();
    for _ in 0..20 * names.len() {
        match call() {
            Ok(name) if names.contains(&name.as_str()) => missing.retain(|n| *n != name),
            Ok(name) => panic!("{what}: answered by {name}, not one of {names:?}"),
            Err(error) => panic!("{what}: {error}"),
        }
        if missing.is_empty() {
            return;
        }
    }
    panic!("{what}: {missing:?} never answered");
}

/// Waits until a call is answered by one of `names`.
fn comes_to_reach(what: &str, names: &[&str], mut call: impl FnMut() -> io::Result<String>) {
    eventually(what, SOON, || match call() {
        Ok(name) if names.contains(&name.as_str()) => Ok(()),
        Ok(name) => Err(format!("answered by {name}")),
        Err(error) => Err(error.to_string()),
    });
}

/// Waits until calls fail.
fn comes_to_fail(what: &str, mut call: impl FnMut() -> io::Result<String>) {
    eventually(what, SOON, || match call() {
        Ok(name) => Err(format!("still answered by {name}")),
        Err(_) => Ok(()),
    });
}
