//! Flags about the run of the program as a whole.

use crate::{
    cli::{
        flag::{Field, Flag, store},
        options::{Options, Version},
    },
    config::notation,
    confine::Confinement,
};

pub(super) const RUNNING: &[Flag] = &[
    Flag::text(
        "config",
        "FILE",
        |o| &mut o.config,
        "Configuration file (KubeProxyConfiguration); it overrides the flags that it can express",
    )
    .line("Configuration file; it overrides the flags that it can express")
    .common()
    .beside_file(),
    Flag::text(
        "write-config-to",
        "FILE",
        |o| &mut o.write_config_to,
        "Write the configuration from the flags and --config to this file, and do nothing else",
    )
    .beside_file(),
    Flag::switch(
        "init-only",
        |o| &mut o.init_only,
        "Do only what needs full root privileges, and store the features of the kernel in \
         /run/tripod; CAP_NET_ADMIN is then enough to serve",
    )
    .line("Do only what needs full root privileges, for a process without them")
    .common()
    .beside_file(),
    Flag::switch(
        "cleanup",
        |o| &mut o.cleanup,
        "Remove what Tripod installed, like the command cleanup",
    )
    .beside_file(),
    Flag::new(
        "confine",
        "HOW",
        Field::Set(
            |o, text| store(&mut o.own.confinement, Confinement::parse(text)),
            "capabilities",
        ),
        "How far Tripod restricts itself: to the capabilities that the mode needs, without new \
         privileges (capabilities); also to the system calls that it needs, by a seccomp filter \
         (calls); also to the files that it needs, by Landlock (files); or not at all (none)",
    )
    .beside_file(),
    Flag::int(
        "oom-score-adj",
        |o| &mut o.configuration.oom_score_adj,
        "Score for the kernel's out-of-memory killer, -1000 to 1000",
    ),
    Flag::new(
        "feature-gates",
        "GATE=BOOL,...",
        Field::Add(|o, text| notation::feature_gates(text, &mut o.configuration.feature_gates)),
        "Feature gates of kube-proxy; Tripod honours KubeProxyIPVS, \
         KubeProxyNFTablesLocalhostNodePorts and NativeHistograms",
    ),
    Flag::text(
        "machine-id-file",
        "FILES",
        |o| &mut o.machine_id_file,
        "Accepted for compatibility: nothing reads it [default: \
         /etc/machine-id,/var/lib/dbus/machine-id]",
    )
    .beside_file(),
    Flag::text(
        "boot-id-file",
        "FILES",
        |o| &mut o.boot_id_file,
        "Accepted for compatibility: nothing reads it [default: /proc/sys/kernel/random/boot_id]",
    )
    .beside_file(),
    Flag::new(
        "version",
        "raw",
        Field::SetOr(version, "true"),
        "Print the version; =raw prints all its details",
    )
    .common()
    .beside_file(),
];

fn version(options: &mut Options, text: &str) -> Result<(), String> {
    options.version = match (text, notation::boolean(text)) {
        ("raw", _) => Version::Raw,
        (_, Some(true)) => Version::Line,
        (_, Some(false)) => Version::No,
        // In kube-proxy this sets the version that it reports (`verflag` of component-base).
        (text, None) if text.starts_with('v') => Version::Reported,
        _ => return Err("it must be true, false, raw or a version like v1.36.0".to_owned()),
    };
    Ok(())
}
