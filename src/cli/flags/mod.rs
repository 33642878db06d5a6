//! Every flag: those of kube-proxy 1.36 with its names, defaults and meanings,
//! and those that only Tripod has.

mod objects;
mod observing;
mod proxying;
mod running;

pub(super) use self::{objects::hostname, observing::LOGGING};
use super::flag::Flag;

/// The flags by the headings that they have in the help.
const GROUPS: [(&str, &[Flag]); 9] = [
    ("Objects", objects::OBJECTS),
    ("Proxying", proxying::PROXYING),
    ("iptables mode", proxying::IPTABLES),
    ("ipvs mode", proxying::IPVS),
    ("Userspace mode", proxying::USERSPACE),
    ("Connection tracking of the kernel", proxying::CONNTRACK),
    ("Observing", observing::OBSERVING),
    ("Logging", LOGGING),
    ("Running", running::RUNNING),
];

/// The headings of which each flag has an effect even if there is a configuration file.
const BESIDE_FILE: [&str; 2] = ["Userspace mode", "Logging"];

/// Returns whether the flag below that heading has an effect even if there is a configuration file.
pub(super) fn is_beside_file((heading, flag): &(&'static str, &'static Flag)) -> bool {
    flag.beside_file || BESIDE_FILE.contains(heading)
}

/// Returns every flag, in the order of the help.
pub(super) fn all() -> impl Iterator<Item = &'static Flag> {
    with_headings().map(|(_, flag)| flag)
}

/// Returns every flag with its heading, in the order of the help.
pub(super) fn with_headings() -> impl Iterator<Item = (&'static str, &'static Flag)> {
    let of_group = |(heading, flags): (&'static str, &'static [Flag])| {
        flags.iter().map(move |flag| (heading, flag))
    };
    GROUPS.into_iter().flat_map(of_group)
}
