//! Kernel settings for connections of this mode: how many connections to an endpoint this node can
//! open, and whether redirected ones find the listener.

use netlink::{setting, sysctl};

/// Setting that allows a connection to use the local port of one that ended less than a minute ago
/// (`Documentation/networking/ip-sysctl.rst`). Since Linux 4.11, each network namespace has its
/// own; it also applies to IPv6.
const REUSE: &str = "net.ipv4.tcp_tw_reuse";
/// Only on loopback: the kernel's default since Linux 4.20.
const ON_LOOPBACK: u64 = 2;
/// To any address: a second after the other connection ended, if both ends use timestamps, by which
/// late packets of the other one are recognised (RFC 6191).
const ANYWHERE: u64 = 1;

/// Setting that makes the kernel look up the socket of a TCP packet before its route
/// (`Documentation/networking/ip-sysctl.rst`). Since Linux 4.12, each network namespace has its
/// own; it also applies to IPv6.
///
/// All addresses of a Service are redirected to one local port. If a client has a connection to one
/// of them and connects to another one from the same port, the kernel gives the second connection
/// another source port, but only in the hook INPUT of nat. A lookup before that finds the socket of
/// the first connection. The kernel would drop the result (`nf_nat_ipv4_local_in` of
/// net/netfilter/nf_nat_proto.c), but not if that socket has IP_TRANSPARENT, as accepted sockets of
/// our listeners have: then each SYN goes to the first connection, and the client gets no answer.
const EARLY_LOOKUP: &str = "net.ipv4.tcp_early_demux";

/// Applies the settings, depending on whether connections are redirected. Returns messages for the
/// log; errors are settings that cannot be changed.
pub fn apply(redirects: bool) -> Vec<Result<String, String>> {
    let late = redirects.then(look_up_late).flatten();
    reuse_ports().into_iter().chain(late).collect()
}

/// Makes the kernel look up sockets after nat.
fn look_up_late() -> Option<Result<String, String>> {
    if setting::read(EARLY_LOOKUP).ok()? == 0 {
        return None;
    }
    let written = sysctl::write(EARLY_LOOKUP, "0");
    let done = written.map(|()| {
        format!(
            "{EARLY_LOOKUP} was 1 and is 0 now: clients may call several addresses of a Service \
             from one source port"
        )
    });
    Some(done.map_err(|error| {
        format!(
            "{error}; without {EARLY_LOOKUP}=0 a client gets no answer if it calls an address of a \
             Service from a source port from which it has a connection to another address of it: \
             set it, or run tripod --init-only with the privileges to"
        )
    }))
}

/// Lets connections to endpoints use a local port again a second after its last connection, if this
/// node ended that first, which happens when clients end theirs first. A value other than the
/// kernel's default is an administrator's choice and stays. Returns a message for the log; an error
/// if the setting cannot be changed.
fn reuse_ports() -> Option<Result<String, String>> {
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
