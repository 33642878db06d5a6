//! How large a table of the legacy engine is, and the policies of its chains, without
//! running its program (`IPT_SO_GET_INFO`, `IPT_SO_GET_ENTRIES`,
//! `linux/netfilter_ipv4/ip_tables.h`).

use std::{io, mem::size_of};

use net::Family;
use netlink::system;
use nix::libc;

/// `IPT_SO_GET_INFO` and `IP6T_SO_GET_INFO`.
pub const GET_INFO: libc::c_int = 64;
/// `IPT_SO_GET_ENTRIES` and `IP6T_SO_GET_ENTRIES`.
const GET_ENTRIES: libc::c_int = 65;
/// Size of the name of a table in bytes, `XT_TABLE_MAXNAMELEN` of
/// `linux/netfilter/x_tables.h`.
const NAME: usize = 32;
/// Size of `struct ipt_get_entries` before the entries, in bytes.
const ENTRIES: usize = 40;
/// Size of `struct xt_entry_target`, behind which a standard target has its verdict.
const TARGET: usize = 32;
/// The verdict of a standard target that drops: `-NF_DROP - 1`.
const DROP: i32 = -1;

/// The fields used of `struct ipt_getinfo`, which IPv6 has too.
struct Info {
    underflow: [u32; HOOKS],
    entries: u32,
    size: u32,
}

/// How many hooks a table has places for, `NF_INET_NUMHOOKS` of `linux/netfilter.h`.
const HOOKS: usize = 5;
/// Where the fields of that structure begin, in bytes.
const UNDERFLOW: usize = NAME + (1 + HOOKS) * size_of::<u32>();
const INFO_ENTRIES: usize = UNDERFLOW + HOOKS * size_of::<u32>();
const INFO_SIZE: usize = INFO_ENTRIES + size_of::<u32>();
/// How long it is, in bytes.
const INFO: usize = INFO_SIZE + size_of::<u32>();

/// Size of a table: it differs after most changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Rules, with those that stand for chains.
    pub entries: u32,
    /// Memory that they take, in bytes.
    pub bytes: u32,
}

/// Reads the size of a legacy table of `family`, which the kernel creates if it was not there.
///
/// # Errors
/// When the kernel has no such table (ENOENT, ENOPROTOOPT) or refuses (EPERM).
pub fn size(family: Family, table: &str) -> io::Result<Size> {
    let info = info(family, table)?;
    Ok(Size {
        entries: info.entries,
        bytes: info.size,
    })
}

/// A chain of table filter, by the number of its hook (`linux/netfilter.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterChain {
    /// INPUT, which sees packets for the node itself: for its sockets, and IPVS
    /// (`NF_INET_LOCAL_IN`).
    Input = 1,
    /// FORWARD, which sees packets that the node forwards (`NF_INET_FORWARD`).
    Forward = 2,
}

/// Returns whether the legacy `chain` of table filter drops packets that none of its rules accepts.
/// The table has to be there: asking for it creates it.
///
/// # Errors
/// As [`size`]; also when the table changes meanwhile (EAGAIN).
pub fn drops(family: Family, chain: FilterChain) -> io::Result<bool> {
    let table = "filter";
    let info = info(family, table)?;
    // struct ipt_get_entries: the table's name and size, and padding, before the entries.
    let mut answer = vec![0u8; ENTRIES + info.size as usize];
    answer[..NAME].copy_from_slice(&name(table));
    answer[NAME..NAME + size_of::<u32>()].copy_from_slice(&info.size.to_ne_bytes());
    system::current().option(family, GET_ENTRIES, &mut answer)?;
    let policy = verdict(
        family,
        &answer[ENTRIES..],
        info.underflow[chain as usize] as usize,
    );
    policy
        .map(|verdict| verdict == DROP)
        .ok_or_else(|| io::Error::other("entries that do not fit the table"))
}

/// Reads the verdict of the entry at an offset, which has a standard target.
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

/// A table's name in the form of the kernel's structures: filled up with zeros or cut to fit.
fn name(table: &str) -> [u8; NAME] {
    let mut name = [0; NAME];
    let length = table.len().min(NAME);
    name[..length].copy_from_slice(&table.as_bytes()[..length]);
    name
}

/// Asks the kernel about a table.
fn info(family: Family, table: &str) -> io::Result<Info> {
    let mut value = [0; INFO];
    value[..NAME].copy_from_slice(&name(table));
    system::current().option(family, GET_INFO, &mut value)?;
    let word = |at: usize| {
        let mut word = [0; size_of::<u32>()];
        word.copy_from_slice(&value[at..at + size_of::<u32>()]);
        u32::from_ne_bytes(word)
    };
    Ok(Info {
        entries: word(INFO_ENTRIES),
        size: word(INFO_SIZE),
        underflow: std::array::from_fn(|hook| word(UNDERFLOW + hook * size_of::<u32>())),
    })
}

#[cfg(test)]
mod tests {
    use testing::in_namespace;

    use super::*;

    /// Runs `test` for each family, with a function that runs its legacy program.
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
    fn the_policies_of_chains_are_read() {
        in_each_family(|family, run| {
            let policies = || {
                let chains = [FilterChain::Input, FilterChain::Forward];
                chains.map(|chain| drops(family, chain).unwrap())
            };
            assert_eq!(policies(), [false, false], "{family}");
            run("-A INPUT -j DROP");
            run("-A FORWARD -j DROP");
            assert_eq!(policies(), [false, false], "{family}: a rule alone");
            run("-P FORWARD DROP");
            assert_eq!(policies(), [false, true], "{family}");
            run("-F FORWARD");
            assert_eq!(policies(), [false, true], "{family}: without rules");
            run("-P INPUT DROP");
            run("-P FORWARD ACCEPT");
            assert_eq!(policies(), [true, false], "{family}");
        });
    }
}
