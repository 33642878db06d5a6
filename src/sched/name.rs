//! Names of schedulers, as kube-proxy's `--ipvs-scheduler` and `ipvsadm -s`
//! spell them.

use std::{fmt, str::FromStr};

/// A scheduler. Parses from its IPVS name; the empty string, kube-proxy's default for
/// `--ipvs-scheduler`, means [`SchedulerName::Rr`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SchedulerName {
    /// `rr`: round robin.
    #[default]
    Rr,
    /// Weighted random; not in IPVS.
    Random,
    /// Weighted round robin.
    Wrr,
    /// `lc`: least connections.
    Lc,
    /// Weighted least connections.
    Wlc,
    /// Shortest expected delay.
    Sed,
    /// `nq`: never queue.
    Nq,
    /// `sh`: source hashing.
    Sh,
    /// `dh`: destination hashing.
    Dh,
    /// Maglev hashing of the source.
    Mh,
    /// `mh-port`: the same with the source port; in IPVS, `mh` with a flag.
    MhPort,
}

impl SchedulerName {
    /// All schedulers.
    pub const ALL: [SchedulerName; 11] = [
        SchedulerName::Rr,
        SchedulerName::Random,
        SchedulerName::Wrr,
        SchedulerName::Lc,
        SchedulerName::Wlc,
        SchedulerName::Sed,
        SchedulerName::Nq,
        SchedulerName::Sh,
        SchedulerName::Dh,
        SchedulerName::Mh,
        SchedulerName::MhPort,
    ];

    /// Returns its name on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            SchedulerName::Rr => "rr",
            SchedulerName::Random => "random",
            SchedulerName::Wrr => "wrr",
            SchedulerName::Lc => "lc",
            SchedulerName::Wlc => "wlc",
            SchedulerName::Sed => "sed",
            SchedulerName::Nq => "nq",
            SchedulerName::Sh => "sh",
            SchedulerName::Dh => "dh",
            SchedulerName::Mh => "mh",
            SchedulerName::MhPort => "mh-port",
        }
    }
}

impl fmt::Display for SchedulerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Schedulers of the kernel (`net/netfilter/ipvs/Kconfig`) that have no
/// counterpart here.
const KERNEL_ONLY: [&str; 5] = ["fo", "lblc", "lblcr", "ovf", "twos"];

/// Why a scheduler's name is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SchedulerNameError {
    /// The kernel's IPVS has it, but this package does not. A caller may continue with
    /// [`SchedulerName::Rr`] and a warning.
    #[error(
        "scheduler {name:?} exists in the kernel's IPVS only; choose one of {} outside ipvs mode",
        valid_names()
    )]
    KernelOnly {
        /// The name as given.
        name: String,
    },
    /// No scheduler has this name.
    #[error("there is no scheduler {name:?}; choose one of {}", valid_names())]
    Unknown {
        /// The name as given.
        name: String,
    },
}

fn valid_names() -> String {
    SchedulerName::ALL.map(SchedulerName::as_str).join(", ")
}

impl FromStr for SchedulerName {
    type Err = SchedulerNameError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        if name.is_empty() {
            return Ok(SchedulerName::default());
        }
        if let Some(known) = Self::ALL.into_iter().find(|known| known.as_str() == name) {
            return Ok(known);
        }
        let given = name.to_owned();
        Err(if KERNEL_ONLY.contains(&name) {
            SchedulerNameError::KernelOnly { name: given }
        } else {
            SchedulerNameError::Unknown { name: given }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_parses_to_what_it_prints() {
        for name in SchedulerName::ALL {
            assert_eq!(name.to_string().parse(), Ok(name));
        }
    }

    #[test]
    fn empty_means_round_robin() {
        assert_eq!("".parse(), Ok(SchedulerName::Rr));
    }

    #[test]
    fn kernel_only_names_say_so() {
        for name in ["lblc", "lblcr", "fo", "ovf", "twos"] {
            let error = name.parse::<SchedulerName>().unwrap_err();
            assert_eq!(error, SchedulerNameError::KernelOnly { name: name.into() });
            assert!(error.to_string().contains("kernel's IPVS only"), "{error}");
        }
    }

    #[test]
    fn an_unknown_name_lists_the_valid_ones() {
        for name in ["RR", " rr", "roundrobin", "maglev", "wrr,rr"] {
            let error = name.parse::<SchedulerName>().unwrap_err();
            assert_eq!(error, SchedulerNameError::Unknown { name: name.into() });
            let text = error.to_string();
            assert!(text.contains(&format!("{name:?}")), "{text}");
            assert!(
                text.ends_with("rr, random, wrr, lc, wlc, sed, nq, sh, dh, mh, mh-port"),
                "{text}"
            );
        }
    }
}
