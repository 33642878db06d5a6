//! How large a table of the legacy engine is, without running its program
//! (`IPT_SO_GET_INFO`, `linux/netfilter_ipv4/ip_tables.h`).

use std::{io, mem::size_of, net::UdpSocket, os::fd::AsRawFd};

use nix::libc;

use super::Family;

/// `IPT_SO_GET_INFO` and `IP6T_SO_GET_INFO`.
const GET_INFO: libc::c_int = 64;
/// `XT_TABLE_MAXNAMELEN`.
const NAME: usize = 32;

/// `struct ipt_getinfo`, which IPv6 has too.
#[repr(C)]
#[derive(Default)]
struct Info {
    name: [u8; NAME],
    valid_hooks: u32,
    hook_entry: [u32; 5],
    underflow: [u32; 5],
    entries: u32,
    size: u32,
}

/// Size of a table: it differs after most changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Rules, with those that stand for chains.
    pub entries: u32,
    /// Memory that they take, in bytes.
    pub bytes: u32,
}

/// Returns the size of a legacy table of `family`, which comes to be if it was not
/// there.
///
/// # Errors
/// When the kernel has no such table (ENOENT, ENOPROTOOPT) or refuses (EPERM).
pub fn size(family: Family, table: &str) -> io::Result<Size> {
    let (socket, level) = match family {
        Family::V4 => (UdpSocket::bind("127.0.0.1:0")?, libc::IPPROTO_IP),
        Family::V6 => (UdpSocket::bind("[::1]:0")?, libc::IPPROTO_IPV6),
    };
    let mut info = Info::default();
    if let Some(room) = info.name.get_mut(..table.len()) {
        room.copy_from_slice(table.as_bytes());
    }
    let mut length = size_of::<Info>() as libc::socklen_t;
    // SAFETY: `info` is as large as `length` says, is written by no other thread
    // meanwhile, and any bytes are a valid `Info`.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            GET_INFO,
            (&raw mut info).cast(),
            &raw mut length,
        )
    };
    if answer != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Size {
        entries: info.entries,
        bytes: info.size,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::namespace::in_namespace;

    #[test]
    fn a_rule_makes_a_table_larger() {
        in_namespace(|| {
            for (family, program) in [
                (Family::V4, "iptables-legacy"),
                (Family::V6, "ip6tables-legacy"),
            ] {
                let before = size(family, "nat").unwrap();
                let mut command = std::process::Command::new(program);
                command.args(["-w", "-t", "nat", "-A", "OUTPUT", "-j", "RETURN"]);
                assert!(command.status().unwrap().success());
                let after = size(family, "nat").unwrap();
                assert_eq!(after.entries, before.entries + 1);
                assert!(after.bytes > before.bytes);
            }
        });
    }
}
