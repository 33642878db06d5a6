//! Whether this process may do what its job takes. It is checked first: otherwise every part of
//! the job would report on its own that it is refused.

use caps::{CapSet, Capability};

use crate::cli::{Job, Machine};

/// Returns which privileges the job lacks, and how to get them; `None`: none, as far as is known.
pub(super) fn lacking(job: &Job) -> Option<String> {
    let (command, besides) = match job {
        Job::Serve => ("tripod", ""),
        Job::Init => ("tripod --init-only", ""),
        Job::Cleanup(_) => ("tripod cleanup", ""),
        Job::Probe(_) => ("tripod probe", ""),
        Job::Trace(_) => ("tripod trace", ""),
        Job::Migrate(migrate) if migrate.machine == Machine::Node => (
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
