//! `tripod probe`, and the choice of the mode at start.

use std::io::Write;

use super::Done;
use crate::{
    cli::Settings,
    kernel::{Family, probe::Kernel},
    modes::{
        ModeName,
        verdict::{self, Wishes},
    },
};

/// Prints what each mode would miss here.
pub(super) fn print(settings: &Settings, json: bool) -> Done {
    let wishes = Wishes {
        transparent: true,
        ..wishes(settings)
    };
    let verdicts = verdict::verdicts(&examine(settings, &wishes), &wishes);
    let text = match json {
        true => format!("{:#}\n", verdict::json(&verdicts)),
        false => verdict::table(&verdicts),
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(())
}

/// The kernel as far as the operator's wishes concern it, without what is to be
/// left out.
fn examine(settings: &Settings, wishes: &Wishes) -> Kernel {
    Kernel::examine(&schedulers(wishes)).leaving_out(&settings.own.without)
}

/// A kernel that lacks nothing but what is to be left out.
pub(super) fn imagine(settings: &Settings, wishes: &Wishes) -> Kernel {
    Kernel::with_everything(&schedulers(wishes)).leaving_out(&settings.own.without)
}

fn schedulers(wishes: &Wishes) -> Vec<String> {
    let mut schedulers = vec!["rr".to_owned(), wishes.scheduler.clone()];
    schedulers.dedup();
    schedulers
}

/// What the settings ask of a kernel.
pub(super) fn wishes(settings: &Settings) -> Wishes {
    let configured = &settings.configuration.ipvs.scheduler;
    Wishes {
        primary: match settings.effective.prefers_ipv6 {
            true => Family::V6,
            false => Family::V4,
        },
        scheduler: match configured.as_str() {
            "" => "rr".to_owned(),
            name => name.to_owned(),
        },
        capture: settings.own.capture,
        transparent: settings.own.transparent,
    }
}

/// The mode to run.
pub(super) struct Chosen {
    pub(super) mode: ModeName,
    /// Why each better mode that was asked for is not it.
    pub(super) passed_over: Vec<String>,
    /// What it goes without itself.
    pub(super) lost: Vec<String>,
    /// What the better ones miss, in words.
    pub(super) wanting: Vec<String>,
    /// What the mode is to be made from.
    pub(super) kernel: Kernel,
}

/// The mode to run: the one asked for, or the next that can.
///
/// # Errors
/// When none can, or when the one asked for cannot and no other will do: with
/// the table of `tripod probe`.
pub(super) fn choose(settings: &Settings) -> Result<Chosen, String> {
    let wishes = wishes(settings);
    let kernel = examine(settings, &wishes);
    let wanted = settings.effective.mode;
    let choice = verdict::choose(wanted, &kernel, &wishes);
    // For people, in lines of its own; the log's line says what it is about.
    let explain = || eprint!("{}", verdict::table(&verdict::verdicts(&kernel, &wishes)));
    match choice.mode {
        None => {
            explain();
            Err("no mode can run here, see the table of what each one misses".to_owned())
        }
        Some(mode) if mode != wanted && settings.own.strict_mode => {
            explain();
            Err(format!(
                "{wanted} mode cannot run here, and --strict-proxy-mode allows no other, see the \
                 table of what each one misses"
            ))
        }
        Some(mode) => Ok(Chosen {
            mode,
            passed_over: choice.passed_over().collect(),
            lost: choice.lost().collect(),
            wanting: choice.wanting(),
            kernel,
        }),
    }
}
