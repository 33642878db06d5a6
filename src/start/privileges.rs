//! Checks the privileges that the job needs. This is checked first: otherwise every part of the job
//! would report its own refusal.

use caps::{CapSet, Capability};

use crate::cli::Job;

/// Message about the privileges that the job lacks, and how to get them; `None` if it lacks none,
/// as far as known.
pub(super) fn lacking(job: &Job) -> Option<String> {
    let (command, besides) = match job {
        Job::Serve => ("tripod", ""),
        Job::Init => ("tripod --init-only", ""),
        Job::Cleanup(_) => ("tripod cleanup", ""),
        Job::Probe(_) => ("tripod probe", ""),
        Job::Trace(_) => ("tripod trace", ""),
        Job::Migrate(migrate) if migrate.is_of_this_machine() => (
            "tripod migrate",
            "; with --without-node, it compares configurations without them",
        ),
        _ => return None,
    };
    let may = caps::has_cap(None, CapSet::Effective, Capability::CAP_NET_ADMIN);
    (!may.unwrap_or(true)).then(|| {
        format!(
            "{command} needs the privileges of root, at least CAP_NET_ADMIN: run it as root, for \
             example with sudo, or in a container with capabilities.add: [NET_ADMIN, NET_RAW]{besides}"
        )
    })
}
