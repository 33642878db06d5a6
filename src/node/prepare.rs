//! Settings that are made on a node before it serves.

use std::{fs, io};

use netlink::{
    conntrack,
    setting::{self, Setting},
};

use crate::{
    config::KubeProxyConfiguration,
    events::{Event, Recorder, Regarding, Severity},
};

/// The kernel's setting for which process is killed first when memory runs out (proc(5)).
const OOM_SCORE_ADJ: &str = "/proc/self/oom_score_adj";

/// Sets how early the kernel kills this process when memory runs out; a failure is logged. A lower
/// value takes CAP_SYS_RESOURCE, which few processes have.
pub fn set_oom_score(score: i32) {
    match fs::write(OOM_SCORE_ADJ, score.to_string()) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => tracing::debug!(
            "cannot set oomScoreAdj {score}, because this process lacks the privilege: \
             {OOM_SCORE_ADJ}: {error}"
        ),
        Err(error) => {
            tracing::info!("cannot set oomScoreAdj {score}: {OOM_SCORE_ADJ}: {error}");
        }
    }
}

/// Sets the limits and timeouts of connection tracking. Settings that cannot be made are logged,
/// and do not prevent the start. Returns the settings that hold from now on, without those that
/// this kernel, or this container, does not allow.
pub fn prepare(configuration: &KubeProxyConfiguration, recorder: &Recorder) -> Vec<Setting> {
    let configured = &configuration.conntrack;
    let options = conntrack::Options {
        max_per_core: u32::try_from(configured.max_per_core).unwrap_or(0),
        min: u32::try_from(configured.min).unwrap_or(0),
        tcp_established: configured.tcp_established_timeout,
        tcp_close_wait: configured.tcp_close_wait_timeout,
        tcp_be_liberal: configured.tcp_be_liberal,
        udp: configured.udp_timeout,
        udp_stream: configured.udp_stream_timeout,
    };
    let mut plan = conntrack::plan(&options, conntrack::cpus());
    for unset in conntrack::apply(&plan, setting::read, setting::write) {
        if unset.is_missing() {
            // It belongs to a module that may be loaded later.
            tracing::debug!("{unset}");
            continue;
        }
        tracing::warn!("{unset}");
        plan.retain(|setting| *setting != unset.setting);
        if unset.is_forbidden() {
            recorder.post(Event {
                regarding: Regarding::ThisNode,
                severity: Severity::Warning,
                reason: "ReadOnlySysctl",
                action: "SetConntrack",
                note: unset.to_string(),
            });
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use caps::{CapSet, Capability};

    use super::*;
    use crate::log::lines;

    #[test]
    fn that_the_oom_score_may_not_be_set_is_for_those_who_look() {
        let test = || {
            // Rights of this thread; an ordinary user has none.
            let _ = caps::drop(None, CapSet::Effective, Capability::CAP_SYS_RESOURCE);
            let log = |verbosity| lines(verbosity, || set_oom_score(-998));
            assert_eq!(log(0), [""; 0]);
            let detailed = log(4);
            assert!(detailed.len() == 1, "{detailed:?}");
            assert!(detailed[0].contains("cannot set oomScoreAdj -998"));
        };
        std::thread::spawn(test).join().expect("no panic");
    }
}
