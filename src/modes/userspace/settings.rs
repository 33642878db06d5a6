//! The setting of the kernel that decides how many connections an endpoint can get from this
//! node.

use crate::kernel::{setting, sysctl};

/// The setting that says whether a connection may use the local port of one that has ended before a
/// minute has passed (`Documentation/networking/ip-sysctl.rst`). Since Linux 4.11, each network
/// namespace has its own; it holds for IPv6, too.
const REUSE: &str = "net.ipv4.tcp_tw_reuse";
/// Only on loopback: the kernel's default since Linux 4.20.
const ON_LOOPBACK: u64 = 2;
/// To any address: a second after the other connection ended, if both ends use
/// timestamps, by which late packets of the other one are distinguished (RFC 6191).
const ANYWHERE: u64 = 1;

/// Lets connections to endpoints use a local port again a second after its last connection, if this
/// node ended that first, as it does where clients end theirs first. A value other than the
/// kernel's default is an administrator's choice and stays. Returns what is to be logged; an error
/// if it cannot be set.
pub fn apply() -> Option<Result<String, String>> {
    if setting::read(REUSE).ok()? != ON_LOOPBACK {
        return None;
    }
    let written = sysctl::write(REUSE, &ANYWHERE.to_string());
    let done = written.map(|()| {
        format!(
            "changed {REUSE} from {ON_LOOPBACK} to {ANYWHERE}: a local port can be used again for \
             the same endpoint one second after its last connection ended, instead of one minute"
        )
    });
    Some(done.map_err(|error| {
        format!(
            "{error}; without {REUSE}={ANYWHERE} each connection that a client ends first occupies \
             a local port for a minute: set it, or run tripod --init-only with more privileges"
        )
    }))
}
