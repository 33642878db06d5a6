//! What is measured, a line each.

use std::{fmt, fs, str::FromStr, time::Duration};

use crate::{
    faults::fault::Mode,
    lab::{Lab, Tripod},
};

/// What there was at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Since the beginning.
    pub seconds: u64,
    /// Resident memory of the process.
    pub memory_kib: u64,
    /// Open descriptors of the process.
    pub descriptors: u64,
    /// What the mode has in the kernel: lines that list it.
    pub objects: u64,
    /// Entries of connection tracking.
    pub flows: u64,
    /// Changes of Services and endpoints so far.
    pub changes: u64,
    /// Calls so far.
    pub calls: u64,
    /// Calls that were not answered, so far.
    pub failed: u64,
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

    fn numbers(&self) -> [u64; 8] {
        let Sample {
            seconds,
            memory_kib,
            descriptors,
            objects,
            flows,
            changes,
            calls,
            failed,
        } = *self;
        [
            seconds,
            memory_kib,
            descriptors,
            objects,
            flows,
            changes,
            calls,
            failed,
        ]
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.numbers().map(|number| number.to_string()).join(","))
    }
}

impl FromStr for Sample {
    type Err = String;

    fn from_str(line: &str) -> Result<Sample, String> {
        let numbers: Result<Vec<u64>, _> = line.split(',').map(str::parse).collect();
        let numbers = numbers.map_err(|error| format!("{line:?}: {error}"))?;
        let [
            seconds,
            memory_kib,
            descriptors,
            objects,
            flows,
            changes,
            calls,
            failed,
        ] = numbers[..]
        else {
            return Err(format!("{line:?} has {} numbers, not 8", numbers.len()));
        };
        Ok(Sample {
            seconds,
            memory_kib,
            descriptors,
            objects,
            flows,
            changes,
            calls,
            failed,
        })
    }
}

/// Counts what the kernel holds of a mode, by the lines of the programs that list it.
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
        // Elements of nf_tables stand side by side; those that expire are of clients.
        let objects = listed.lines().flat_map(|line| line.split(", "));
        objects.filter(|one| !one.contains("expires")).count()
    });
    lines.sum::<usize>() as u64
}
