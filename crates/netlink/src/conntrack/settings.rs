//! Limits and timeouts of connection tracking
//! (Documentation/networking/nf_conntrack-sysctl.rst of the kernel), as
//! kube-proxy sets them at start.
//!
//! [`plan`] computes the settings; [`apply`] makes them. A kernel without
//! connection tracking has nothing to set, and a container that may not set
//! anything still runs: both are logged, neither is fatal.

use std::{fmt, fs, io, time::Duration};

use crate::{setting::Setting, sysctl};

/// The file with the list of CPUs that are online. The process' own CPU set is
/// not the size of the node.
const ONLINE_CPUS: &str = "/sys/devices/system/cpu/online";

/// The file with the number of buckets of the table of connections. It can be
/// written in the first network namespace only.
const HASH_SIZE: &str = "/sys/module/nf_conntrack/parameters/hashsize";

/// Whether no packet outside a TCP window is invalid.
const TCP_BE_LIBERAL: &str = "net.netfilter.nf_conntrack_tcp_be_liberal";

/// Connections per bucket.
const PER_BUCKET: u64 = 4;

/// The section `conntrack` of KubeProxyConfiguration. Zero leaves a setting of the kernel as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Connections that may be tracked, for each CPU; 0: `min` is ignored too.
    pub max_per_core: u32,
    /// Connections that may be tracked at least.
    pub min: u32,
    /// How long an established TCP connection may be idle.
    pub tcp_established: Duration,
    /// How long a TCP connection stays in the table after one side closed it.
    pub tcp_close_wait: Duration,
    /// Packets outside the TCP window are tracked, not marked invalid.
    pub tcp_be_liberal: bool,
    /// How long a UDP flow without answers stays in the table.
    pub udp: Duration,
    /// How long a UDP flow with answers stays in the table.
    pub udp_stream: Duration,
}

/// A setting that could not be made.
#[derive(Debug)]
pub struct Unset {
    /// Name of the setting.
    pub setting: Setting,
    /// Why it could not be made.
    pub error: io::Error,
}

impl fmt::Display for Unset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Setting { name, value, .. } = self.setting;
        write!(f, "{name} is not set to {value}: ")?;
        if self.is_missing() {
            return f.write_str("this kernel does not have it");
        }
        write!(f, "{}", self.error)?;
        if self.is_forbidden() {
            f.write_str(
                "; set it on the node itself, or give the container /proc/sys and /sys to write",
            )?;
        }
        Ok(())
    }
}

impl Unset {
    /// Returns whether this kernel has no such setting: connection tracking is not there, or not
    /// loaded yet.
    pub fn is_missing(&self) -> bool {
        self.error.kind() == io::ErrorKind::NotFound
    }

    /// Returns whether it may not be changed: the file system is read-only, or privileges are
    /// missing.
    pub fn is_forbidden(&self) -> bool {
        use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
        matches!(self.error.kind(), PermissionDenied | ReadOnlyFilesystem)
    }
}

/// Most entries that follow from the number of CPUs, even if the minimum is
/// higher: a table for more takes too much memory (kubernetes #137002).
const MOST_SCALED: u64 = 1 << 20;

/// Returns the settings that `options` ask for on a node with that number of CPUs.
pub fn plan(options: &Options, cpus: u32) -> Vec<Setting> {
    let mut settings = Vec::new();
    if options.max_per_core > 0 {
        let scaled = u64::from(options.max_per_core) * u64::from(cpus);
        let max = if scaled > MOST_SCALED {
            MOST_SCALED
        } else {
            scaled.max(options.min.into())
        };
        settings.push(Setting::minimum("net.netfilter.nf_conntrack_max", max));
        settings.push(Setting::minimum(HASH_SIZE, max / PER_BUCKET));
    }
    let timeouts = [
        (
            "net.netfilter.nf_conntrack_tcp_timeout_established",
            options.tcp_established,
        ),
        (
            "net.netfilter.nf_conntrack_tcp_timeout_close_wait",
            options.tcp_close_wait,
        ),
        ("net.netfilter.nf_conntrack_udp_timeout", options.udp),
        (
            "net.netfilter.nf_conntrack_udp_timeout_stream",
            options.udp_stream,
        ),
    ];
    settings.extend(timeouts.map(|(name, timeout)| Setting::exactly(name, timeout.as_secs())));
    if options.tcp_be_liberal {
        settings.push(Setting::exactly(TCP_BE_LIBERAL, 1));
    }
    settings.retain(|setting| setting.value > 0);
    settings
}

/// Makes those settings of `plan` that differ, with functions that read and write one
/// ([`setting`](crate::setting)). Returns those that could not be made.
pub fn apply(
    plan: &[Setting],
    read: impl Fn(&str) -> io::Result<u64>,
    mut write: impl FnMut(&str, u64) -> io::Result<()>,
) -> Vec<Unset> {
    let mut unset = Vec::new();
    for setting in plan {
        let Setting { name, value, .. } = *setting;
        let done = match read(name) {
            Ok(present) if setting.is_met_by(present) => continue,
            Ok(_) => write(name, value),
            Err(error) => Err(error),
        };
        match done {
            Ok(()) => tracing::info!("{name} is set to {value}"),
            Err(error) => unset.push(Unset {
                setting: *setting,
                error,
            }),
        }
    }
    unset
}

/// Returns whether the kernel finds no packet outside a TCP window invalid; `None`:
/// that is not known. kube-proxy reads it at start (`conntrackTCPLiberal` of
/// `pkg/proxy/iptables`).
pub fn is_tcp_liberal() -> Option<bool> {
    match sysctl::read(TCP_BE_LIBERAL) {
        Ok(value) => Some(value != "0"),
        // Connection tracking is not loaded yet; it comes with this value.
        Err(error) if error.is_missing() => Some(false),
        Err(error) => {
            tracing::debug!("{error}");
            None
        }
    }
}

/// Number of online CPUs of the node; of the CPUs that this process may use if the kernel does not
/// list the online ones.
pub fn cpus() -> u32 {
    let online = fs::read_to_string(ONLINE_CPUS).ok();
    online.and_then(|list| count(&list)).unwrap_or_else(|| {
        let usable = std::thread::available_parallelism();
        usable.map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX))
    })
}

/// Counts the members of a list such as `0-3,8` (Documentation/admin-guide/cputopology.rst).
fn count(list: &str) -> Option<u32> {
    let mut count = 0u32;
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        count = count.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(count)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::setting;

    const MAX: &str = "net.netfilter.nf_conntrack_max";
    const ESTABLISHED: &str = "net.netfilter.nf_conntrack_tcp_timeout_established";

    /// Returns kube-proxy's defaults.
    fn defaults() -> Options {
        Options {
            max_per_core: 32_768,
            min: 131_072,
            tcp_established: Duration::from_secs(86_400),
            tcp_close_wait: Duration::from_secs(3_600),
            ..Options::default()
        }
    }

    fn values(options: &Options, cpus: u32) -> Vec<(&'static str, u64)> {
        let plan = plan(options, cpus);
        let name = |name: &'static str| name.rsplit(['.', '/']).next().unwrap();
        plan.iter().map(|s| (name(s.name), s.value)).collect()
    }

    #[test]
    fn the_limit_follows_the_cpus() {
        let limit = |options: &Options, cpus| values(options, cpus).first().copied();
        for (cpus, max) in [(1, 131_072), (4, 131_072), (5, 163_840), (96, 1_048_576)] {
            assert_eq!(limit(&defaults(), cpus), Some(("nf_conntrack_max", max)));
        }
        // 32 CPUs reach exactly the limit: the minimum still counts.
        let generous = Options {
            min: 2_097_152,
            ..defaults()
        };
        for (cpus, max) in [(31, 2_097_152), (32, 2_097_152), (33, 1_048_576)] {
            assert_eq!(limit(&generous, cpus), Some(("nf_conntrack_max", max)));
        }
        let huge = Options {
            max_per_core: u32::MAX,
            ..defaults()
        };
        assert_eq!(limit(&huge, 4096), Some(("nf_conntrack_max", 1_048_576)));
    }

    #[test]
    fn what_is_zero_is_left_alone() {
        assert_eq!(values(&Options::default(), 4), []);
        let only_min = Options {
            min: 1000,
            ..Options::default()
        };
        assert_eq!(values(&only_min, 4), [], "min alone means nothing");
        let all = Options {
            tcp_be_liberal: true,
            udp: Duration::from_millis(30_900),
            udp_stream: Duration::from_secs(120),
            ..defaults()
        };
        let expected = [
            ("nf_conntrack_max", 131_072),
            ("hashsize", 32_768),
            ("nf_conntrack_tcp_timeout_established", 86_400),
            ("nf_conntrack_tcp_timeout_close_wait", 3_600),
            ("nf_conntrack_udp_timeout", 30),
            ("nf_conntrack_udp_timeout_stream", 120),
            ("nf_conntrack_tcp_be_liberal", 1),
        ];
        assert_eq!(values(&all, 4), expected);
    }

    /// Reads a setting of a kernel that has these.
    fn of(values: &BTreeMap<&str, u64>, name: &str) -> io::Result<u64> {
        let value = values.get(name).copied();
        value.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    #[test]
    fn limits_are_raised_and_never_lowered_timeouts_are_set() {
        let plan = plan(&defaults(), 1);
        let values = BTreeMap::from([
            (MAX, 262_144),
            (HASH_SIZE, 1_024),
            (ESTABLISHED, 432_000),
            ("net.netfilter.nf_conntrack_tcp_timeout_close_wait", 3_600),
        ]);
        let mut written = Vec::new();
        let write = |name: &str, value| {
            written.push((name.to_owned(), value));
            Ok(())
        };
        assert!(apply(&plan, |name| of(&values, name), write).is_empty());
        let expected = [(HASH_SIZE, 32_768), (ESTABLISHED, 86_400)];
        assert_eq!(written, expected.map(|(n, v)| (n.to_owned(), v)));
    }

    #[test]
    fn a_kernel_that_will_not_is_named_setting_by_setting() {
        let plan = plan(&defaults(), 1);
        let nothing = BTreeMap::new();
        let unset = apply(&plan, |name| of(&nothing, name), |_, _| Ok(()));
        assert_eq!(unset.len(), plan.len());
        assert!(unset.iter().all(Unset::is_missing));

        for errno in [nix::libc::EROFS, nix::libc::EACCES, nix::libc::EPERM] {
            let values = BTreeMap::from([(MAX, 1)]);
            let refuse = |_: &str, _| Err(io::Error::from_raw_os_error(errno));
            let unset = apply(&plan[..1], |name| of(&values, name), refuse);
            assert!(unset[0].is_forbidden(), "{errno}");
            let text = unset[0].to_string();
            assert!(text.contains(MAX) && text.contains("131072"), "{text}");
        }
    }

    #[test]
    fn cpus_are_counted() {
        for (list, n) in [
            ("0", Some(1)),
            ("0-3\n", Some(4)),
            ("0-1,4,8-9", Some(5)),
            ("", None),
            ("3-1", None),
            ("a", None),
            ("0-4294967295", None),
        ] {
            assert_eq!(count(list), n, "{list:?}");
        }
        assert!(cpus() >= 1);
    }

    #[test]
    fn this_kernel_is_read() {
        // Not every machine has connection tracking.
        if let Ok(max) = setting::read(MAX) {
            assert!(max > 0);
        }
        let error = setting::read("net.netfilter.no_such").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
