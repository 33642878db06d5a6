//! Subcommands that use flags of the proxy. Help, completion and manual pages show those that
//! each of them uses. All others are accepted, because scripts give the program the same flags
//! for each job.

use clap::Command;

use super::{flags, help};

/// The short help of a subcommand shows all flags that it uses if there are at most this many.
const FEW: usize = 10;

/// The subcommands, with the flags that each of them uses.
const USED: [(&str, &[&str]); 3] = [
    // Flags that tell which virtual servers belong to other programs, and which sockets the proxy
    // was given.
    (
        "cleanup",
        &[
            "config",
            "ipvs-exclude-cidrs",
            "status-socket",
            "userspace-holder-socket",
            "v",
            "logging-format",
        ],
    ),
    // Flags that decide what the modes require of the kernel.
    (
        "probe",
        &[
            "config",
            "without",
            "bind-address",
            "ipvs-scheduler",
            "userspace-capture",
            "userspace-io",
            "v",
            "logging-format",
        ],
    ),
    // Flags about the objects, about the node, and about the rules of a mode.
    (
        "render",
        &[
            "config",
            "manifests",
            "hostname-override",
            "proxy-mode",
            "without",
            "bind-address",
            "detect-local-mode",
            "cluster-cidr",
            "pod-bridge-interface",
            "pod-interface-name-prefix",
            "nodeport-addresses",
            "masquerade-all",
            "iptables-masquerade-bit",
            "iptables-localhost-nodeports",
            "iptables-dispatch",
            "ipvs-scheduler",
            "ipvs-exclude-cidrs",
            "userspace-capture",
            "conntrack-tcp-be-liberal",
            "service-metrics",
            "feature-gates",
            "v",
            "logging-format",
        ],
    ),
];

/// Returns `command` with the flags that it uses, if it is one of [`USED`].
pub(super) fn added(command: Command) -> Command {
    let found = USED.into_iter().find(|(of, _)| *of == command.get_name());
    let Some((_, used)) = found else {
        return command;
    };
    let are_few = used.len() <= FEW;
    let command = if are_few {
        command.after_help(help::VALUES)
    } else {
        let command = command.after_help(help::MORE_FLAGS);
        command.after_long_help(help::VALUES)
    };
    let flags = flags::with_headings().filter(|(_, flag)| used.contains(&flag.name));
    command.args(flags.map(|(heading, flag)| {
        let arg = flag.arg(heading);
        arg.hide_short_help(!are_few && !flag.common)
    }))
}

/// Makes the subcommands of `program` that are in [`USED`] accept all other flags of the proxy as
/// well, without showing them.
pub(super) fn accepting_all(program: Command) -> Command {
    USED.into_iter().fold(program, |program, (name, used)| {
        program.mut_subcommand(name, |command| {
            let others = flags::with_headings().filter(|(_, flag)| !used.contains(&flag.name));
            command.args(others.map(|(heading, flag)| flag.arg(heading).hide(true)))
        })
    })
}
