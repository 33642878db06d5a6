//! Abilities of this kernel with these privileges and in this container. They are found out by
//! trying, in a temporary network namespace, or with temporary objects where none can be made.
//! Version numbers prove nothing: vendors leave features out and backport others.

mod ability;
mod answer;
mod cleanup;
pub mod findings;
mod ipvs;
mod leave_out;
mod nft_part;
mod nftables;
mod sockets;
mod tries;

use std::{collections::BTreeMap, thread};

use enumset::EnumSet;
use net::{Family, PerFamily};
use netlink::scratch::{NoScratch, in_scratch};
use nix::errno::Errno;
pub use xtables::extension::Extension;
use xtables::{
    Toolkit,
    features::{Features, Probed},
    run::Writer,
};

use self::answer::{Tried, Unable};
pub use self::{
    ability::{Ability, Setting},
    cleanup::cleanup,
    findings::Findings,
    leave_out::LeaveOut,
    nft_part::NftPart,
};

/// The abilities that were found: the only view of the kernel that verdicts and modes have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kernel {
    /// The outcome for each ability that was tried.
    tried: BTreeMap<Ability, Tried>,
    /// The programs for table nat; where nothing works for that, those whose rules find sockets.
    writers: PerFamily<Option<Writer>>,
    /// Why the engine of some programs is unknown.
    unidentified: Vec<String>,
    /// Whether abilities were tried in a network namespace of their own.
    isolated: bool,
}

/// Parameters of an examination, and earlier findings.
#[derive(Clone, Copy, Debug, Default)]
pub struct Examination<'a> {
    /// Schedulers of IPVS to try.
    pub schedulers: &'a [String],
    /// Findings of another process, which are used if this process cannot create a network
    /// namespace; `None` if there are none.
    pub findings: Option<&'a Findings>,
    /// Whether further attempts may follow.
    pub attempt: Attempt,
    /// The part of the kernel that is examined.
    pub scope: Scope,
}

/// An attempt to find out what a kernel can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Attempt {
    /// Another attempt may follow, which repeats unanswered questions.
    #[default]
    Earlier,
    /// The last one: of two iptables programs the one that works is taken, even if the other one
    /// did not answer.
    Last,
}

/// The part of a kernel that is examined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// Everything that any mode uses.
    #[default]
    Everything,
    /// All that can be tried without starting a program: enough for nftables mode.
    WithoutPrograms,
}

impl Kernel {
    /// Tries everything. Takes some tenths of a second, in a separate thread; the caller's thread
    /// waits.
    pub fn examine(examination: &Examination<'_>) -> Kernel {
        let mut kernel = Kernel::default();
        kernel.record(Ability::NetAdmin, tries::net_admin());
        let place = in_scratch(|| ());
        // A process that can make a namespace needs no findings of another.
        let isolated = !matches!(place, Err(NoScratch::Impossible(_)));
        let findings = examination.findings.filter(|_| !isolated);
        // It runs in a separate thread, because it has a runtime of its own.
        let rules = thread::scope(|scope| {
            let work = || match examination.scope {
                Scope::Everything => tries::xtables(findings, examination.attempt),
                Scope::WithoutPrograms => Kernel::default(),
            };
            let worker = thread::Builder::new().spawn_scoped(scope, work);
            let objects = || tries::objects(examination, findings);
            let tried = match place.and_then(|()| in_scratch(objects)) {
                Ok(tried) => tried,
                // Without CAP_SYS_ADMIN, as in a container that has CAP_NET_ADMIN alone, abilities
                // are tried in the current namespace, with objects under Tripod's own names that
                // are removed at once. Without CAP_NET_ADMIN each try is refused.
                Err(NoScratch::Impossible(_)) => objects(),
                Err(NoScratch::ForNow(why)) => tries::nothing_known(examination.schedulers, &why),
            };
            kernel.tried.extend(tried.tried);
            match worker {
                Ok(worker) => worker
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                Err(error) => tries::no_rules_known(&error.to_string()),
            }
        });
        kernel.tried.extend(rules.tried);
        // IPVS has its settings once its module is loaded.
        for setting in Setting::ALL {
            kernel.record(Ability::Setting(setting), tries::setting(setting));
        }
        Kernel {
            tried: kernel.tried,
            isolated,
            ..rules
        }
    }

    fn record(&mut self, ability: Ability, outcome: Tried) {
        self.tried.insert(ability, outcome);
    }

    /// Explains why the ability cannot be used: it is missing, or it is unknown whether it is
    /// there; `None` if it can be used.
    pub fn why_unusable(&self, ability: &Ability) -> Option<&str> {
        match self.tried.get(ability) {
            Some(Ok(())) => None,
            Some(Err(Unable::Missing(why) | Unable::Unknown(why))) => Some(why),
            None => Some("was not tried"),
        }
    }

    /// Explains why it is unknown whether the ability is there; `None` if it is known.
    pub fn unknown(&self, ability: &Ability) -> Option<&str> {
        match self.tried.get(ability) {
            Some(Err(Unable::Unknown(why))) => Some(why),
            _ => None,
        }
    }

    /// The reasons why the kernel engine of some iptables programs is unknown.
    pub fn unidentified(&self) -> &[String] {
        &self.unidentified
    }

    /// Returns whether this kernel is known to have the ability.
    pub fn can(&self, ability: &Ability) -> bool {
        self.why_unusable(ability).is_none()
    }

    /// Returns a kernel that can do everything, with these schedulers of IPVS, to ask what [would
    /// happen](Kernel::without) without some ability.
    pub fn with_everything(schedulers: &[String]) -> Kernel {
        let all = Ability::all(schedulers).into_iter();
        Kernel {
            tried: all.map(|ability| (ability, Ok(()))).collect(),
            ..Kernel::default()
        }
    }

    /// Returns the same kernel with simulated programs, which use `engine`.
    #[cfg(test)]
    pub(crate) fn with_simulated_programs(mut self, engine: xtables::Engine) -> Kernel {
        let writer = |family| Writer {
            xtables: xtables::Xtables::in_folder(family, std::path::Path::new("/nowhere")),
            engine,
        };
        self.writers = PerFamily::each(|family| Some(writer(family)));
        self
    }

    /// Returns the same kernel with the iptables programs that use this engine, where there are
    /// such.
    #[cfg(test)]
    pub(crate) async fn with_programs(mut self, engine: xtables::Engine) -> Kernel {
        for family in Family::ALL {
            let engines = xtables::Xtables::engines(family).await;
            *self.writers.get_mut(family) = engines.writer(engine).cloned();
        }
        self
    }

    /// Returns the same kernel without one of its abilities, to see what would follow.
    #[must_use]
    pub fn without(mut self, ability: &Ability) -> Kernel {
        let why = "taken away".to_owned();
        self.record(ability.clone(), Err(Unable::Missing(why)));
        self
    }

    /// Returns the same kernel, but with the ability unknown.
    #[cfg(test)]
    pub(crate) fn with_unknown(mut self, ability: &Ability) -> Kernel {
        let why = "Cannot allocate memory".to_owned();
        self.record(ability.clone(), Err(Unable::Unknown(why)));
        self
    }

    /// The matches and targets that iptables rules of that family may use.
    pub fn features(&self, family: Family) -> Features {
        let all = EnumSet::all().into_iter();
        all.filter(|extension| self.can(&Ability::Extension(family, *extension)))
            .collect()
    }

    /// Returns iptables or ip6tables, with the matches and targets that its rules may use.
    ///
    /// # Errors
    /// When there is none that works.
    pub fn toolkit(&self, family: Family) -> Result<Toolkit, xtables::Error> {
        let unusable = |reason: &str| xtables::Error::Unusable {
            family,
            reason: reason.to_owned(),
        };
        if let Some(why) = self.unknown(&Ability::Nat(family)) {
            let reason = why.to_owned();
            return Err(xtables::Error::Unknown { family, reason });
        }
        if let Some(why) = self.why_unusable(&Ability::Nat(family)) {
            return Err(unusable(why));
        }
        let writer = self.writers.get(family).clone();
        Ok(Toolkit {
            writer: writer.ok_or_else(|| unusable("it was not tried"))?,
            features: self.features(family),
        })
    }

    /// Returns the program for rules that mark packets for Tripod's own sockets.
    ///
    /// # Errors
    /// When there is none; the error says why.
    pub fn marker(&self, family: Family) -> Result<Writer, String> {
        for extension in [Extension::Socket, Extension::Mark] {
            let ability = Ability::Extension(family, extension);
            if let Some(why) = self.why_unusable(&ability) {
                let remedy = ability.remedy();
                return Err(format!(
                    "it needs iptables with {} in table mangle ({why}; {remedy})",
                    extension.spelling()
                ));
            }
        }
        let found = self.writers.get(family).clone();
        found.ok_or_else(|| "it was not tried".to_owned())
    }

    /// Records the features for rules of `family`, or why there can be no rules.
    fn set_features(&mut self, family: Family, found: Result<Probed, Unable>) {
        for extension in EnumSet::all() {
            let outcome = match found.clone() {
                Ok(probed) if probed.there.contains(extension) => Ok(()),
                Ok(probed) if probed.unknown.contains(extension) => {
                    Err(Unable::Unknown(probed.why.unwrap_or_default()))
                }
                Ok(_) => Err(Unable::Missing("a rule with it was refused".to_owned())),
                Err(Unable::Missing(_)) => {
                    let why = "there is no nat table to use it in";
                    Err(Unable::Missing(why.to_owned()))
                }
                Err(unknown) => Err(unknown),
            };
            self.record(Ability::Extension(family, extension), outcome);
        }
    }
}

/// Returns an error number in words, for reasons. Linux answers with any of the first ones where a
/// part of it was not built or is not loaded.
fn words(errno: Errno) -> String {
    let words = match errno {
        Errno::ENOENT
        | Errno::EOPNOTSUPP
        | Errno::EPROTONOSUPPORT
        | Errno::EAFNOSUPPORT
        | Errno::ESOCKTNOSUPPORT
        | Errno::ENOPROTOOPT => "not in this kernel",
        other => other.desc(),
    };
    words.to_owned()
}
