//! The rules of one family, in the kernel.

use hashbrown::HashMap;

use super::ruleset::{self, Batch, Saved};
use crate::{
    kernel::xtables::{Error, Xtables, rule::Table},
    modes::ipvs::plan::Rules,
    net::Family,
};

/// What became of the rules that were in force before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Previous {
    /// They are in force still.
    InForce,
    /// Some of them are known to be gone.
    Lost,
}

/// iptables or ip6tables, and what of ours is in force there.
#[derive(Debug)]
pub struct Tables {
    family: Family,
    xtables: Xtables,
    /// What was in force when that was last known.
    in_force: Option<Rules>,
    /// What a write that failed was to put in force; some of it may be.
    attempted: Option<Rules>,
    /// What became of the rules that were in force before.
    previous: Previous,
    /// What the program said right after it had written rules, where it words
    /// them otherwise than we do.
    reworded: Option<(Rules, HashMap<Table, Saved>)>,
    /// What is to be written when the virtual servers are there: iptables mode
    /// carries the traffic until then, by a chain of the same name.
    later: Option<(String, Rules)>,
}

impl Tables {
    /// Those of `family`, as these programs show them.
    pub fn new(family: Family, xtables: Xtables) -> Tables {
        Tables {
            family,
            xtables,
            in_force: None,
            attempted: None,
            previous: Previous::InForce,
            reworded: None,
            later: None,
        }
    }

    /// Returns what became of the rules that were in force before, as far as they
    /// could not be put back.
    pub fn previous(&self) -> Previous {
        self.previous
    }

    /// Returns true if [`take_over`](Self::take_over) has something to do.
    pub fn takes_over_later(&self) -> bool {
        self.later.is_some()
    }

    /// Reads the tables, and puts `rules` in force where they are not. Each table
    /// takes effect at once. Returns what was in force before and another program
    /// changed.
    ///
    /// # Errors
    /// When the program failed; the next call reads what is in force.
    pub async fn ensure(&mut self, rules: Rules) -> Result<Vec<String>, Error> {
        let family = self.family;
        let saved = self.saved(&rules).await?;
        let changed = self.changed(&saved);
        self.previous = if changed.is_empty() {
            Previous::InForce
        } else {
            Previous::Lost
        };
        let Batch { text, .. } = ruleset::difference(&rules, &saved, family);
        if text.is_empty() || self.is_reworded(&rules, &saved) {
            self.is_in_force(rules);
            return Ok(Vec::new());
        }
        self.attempted = Some(rules.clone());
        if before_ours(&saved) {
            let (now, later) = nat_last(&text);
            if !now.is_empty() {
                self.xtables.restore(&now).await?;
            }
            self.later = Some((later, rules.clone()));
            self.is_in_force(rules);
            return Ok(Vec::new());
        }
        self.write(&text, rules).await?;
        Ok(changed)
    }

    /// What of the rules that were in force is not, and is not as a write that
    /// failed may have left it either.
    fn changed(&self, saved: &HashMap<Table, Saved>) -> Vec<String> {
        let family = self.family;
        let unlike = |rules: &Rules| ruleset::difference(rules, saved, family).repaired;
        let before = self.in_force.as_ref();
        let mut changed = match before.filter(|before| !self.is_reworded(before, saved)) {
            Some(before) => unlike(before),
            None => return Vec::new(),
        };
        if let Some(attempted) = &self.attempted {
            let neither = unlike(attempted);
            changed.retain(|what| neither.contains(what));
        }
        changed
    }

    fn is_in_force(&mut self, rules: Rules) {
        self.in_force = Some(rules);
        self.attempted = None;
        self.previous = Previous::InForce;
    }

    /// Writes `text`, which puts `rules` in force, and reads how the program words
    /// them.
    async fn write(&mut self, text: &str, rules: Rules) -> Result<(), Error> {
        self.xtables.restore(text).await?;
        let written = self.saved(&rules).await?;
        let family = self.family;
        let words_differ = !ruleset::difference(&rules, &written, family)
            .text
            .is_empty();
        self.reworded = words_differ.then(|| (rules.clone(), written));
        self.is_in_force(rules);
        Ok(())
    }

    /// Takes the traffic over from iptables mode, if it has it: virtual servers
    /// and addresses are there now.
    ///
    /// # Errors
    /// When the program failed; the next call of [`ensure`](Self::ensure) reads and
    /// repairs.
    pub async fn take_over(&mut self) -> Result<(), Error> {
        match self.later.take() {
            Some((text, rules)) => {
                self.in_force = None;
                self.attempted = Some(rules.clone());
                self.write(&text, rules).await
            }
            None => Ok(()),
        }
    }

    fn is_reworded(&self, rules: &Rules, saved: &HashMap<Table, Saved>) -> bool {
        let Some((written, said)) = &self.reworded else {
            return false;
        };
        let no_jump_is_missing = rules.jumps.iter().all(|jump| {
            saved
                .get(&jump.table)
                .is_some_and(|saved| saved.has_jump(jump.from, jump.to))
        });
        let mut tables = said.iter();
        written == rules
            && no_jump_is_missing
            && tables.all(|(table, said)| saved.get(table).is_some_and(|now| said.is_same(now)))
    }

    /// Reads the tables that have chains of `rules`, or had them before.
    async fn saved(&self, rules: &Rules) -> Result<HashMap<Table, Saved>, Error> {
        let mut tables = HashMap::new();
        let all = || [Some(rules), self.in_force.as_ref(), self.attempted.as_ref()];
        for table in Table::ALL {
            let chains = || all().into_iter().flatten().flat_map(|rules| &rules.chains);
            if chains().any(|chain| chain.table == table) {
                let mut saved = Saved::new(table);
                let read = self.xtables.read(table.name(), |line| saved.line(line));
                read.await?;
                tables.insert(table, saved);
            }
        }
        Ok(tables)
    }
}

/// The tables lead service traffic to iptables mode's chains.
fn before_ours(saved: &HashMap<Table, Saved>) -> bool {
    let nat = saved.get(&Table::Nat);
    nat.is_some_and(Saved::leads_to_services)
}

/// A batch without table nat, and that table's part.
fn nat_last(batch: &str) -> (String, String) {
    let (mut now, mut later, mut nat) = (String::new(), String::new(), false);
    for line in batch.lines() {
        if let Some(table) = line.strip_prefix('*') {
            nat = table == Table::Nat.name();
        }
        let part = if nat { &mut later } else { &mut now };
        part.push_str(line);
        part.push('\n');
    }
    (now, later)
}
