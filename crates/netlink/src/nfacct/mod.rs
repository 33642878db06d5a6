//! Counters of packets by name (`linux/netfilter/nfnetlink_acct.h`), which the
//! match `nfacct` of iptables counts with.

use nix::{errno::Errno, libc};

use crate::{Error, Protocol, Request, Socket, netfilter_kind};

// Messages `NFNL_MSG_ACCT_*`.
const NEW: u16 = netfilter_kind(libc::NFNL_SUBSYS_ACCT, 0);
const GET: u16 = netfilter_kind(libc::NFNL_SUBSYS_ACCT, 1);
const DEL: u16 = netfilter_kind(libc::NFNL_SUBSYS_ACCT, 3);
// enum nfnl_acct_type
const NAME: u16 = 1;
const PACKETS: u16 = 2;

fn request(kind: u16, flags: i32, operation: &'static str, name: &str) -> Request {
    Request::new(
        kind,
        flags as u16,
        operation,
        format!("nfacct object {name}"),
    )
    .nfgenmsg(libc::AF_UNSPEC as u8)
    .text(NAME, name)
}

/// Makes counters that start at 0. One that exists is left as it is.
///
/// # Errors
/// When the kernel has no such counters (`nfnetlink_acct`) or refuses.
pub fn create(names: &[&str]) -> Result<(), Error> {
    let mut socket = Socket::open(Protocol::Netfilter)?;
    let flags = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
    let requests: Vec<_> = names
        .iter()
        .map(|name| request(NEW, flags, "add", name))
        .collect();
    socket.batch_all(&requests, &[Errno::EEXIST, Errno::EBUSY])
}

/// Deletes a counter; one that does not exist is no error.
///
/// # Errors
/// When the kernel refuses, as while rules use it (EBUSY).
pub fn delete(name: &str) -> Result<(), Error> {
    let mut socket = Socket::open(Protocol::Netfilter)?;
    socket.batch_all(&[request(DEL, 0, "delete", name)], &[Errno::ENOENT])
}

/// Returns how many packets a counter has counted.
///
/// # Errors
/// When there is no such counter (ENOENT).
pub fn packets(name: &str) -> Result<u64, Error> {
    let mut socket = Socket::open(Protocol::Netfilter)?;
    let found = socket.call(&request(GET, 0, "read", name), |message| {
        let mut packets = None;
        for attribute in message.attributes(4) {
            let attribute = attribute?;
            if attribute.kind == PACKETS {
                packets = attribute.payload.try_into().map(u64::from_be_bytes).ok();
            }
        }
        Ok(packets)
    })?;
    Ok(found.first().copied().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use testing::in_namespace;

    use super::*;

    #[test]
    fn counters_come_stay_and_go() {
        in_namespace(|| {
            create(&["tripod-a", "tripod-b"]).unwrap();
            create(&["tripod-a"]).unwrap();
            assert_eq!(packets("tripod-a").unwrap(), 0);
            delete("tripod-a").unwrap();
            delete("tripod-a").unwrap();
            let error = packets("tripod-a").unwrap_err();
            assert_eq!(error.errno(), Some(Errno::ENOENT));
            assert_eq!(packets("tripod-b").unwrap(), 0);
        });
    }
}
