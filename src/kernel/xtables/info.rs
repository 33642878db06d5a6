//! How large a table of the legacy engine is, and the policy of its chain FORWARD, without
//! running its program (`IPT_SO_GET_INFO`, `IPT_SO_GET_ENTRIES`,
//! `linux/netfilter_ipv4/ip_tables.h`).

use std::{
    io,
    mem::{size_of, size_of_val},
    net::UdpSocket,
    os::fd::AsRawFd,
};

use nix::libc;

use super::Family;

/// `IPT_SO_GET_INFO` and `IP6T_SO_GET_INFO`.
const GET_INFO: libc::c_int = 64;
/// `IPT_SO_GET_ENTRIES` and `IP6T_SO_GET_ENTRIES`.
const GET_ENTRIES: libc::c_int = 65;
/// `XT_TABLE_MAXNAMELEN`.
const NAME: usize = 32;
/// `NF_INET_FORWARD`
const FORWARD: usize = 2;
/// Size of `struct ipt_get_entries` before the entries, in words of 64 bits.
const ENTRIES: usize = 5;
/// Size of `struct xt_entry_target`, behind which a standard target has its verdict.
const TARGET: usize = 32;
/// `-NF_DROP - 1`
const DROP: i32 = -1;

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
    let (_, info) = info(family, table)?;
    Ok(Size {
        entries: info.entries,
        bytes: info.size,
    })
}

/// Returns whether the legacy chain FORWARD of table filter drops what none of its rules
/// accepts. The table has to be there: asking for it makes it.
///
/// # Errors
/// As [`size`]; also when the table changes meanwhile (EAGAIN).
pub fn forward_drops(family: Family) -> io::Result<bool> {
    let (socket, info) = info(family, "filter")?;
    let size = info.size as usize;
    let mut words = vec![0u64; ENTRIES + size.div_ceil(size_of::<u64>())];
    let [name @ .., last] = &mut words[..ENTRIES] else {
        return Ok(false);
    };
    for (word, octets) in name
        .iter_mut()
        .zip(info.name.chunks_exact(size_of::<u64>()))
    {
        *word = u64::from_ne_bytes(octets.try_into().unwrap_or_default());
    }
    // The number has 32 bits, and padding behind it.
    let mut number = [0; size_of::<u64>()];
    number[..size_of::<u32>()].copy_from_slice(&info.size.to_ne_bytes());
    *last = u64::from_ne_bytes(number);
    let mut length = size_of_val(&words[..]) as libc::socklen_t;
    // SAFETY: `words` is as large as `length` says, is written by no other thread
    // meanwhile, and any bytes are valid words.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level(family),
            GET_ENTRIES,
            words.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if answer != 0 {
        return Err(io::Error::last_os_error());
    }
    let entries: Vec<u8> = words[ENTRIES..]
        .iter()
        .flat_map(|word| word.to_ne_bytes())
        .collect();
    let policy = verdict(family, &entries, info.underflow[FORWARD] as usize);
    policy
        .map(|verdict| verdict == DROP)
        .ok_or_else(|| io::Error::other("entries that do not fit the table"))
}

/// Returns the verdict of the entry at an offset, which has a standard target.
fn verdict(family: Family, entries: &[u8], at: usize) -> Option<i32> {
    // Behind `struct ipt_ip` or `struct ip6t_ip6`, and `nfcache`.
    let offset = match family {
        Family::V4 => 88,
        Family::V6 => 140,
    };
    let entry = entries.get(at..)?;
    let target = entry.get(offset..offset + size_of::<u16>())?;
    let verdict = usize::from(u16::from_ne_bytes(target.try_into().ok()?)) + TARGET;
    let verdict = entry.get(verdict..verdict + size_of::<i32>())?;
    Some(i32::from_ne_bytes(verdict.try_into().ok()?))
}

fn level(family: Family) -> libc::c_int {
    match family {
        Family::V4 => libc::IPPROTO_IP,
        Family::V6 => libc::IPPROTO_IPV6,
    }
}

/// Returns what the kernel says of a table, and the socket that it was asked by.
fn info(family: Family, table: &str) -> io::Result<(UdpSocket, Info)> {
    let socket = UdpSocket::bind(match family {
        Family::V4 => "127.0.0.1:0",
        Family::V6 => "[::1]:0",
    })?;
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
            level(family),
            GET_INFO,
            (&raw mut info).cast(),
            &raw mut length,
        )
    };
    if answer != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((socket, info))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::namespace::in_namespace;

    /// Runs `test` for each family, with what runs its legacy program.
    fn in_each_family(test: impl Fn(Family, &dyn Fn(&str)) + Send + Sync + 'static) {
        in_namespace(move || {
            for (family, program) in [
                (Family::V4, "iptables-legacy"),
                (Family::V6, "ip6tables-legacy"),
            ] {
                test(family, &|line| {
                    let mut command = std::process::Command::new(program);
                    let done = command.arg("-w").args(line.split(' ')).status().unwrap();
                    assert!(done.success(), "{line}");
                });
            }
        });
    }

    #[test]
    fn a_rule_makes_a_table_larger() {
        in_each_family(|family, run| {
            let before = size(family, "nat").unwrap();
            run("-t nat -A OUTPUT -j RETURN");
            let after = size(family, "nat").unwrap();
            assert_eq!(after.entries, before.entries + 1);
            assert!(after.bytes > before.bytes);
        });
    }

    #[test]
    fn the_policy_of_forward_is_read() {
        in_each_family(|family, run| {
            assert!(!forward_drops(family).unwrap(), "{family}");
            run("-A INPUT -j DROP");
            run("-A FORWARD -j DROP");
            assert!(!forward_drops(family).unwrap(), "{family}: a rule alone");
            run("-P FORWARD DROP");
            assert!(forward_drops(family).unwrap(), "{family}");
            run("-F FORWARD");
            assert!(forward_drops(family).unwrap(), "{family}: without rules");
        });
    }
}
