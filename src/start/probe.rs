//! `tripod probe`, and the choice of the mode at start.

use std::{path::Path, thread, time::Duration};

use tokio::sync::oneshot;

use super::Done;
use crate::{
    ask,
    backoff::Backoff,
    cli::{Output, Settings},
    config::ModeName,
    kernel::probe::{Attempt, Examination, Findings, Kernel, Scope, findings},
    log_once::LogOnce,
    modes::{
        userspace::Io,
        verdict::{self, Choice, ModeRequirements},
    },
};

/// Prints what each mode lacks here.
pub(super) fn print(settings: &Settings, output: Output) -> Done {
    let requirements = ModeRequirements {
        transparent: true,
        io: match settings.own.io {
            Io::Epoll => Io::Epoll,
            Io::Auto | Io::Uring => Io::Uring,
        },
        ..requirements(settings)
    };
    let kernel = examine_last(&requirements).leaving_out(&settings.own.without);
    let verdicts = verdict::verdicts(&kernel, &requirements);
    let unidentified = kernel.unidentified();
    let mut found = verdict::json(&verdicts);
    found["unidentifiedPrograms"] = unidentified.into();
    ask::show(&found, output, |_| {
        let lines = unidentified.iter().map(|why| format!("unknown: {why}\n"));
        verdict::table(&verdicts) + &lines.collect::<String>()
    })?;
    Ok(())
}

/// Examines the kernel completely, in a single attempt.
pub(super) fn examine_last(requirements: &ModeRequirements) -> Kernel {
    examine(requirements, Scope::Everything, Attempt::Last)
}

/// Examines the kernel for these requirements.
fn examine(requirements: &ModeRequirements, scope: Scope, attempt: Attempt) -> Kernel {
    let findings = match Findings::read(Path::new(findings::PATH)) {
        Ok(findings) => findings,
        Err(error) => {
            tracing::info!("ignoring the content of {}: {error}", findings::PATH);
            None
        }
    };
    Kernel::examine(&Examination {
        schedulers: &schedulers(requirements),
        findings: findings.as_ref(),
        attempt,
        scope,
    })
}

/// Runs [`examine`] on a separate thread, because a program may hang.
async fn examined(
    requirements: &ModeRequirements,
    scope: Scope,
    attempt: Attempt,
) -> Result<Kernel, String> {
    let (sender, receiver) = oneshot::channel();
    let requirements = requirements.clone();
    let work = move || drop(sender.send(examine(&requirements, scope, attempt)));
    let spawned = thread::Builder::new().spawn(work);
    spawned.map_err(|error| format!("cannot start a thread to examine it: {error}"))?;
    let ended = |_| "the examination did not complete".to_owned();
    receiver.await.map_err(ended)
}

/// Stores the findings about this kernel for a process that may not create the network namespace
/// needed to make them.
pub(super) fn write_findings(kernel: &Kernel) {
    let path = Path::new(findings::PATH);
    let written = Findings::of(kernel).and_then(|findings| match findings {
        Some(findings) => findings.write(path),
        None => Ok(()),
    });
    if let Err(error) = written {
        tracing::info!(
            "cannot store the probe results in {}: {error}",
            findings::PATH
        );
    }
}

/// A kernel that has everything except what `--without` leaves out.
pub(super) fn imagine(settings: &Settings, requirements: &ModeRequirements) -> Kernel {
    Kernel::with_everything(&schedulers(requirements)).leaving_out(&settings.own.without)
}

fn schedulers(requirements: &ModeRequirements) -> Vec<String> {
    let mut schedulers = vec!["rr".to_owned(), requirements.scheduler.clone()];
    schedulers.dedup();
    schedulers
}

pub(super) fn requirements(settings: &Settings) -> ModeRequirements {
    let configured = &settings.configuration.ipvs.scheduler;
    ModeRequirements {
        primary: settings.effective.primary_family,
        scheduler: match configured.as_str() {
            "" => "rr".to_owned(),
            name => name.to_owned(),
        },
        capture: settings.own.capture,
        io: settings.own.io,
        transparent: settings.own.transparent,
    }
}

/// The mode to run.
pub(super) struct Chosen {
    pub(super) mode: ModeName,
    /// Why each preferred mode was passed over.
    pub(super) passed_over: Vec<String>,
    /// Features that the mode does without, and confinement (`--confine`) that this kernel refuses.
    pub(super) lost: Vec<String>,
    /// Consequences for NetworkPolicies if the mode is not the configured one and hides clients.
    pub(super) hides_clients: Option<String>,
    /// Why userspace mode serves with epoll only, if that was not requested.
    pub(super) epoll_alone: Option<String>,
    /// Features that the preferred modes lack, one word each.
    pub(super) wanting: Vec<String>,
    /// The kernel that the mode is built for.
    pub(super) kernel: Kernel,
    /// The same kernel, including the features that `--without` leaves out.
    pub(super) found: Kernel,
}

/// First pause before an inconclusive examination is repeated; it doubles.
const PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Number of attempts to determine features that are unknown and that the mode could do without.
const PATIENCE: u32 = 6;

/// Chooses the mode to run: the configured one, or the next that can run. While that is unknown,
/// because the kernel temporarily did not answer, it is examined again, and nothing on this node is
/// changed.
///
/// # Errors
/// When no mode can run, or when the requested one cannot and no other is allowed. The error
/// includes the table of `tripod probe`.
pub(super) async fn choose(settings: &Settings) -> Result<Chosen, String> {
    let requirements = requirements(settings);
    let configured = settings.effective.mode;
    let (mut attempts, mut logged) = (0, LogOnce::default());
    let mut backoff = Backoff::new(PAUSE, LONGEST_PAUSE);
    // A node in nftables mode needs no programs, not even for this examination.
    let mut scope = match configured {
        ModeName::Nftables => Scope::WithoutPrograms,
        _ => Scope::Everything,
    };
    loop {
        attempts += 1;
        let attempt = if attempts > PATIENCE {
            Attempt::Last
        } else {
            Attempt::Earlier
        };
        let unknown = match examined(&requirements, scope, attempt).await {
            Ok(found) => {
                let kernel = found.clone().leaving_out(&settings.own.without);
                let choice = verdict::choose(configured, &kernel, &requirements);
                let passed_over = choice.passed_over().next().is_some();
                if scope == Scope::WithoutPrograms && passed_over {
                    scope = Scope::Everything;
                    continue;
                }
                match choice.open() {
                    None if attempt == Attempt::Last || choice.unknown().is_empty() => {
                        return decide(settings, &requirements, choice, kernel, found);
                    }
                    None => format!(
                        "not known whether this kernel has {}",
                        choice.unknown().join(", ")
                    ),
                    Some(open) => open.to_string(),
                }
            }
            Err(error) => format!("cannot find out what this kernel can do: {error}"),
        };
        if logged.differs(&unknown) {
            tracing::warn!("{unknown}; trying again; nothing is changed until this is known");
        } else {
            tracing::debug!("{unknown}; trying again");
        }
        backoff.wait().await;
    }
}

/// Warning about NetworkPolicies if `mode` runs in place of the `configured` one and hides clients.
/// Userspace mode does so however packets are captured: it connects to endpoints itself, and
/// `--userspace-transparent` shows clients on some paths only.
fn hides_clients(configured: ModeName, mode: ModeName) -> Option<String> {
    (mode == ModeName::Userspace && configured != mode).then(|| {
        format!(
            "NetworkPolicies are not enforced for calls through Services on this node: {mode} \
             mode, which runs in place of {configured} mode, opens connections of its own to \
             endpoints, so that a network plugin sees the node as the source of every call; if \
             they must be enforced, provide what the kernel lacks for another mode (see tripod \
             probe), or set --strict-proxy-mode, with which the node then serves nothing"
        )
    })
}

fn decide(
    settings: &Settings,
    requirements: &ModeRequirements,
    choice: Choice,
    kernel: Kernel,
    found: Kernel,
) -> Result<Chosen, String> {
    let configured = settings.effective.mode;
    // The table is for people; the log line names its subject.
    let explain = || {
        eprint!(
            "{}",
            verdict::table(&verdict::verdicts(&kernel, requirements))
        )
    };
    match choice.mode {
        None => {
            explain();
            Err("no mode can run here; the table shows what each one lacks".to_owned())
        }
        Some(mode) if mode != configured && settings.own.strict_mode => {
            explain();
            Err(format!(
                "{configured} mode cannot run here, and --strict-proxy-mode allows no other; the \
                 table shows what each one lacks"
            ))
        }
        Some(mode) => Ok(Chosen {
            mode,
            passed_over: choice.passed_over().collect(),
            hides_clients: hides_clients(configured, mode),
            lost: choice.lost().chain(found.unidentified().to_vec()).collect(),
            epoll_alone: None,
            wanting: choice.missing_words(),
            kernel,
            found,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_that_hides_clients_is_warned_of_where_it_was_not_asked_for() {
        for (configured, mode, is_warned) in [
            (ModeName::Ipvs, ModeName::Userspace, true),
            (ModeName::Nftables, ModeName::Userspace, true),
            (ModeName::Userspace, ModeName::Userspace, false),
            (ModeName::Ipvs, ModeName::Iptables, false),
            (ModeName::Ipvs, ModeName::Ipvs, false),
        ] {
            let warning = hides_clients(configured, mode);
            assert_eq!(warning.is_some(), is_warned, "{configured}, {mode}");
            // Maximum length of an Event's note (`NoteLengthLimit` of
            // kubernetes/pkg/apis/core/validation/events.go).
            assert!(warning.is_none_or(|warning| warning.len() < 1024));
        }
    }
}
