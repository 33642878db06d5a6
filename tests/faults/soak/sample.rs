//! The measurements, one line each.

use std::{fmt, fs, str::FromStr, time::Duration};

use crate::{
    faults::fault::Mode,
    lab::{Lab, Tripod},
};

/// Defines a struct of numbers that are written side by side, in this order.
macro_rules! sample {
    ($($(#[$doc:meta])+ $name:ident,)+) => {
        /// The measurements at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Sample {
            $($(#[$doc])+ pub $name: u64,)+
        }

        impl Sample {
            pub const NAMES: &[&str] = &[$(stringify!($name)),+];

            fn numbers(&self) -> Vec<u64> {
                vec![$(self.$name),+]
            }

            fn of(mut numbers: impl Iterator<Item = u64>) -> Option<Sample> {
                Some(Sample { $($name: numbers.next()?),+ })
            }
        }
    };
}

sample! {
    /// Seconds since the beginning.
    seconds,
    /// Resident memory of the process.
    memory_kib,
    /// Open descriptors of the process.
    descriptors,
    /// Objects of the mode in the kernel, counted in lines of the listings.
    objects,
    /// Entries of connection tracking.
    flows,
    /// Changes of Services and endpoints so far.
    changes,
    /// Calls so far.
    calls,
    /// Calls that were not answered, so far.
    failed,
}

impl Sample {
    pub fn take(mode: Mode, lab: &Lab, tripod: &Tripod, since: Duration) -> Sample {
        let flows = || fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_count");
        let flows = lab.node.enter(flows).unwrap_or_default();
        Sample {
            seconds: since.as_secs(),
            memory_kib: tripod.resident_kib(),
            descriptors: tripod.descriptors() as u64,
            objects: objects(mode, lab),
            flows: flows.trim().parse().unwrap_or_default(),
            ..Sample::default()
        }
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers = self.numbers().into_iter();
        let words: Vec<_> = numbers.map(|number| number.to_string()).collect();
        f.write_str(&words.join(","))
    }
}

impl FromStr for Sample {
    type Err = String;

    fn from_str(line: &str) -> Result<Sample, String> {
        let numbers: Result<Vec<u64>, _> = line.split(',').map(str::parse).collect();
        let numbers = numbers.map_err(|error| format!("{line:?}: {error}"))?;
        Sample::of(numbers.into_iter()).ok_or_else(|| format!("{line:?} has too few numbers"))
    }
}

/// Counts the objects of a mode in the kernel, by the lines of the programs that list them.
pub fn objects(mode: Mode, lab: &Lab) -> u64 {
    let lists: &[&str] = match mode {
        Mode::Ipvs => &[
            "cat /proc/net/ip_vs",
            "ipset save",
            "ip -o addr show dev kube-ipvs0",
            "iptables-save",
            "ip6tables-save",
        ],
        Mode::Nftables => &["nft list ruleset"],
        Mode::Iptables | Mode::Redirect => &["iptables-save", "ip6tables-save"],
        Mode::Local => &[
            "ip rule",
            "ip -6 rule",
            "ip route show table all",
            "ip -6 route show table all",
        ],
    };
    let lines = lists.iter().map(|list| {
        let listed = lab.node.show(list);
        // Elements of nf_tables are listed side by side; those that expire belong to clients.
        let objects = listed.lines().flat_map(|line| line.split(", "));
        objects.filter(|one| !one.contains("expires")).count()
    });
    lines.sum::<usize>() as u64
}
