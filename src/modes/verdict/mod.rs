//! Which modes can run on a kernel, and which capabilities each would miss.
//!
//! Pure: follows from the findings of [`Kernel`] and from the operator's requirements.

mod needs;
mod table;
#[cfg(test)]
mod tests;

use std::fmt;

use net::Family;
use serde::Serialize;

pub use self::table::{json, table};
use crate::{
    config::ModeName,
    kernel::probe::{Ability, Kernel},
    modes::userspace::{Io, capture::Requested},
};

/// Requirements of the operator's settings on a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModeRequirements {
    /// The family that the node must have; the other one may be missing.
    pub primary: Family,
    /// The scheduler of Services that name none.
    pub scheduler: String,
    /// How userspace mode gets its packets.
    pub capture: Requested,
    /// How userspace mode receives and sends.
    pub io: Io,
    /// Whether userspace mode shows clients to endpoints.
    pub transparent: bool,
}

/// Something that a kernel lacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MissingCapability {
    /// One word for it, see [`Ability::word`].
    pub name: String,
    /// A description for people.
    pub what: String,
    /// The kernel's answer when it was tried.
    pub why: String,
    /// Its purpose, or the consequence of its absence.
    #[serde(rename = "for")]
    pub effect: String,
    /// How to get it.
    pub remedy: String,
}

/// Whether a mode can run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The mode that is judged.
    pub mode: ModeName,
    /// Missing capabilities without which the mode cannot run.
    pub missing: Vec<MissingCapability>,
    /// Missing capabilities without which the mode works less well.
    pub lost: Vec<MissingCapability>,
    /// Capabilities that could not be tried, for a temporary reason.
    pub unknown: Vec<MissingCapability>,
    /// Whether some of the unknown ones decide whether the mode can run, or how it works with the
    /// known ones; then they must be tried again.
    pub undecided: bool,
}

impl Verdict {
    /// Returns true if the mode can run.
    pub fn can_run(&self) -> bool {
        self.missing.is_empty() && !self.undecided
    }

    /// Returns true if it is not known whether the mode can run.
    pub fn is_open(&self) -> bool {
        self.missing.is_empty() && self.undecided
    }
}

/// Returns the verdict on each mode, best first.
pub fn verdicts(kernel: &Kernel, requirements: &ModeRequirements) -> Vec<Verdict> {
    ModeName::ALL
        .into_iter()
        .map(|mode| verdict(mode, kernel, requirements))
        .collect()
}

/// Judges whether `mode` can run on `kernel`, and which capabilities it would lack.
pub fn verdict(mode: ModeName, kernel: &Kernel, requirements: &ModeRequirements) -> Verdict {
    let mut verdict = Verdict {
        mode,
        missing: Vec::new(),
        lost: Vec::new(),
        unknown: Vec::new(),
        undecided: false,
    };
    for need in needs::needs(mode, kernel, requirements) {
        let Some(why) = kernel.why_unusable(&need.ability) else {
            continue;
        };
        let missing = MissingCapability {
            name: need.ability.word().into_owned(),
            what: need.ability.to_string(),
            why: why.to_owned(),
            effect: need.effect.to_owned(),
            remedy: need.ability.remedy(),
        };
        if kernel.unknown(&need.ability).is_some() {
            verdict.undecided |= need.weight != Weight::Useful;
            verdict.unknown.push(missing);
        } else if need.weight == Weight::Required {
            verdict.missing.push(missing);
        } else {
            verdict.lost.push(missing);
        }
    }
    verdict
}

/// Why the mode cannot run, or why that is not known, in a sentence.
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_open() {
            let unknown: Vec<_> = self
                .unknown
                .iter()
                .map(MissingCapability::in_short)
                .collect();
            let mode = self.mode;
            return write!(
                f,
                "not known whether {mode} mode can run here: {}",
                unknown.join(", ")
            );
        }
        let missing: Vec<_> = self
            .missing
            .iter()
            .map(MissingCapability::with_remedy)
            .collect();
        write!(
            f,
            "{} mode cannot run here: it needs {}",
            self.mode,
            missing.join(", ")
        )
    }
}

impl MissingCapability {
    fn in_short(&self) -> String {
        format!("{} ({})", self.what, self.why)
    }

    fn with_remedy(&self) -> String {
        format!("{} ({}; {})", self.what, self.why, self.remedy)
    }
}

/// The mode that runs instead of the requested one, or the requested one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The mode to run; `None`: none can, or it is [open](Choice::open).
    pub mode: Option<ModeName>,
    /// The verdicts on it and on those that were passed over for it.
    pub verdicts: Vec<Verdict>,
}

/// Chooses the requested mode, or the next one that can run. No mode is passed over because of
/// unknown capabilities.
pub fn choose(requested: ModeName, kernel: &Kernel, requirements: &ModeRequirements) -> Choice {
    let mut considered = Vec::new();
    let from_requested = ModeName::ALL.into_iter();
    for mode in from_requested.skip_while(|mode| *mode != requested) {
        let verdict = verdict(mode, kernel, requirements);
        let (can_run, is_open) = (verdict.can_run(), verdict.is_open());
        considered.push(verdict);
        if can_run || is_open {
            return Choice {
                mode: can_run.then_some(mode),
                verdicts: considered,
            };
        }
    }
    Choice {
        mode: None,
        verdicts: considered,
    }
}

impl Choice {
    /// The verdict on a mode that may be able to run, while all better ones cannot. The
    /// capabilities must be tried again before anything is decided.
    pub fn open(&self) -> Option<&Verdict> {
        self.verdicts.iter().find(|verdict| verdict.is_open())
    }

    /// Unknown capabilities that the chosen mode would use, and could do without.
    pub fn unknown(&self) -> Vec<String> {
        let chosen = self.verdicts.iter().filter(|verdict| verdict.can_run());
        let unknown = chosen.flat_map(|verdict| &verdict.unknown);
        unknown.map(MissingCapability::in_short).collect()
    }

    /// Capabilities that the chosen mode does without: a line for each.
    pub fn lost(&self) -> impl Iterator<Item = String> {
        let chosen = self.verdicts.iter().filter(|verdict| verdict.can_run());
        chosen.flat_map(|verdict| {
            verdict.lost.iter().chain(&verdict.unknown).map(|missing| {
                let (mode, effect) = (verdict.mode, &missing.effect);
                format!(
                    "{mode} mode runs without {}: {effect}",
                    missing.with_remedy()
                )
            })
        })
    }

    /// Capabilities that the modes that were passed over miss, a word for each: few enough for a
    /// label of a metric.
    pub fn missing_words(&self) -> Vec<String> {
        let mut words: Vec<String> = Vec::new();
        for missing in self.verdicts.iter().flat_map(|verdict| &verdict.missing) {
            if !words.contains(&missing.name) {
                words.push(missing.name.clone());
            }
        }
        words
    }

    /// Returns why each better mode was passed over: a line for each.
    pub fn passed_over(&self) -> impl Iterator<Item = String> {
        let verdicts = self.verdicts.iter();
        let verdicts = verdicts.filter(|verdict| !verdict.missing.is_empty());
        verdicts.map(Verdict::to_string)
    }
}

/// One thing that a mode needs.
struct Need {
    weight: Weight,
    ability: Ability,
    effect: &'static str,
}

impl Need {
    fn new(weight: Weight, ability: Ability, effect: &'static str) -> Need {
        Need {
            weight,
            ability,
            effect,
        }
    }
}

/// Weight of a capability for a mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weight {
    /// Whether the mode runs.
    Required,
    /// How the mode works: without it, the mode runs differently.
    Decisive,
    /// Only which features the mode has.
    Useful,
}
