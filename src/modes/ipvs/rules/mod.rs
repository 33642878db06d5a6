//! The rules of one family, and which of them are known to be applied.

mod tables;
mod writer;

use std::time::Duration;

use net::Family;
use xtables::{Engine, sync_watch::SyncWatch};

pub use self::writer::RuleWriter;
use self::{
    tables::Previous,
    writer::{LONGEST_WAIT, Outcome, Read, SHORT_WAIT},
};
use super::{
    Error,
    cleanup::OWNED,
    plan::{NodeContext, NonEmptySets},
};
use crate::modes::Difference;

/// The rules of one family.
pub struct FamilyRules {
    family: Family,
    /// An error: why nothing can write rules of this family, so that its Services are not served.
    writer: Result<RuleWriter, String>,
    /// Notices changes by others.
    watch: Option<SyncWatch>,
    in_force: InForce,
    /// Repaired changes of other programs.
    repaired: Vec<String>,
}

/// State of the rules in the kernel, as far as known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct InForce {
    /// Sets that the rules known to be applied match against; `None`: no rules are known to be
    /// applied.
    sets: Option<NonEmptySets>,
    /// Why the rules are not as they should be.
    failure: Option<String>,
    /// Why table mangle could not be read when the other rules were applied.
    unread: Option<String>,
    /// How many attempts to write rules failed since that was asked last.
    failures: u32,
}

impl InForce {
    /// Records that the rules for the case that the `non_empty` sets have members are being
    /// written: from now on, the kernel may have any of these rules or of the former ones.
    fn changing_to(&mut self, non_empty: NonEmptySets) {
        self.sets = self.sets.map(|before| before & non_empty);
    }

    /// Records that the rules for the case that the `non_empty` sets have members are applied,
    /// apart from those of a table that is `unread`.
    fn set(&mut self, non_empty: NonEmptySets, unread: Option<String>) {
        self.sets = Some(non_empty);
        self.failure = None;
        self.unread = unread;
    }

    /// Records that an attempt to read and write rules failed.
    fn attempt_failed(&mut self, why: String, previous: Previous) {
        self.failures = self.failures.saturating_add(1);
        self.failed(why, previous);
    }

    /// Records that rules could not be read or written, or not yet.
    fn failed(&mut self, why: String, previous: Previous) {
        self.failure = Some(why);
        if previous == Previous::Lost {
            self.sets = None;
        }
    }
}

impl FamilyRules {
    /// Starts with rules of `family` of which none are known to be applied; `writer` may be the
    /// reason why no program can write them.
    pub fn new(family: Family, writer: Result<RuleWriter, String>) -> FamilyRules {
        let engine = writer.as_ref().ok().map(RuleWriter::engine);
        FamilyRules {
            family,
            watch: engine.map(|engine| SyncWatch::new(family, engine, &OWNED)),
            writer,
            in_force: InForce::default(),
            repaired: Vec::new(),
        }
    }

    /// Returns why nothing can write rules, without which Services are not served; `None`: they can
    /// be written.
    pub fn unserved(&self) -> Option<&String> {
        self.writer.as_ref().err()
    }

    /// Returns the engine that the rules are in, or `None` where there are none.
    pub fn engine(&self) -> Option<Engine> {
        self.writer.as_ref().ok().map(RuleWriter::engine)
    }

    /// The sets that the rules known to be applied match against; `None`: no rules are known to be
    /// applied.
    pub fn in_force(&self) -> Option<NonEmptySets> {
        self.in_force.sets
    }

    /// Returns why the rules are not as they should be.
    pub fn failure(&self) -> Option<&str> {
        let InForce {
            failure, unread, ..
        } = &self.in_force;
        failure.as_deref().or(unread.as_deref())
    }

    /// Message about rules that could not be written; `None` if they are applied, or if no program
    /// writes them: then only frontends that need rules are reported.
    pub fn unwritten(&self) -> Option<String> {
        self.writer.as_ref().ok()?;
        let why = self.failure()?;
        Some(format!(
            "the {} rules could not be written and are tried again; addresses that need them and \
             are not open yet wait: {why}",
            self.family
        ))
    }

    /// Returns how many attempts to write rules failed since the last call.
    pub fn take_failures(&mut self) -> u32 {
        std::mem::take(&mut self.in_force.failures)
    }

    /// Returns, once, the repaired changes of other programs.
    pub fn take_repaired(&mut self) -> Vec<String> {
        std::mem::take(&mut self.repaired)
    }

    /// Returns false if another process changed the applied rules, as far as that can be seen
    /// without reading them.
    pub fn is_unmodified(&mut self) -> bool {
        let InForce { sets, failure, .. } = &self.in_force;
        let settled = self.next_check().is_none() && sets.is_some() && failure.is_none();
        let watch = self.watch.as_mut().filter(|_| settled);
        watch.is_none_or(SyncWatch::is_unmodified)
    }

    /// Must be called `before` and after others in this process write rules.
    pub fn expect_changes(&mut self, before: bool) {
        if let Some(watch) = &mut self.watch {
            watch.expect_changes(before);
        }
    }

    /// Returns how soon another sync should see whether rules were written; `None`: no request is
    /// under way or due for a retry.
    pub fn next_check(&self) -> Option<Duration> {
        self.writer.as_ref().ok()?.next_check()
    }

    /// Asks for the rules, before anything is opened: for sets that are `needed`, or had members
    /// until now. On a full sync, `observed` are the sets that have members in the kernel, and the
    /// applied rules are read again.
    pub fn ask(
        &mut self,
        node: &NodeContext,
        needed: NonEmptySets,
        observed: Option<NonEmptySets>,
    ) {
        let outcome = self.writer.as_mut().ok().and_then(RuleWriter::poll);
        self.answered(outcome);
        let before = self.in_force.sets.unwrap_or_default();
        let non_empty = needed | before | observed.unwrap_or_default();
        let read = observed.map_or(Read::IfTheyDiffer, |_| Read::Always);
        match &mut self.writer {
            Ok(writer) => {
                if writer.ask(node, non_empty, read) {
                    self.in_force.changing_to(non_empty);
                }
            }
            Err(why) => self.in_force.failed(why.clone(), Previous::Lost),
        }
    }

    /// Waits for the requested rules: longer if none are known to be applied, since nothing can be
    /// opened then.
    pub async fn wait(&mut self) {
        let Ok(writer) = &mut self.writer else {
            return;
        };
        let longest = self.in_force.sets.map_or(LONGEST_WAIT, |_| SHORT_WAIT);
        let outcome = writer.wait(longest).await;
        if outcome.is_none() && writer.is_overdue() {
            let why = "the program that writes them does not end".to_owned();
            self.in_force.failed(why, Previous::InForce);
        }
        self.answered(outcome);
    }

    /// Does the last step of taking over from iptables mode, if there is one: virtual
    /// servers and addresses are there now.
    ///
    /// # Errors
    /// When the rules could not be written, or the program does not end.
    pub async fn take_over(&mut self) -> Result<(), Error> {
        let (Some(non_empty), Ok(writer)) = (self.in_force.sets, &mut self.writer) else {
            return Ok(());
        };
        if !writer.ask_to_take_over(non_empty) {
            return Ok(());
        }
        let source = match writer.wait(LONGEST_WAIT).await {
            Some(Outcome::InForce { .. }) => return Ok(()),
            Some(Outcome::Failed { error, .. }) => error,
            None => writer.unanswered(),
        };
        self.in_force
            .attempt_failed(source.to_string(), Previous::Lost);
        Err(Error::Rules {
            family: self.family,
            source,
        })
    }

    /// Removes the rules for sets that are no longer `needed`, when everything else has
    /// been removed. Rules that stay when this fails match nothing.
    pub async fn remove_unneeded(&mut self, node: &NodeContext, needed: NonEmptySets) {
        let Ok(writer) = &mut self.writer else {
            return;
        };
        let in_force = self.in_force.sets;
        if in_force.is_none_or(|in_force| needed.is_superset(in_force)) {
            return;
        }
        if writer.ask(node, needed, Read::IfTheyDiffer) {
            self.in_force.changing_to(needed);
            let outcome = writer.wait(SHORT_WAIT).await;
            self.answered(outcome);
        }
    }

    /// Returns how the rules in the kernel differ from those for the case that the
    /// `non_empty` sets have members; nothing where no rules can be written.
    ///
    /// # Errors
    /// When the program failed.
    pub async fn compare(
        &self,
        node: &NodeContext,
        non_empty: NonEmptySets,
    ) -> Result<Vec<Difference>, Error> {
        let Ok(writer) = &self.writer else {
            return Ok(Vec::new());
        };
        let family = self.family;
        let compared = writer.compare(node, non_empty).await;
        compared.map_err(|source| Error::Rules { family, source })
    }

    fn answered(&mut self, outcome: Option<Outcome>) {
        match outcome {
            Some(Outcome::InForce {
                sets,
                repaired,
                unread,
            }) => {
                self.in_force.set(sets, unread.map(|why| why.to_string()));
                if let Some(watch) = &mut self.watch {
                    watch.record();
                }
                let family = self.family;
                let named = repaired.iter().map(|what| format!("{what} ({family})"));
                self.repaired.extend(named);
            }
            Some(Outcome::Failed { error, previous }) => {
                self.in_force.attempt_failed(error.to_string(), previous);
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modes::ipvs::plan::Set;

    #[test]
    fn a_failure_leaves_what_was_in_force_unless_that_is_lost() {
        let non_empty = |sets: &[Set]| -> NonEmptySets { sets.iter().copied().collect() };
        let locked = || "locked".to_owned();
        let old = non_empty(&[Set::LoadBalancer]);
        let new = non_empty(&[Set::LoadBalancer, Set::Firewall]);
        let mut rules = InForce::default();
        rules.attempt_failed(locked(), Previous::InForce);
        assert_eq!(rules.sets, None, "what was never read is not known");
        rules.set(old, None);
        assert_eq!((&rules.failure, rules.failures), (&None, 1));
        rules.changing_to(new);
        rules.failed(locked(), Previous::InForce);
        assert_eq!((rules.sets, &rules.failure), (Some(old), &Some(locked())));
        rules.set(new, None);
        // Some rules are removed, and added again before it is known that they were removed.
        rules.changing_to(old);
        rules.failed(locked(), Previous::InForce);
        assert_eq!(rules.sets, Some(old));
        rules.failed("flushed, and locked".to_owned(), Previous::Lost);
        assert_eq!(rules.sets, None);
    }
}
