//! The rules of one family, in the kernel.

use hashbrown::HashMap;

use super::{
    plan::{self, Filled, Rules, Site},
    ruleset::{self, Batch, Saved},
};
use crate::{
    kernel::xtables::{Engine, Error, Toolkit, Xtables, features::Features, rule::Table},
    net::Family,
};

/// iptables or ip6tables, and what of ours is in force there.
#[derive(Debug)]
pub struct Tables {
    family: Family,
    xtables: Xtables,
    engine: Engine,
    features: Features,
    in_force: Option<Rules>,
    /// What the program said right after it had written rules, where it words
    /// them otherwise than we do.
    reworded: Option<(Rules, HashMap<Table, Saved>)>,
    /// What is to be written when the virtual servers are there: iptables mode
    /// carries the traffic until then, by a chain of the same name.
    later: Option<(String, Rules)>,
}

impl Tables {
    /// Those of `family`, with these tools.
    pub fn new(family: Family, tools: Toolkit) -> Tables {
        let Toolkit {
            xtables,
            engine,
            features,
        } = tools;
        tracing::debug!(%family, program = xtables.program(), ?engine, ?features, "rules");
        Tables {
            family,
            xtables,
            engine,
            features,
            in_force: None,
            reworded: None,
            later: None,
        }
    }

    /// The engine that its rules are in.
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// Puts the rules in force that go with sets of which those `filled` have
    /// members; does nothing if they are. Each table takes effect at once.
    ///
    /// # Errors
    /// When the program failed; what is in force is not known then, and the
    /// next call reads it.
    pub async fn apply(&mut self, site: &Site, filled: Filled) -> Result<(), Error> {
        let rules = plan::rules(self.family, site, &self.features, filled);
        if self.in_force.as_ref() == Some(&rules) {
            return Ok(());
        }
        self.ensure(rules).await.map(drop)
    }

    /// Reads the tables, and repairs what is not as the rules that are to be
    /// in force; answers with what that was.
    ///
    /// # Errors
    /// When the program failed.
    pub async fn repair(&mut self, site: &Site, filled: Filled) -> Result<Vec<String>, Error> {
        let rules = plan::rules(self.family, site, &self.features, filled);
        self.ensure(rules).await
    }

    async fn ensure(&mut self, rules: Rules) -> Result<Vec<String>, Error> {
        let before = self.in_force.take();
        let v6 = self.family == Family::V6;
        let saved = self.saved(&rules).await?;
        let changed = before.filter(|before| !self.is_reworded(before, &saved));
        let changed = changed.map(|before| ruleset::difference(&before, &saved, v6).repaired);
        let changed = changed.unwrap_or_default();
        let Batch { text, .. } = ruleset::difference(&rules, &saved, v6);
        if text.is_empty() || self.is_reworded(&rules, &saved) {
            self.in_force = Some(rules);
            return Ok(Vec::new());
        }
        if before_ours(&saved) {
            let (now, later) = nat_last(&text);
            if !now.is_empty() {
                self.xtables.restore(&now).await?;
            }
            self.later = Some((later, rules.clone()));
            self.in_force = Some(rules);
            return Ok(Vec::new());
        }
        self.write(&text, rules).await?;
        Ok(changed)
    }

    /// Writes `text`, which puts `rules` in force, and looks how the program
    /// words them.
    async fn write(&mut self, text: &str, rules: Rules) -> Result<(), Error> {
        self.in_force = None;
        self.xtables.restore(text).await?;
        let written = self.saved(&rules).await?;
        let v6 = self.family == Family::V6;
        let words_differ = !ruleset::difference(&rules, &written, v6).text.is_empty();
        self.reworded = words_differ.then(|| (rules.clone(), written));
        self.in_force = Some(rules);
        Ok(())
    }

    /// Takes the traffic over from iptables mode, if it has it: virtual servers
    /// and addresses are there now.
    ///
    /// # Errors
    /// When the program failed; the next call of the others reads and repairs.
    pub async fn take_over(&mut self) -> Result<(), Error> {
        match self.later.take() {
            Some((text, rules)) => self.write(&text, rules).await,
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

    async fn saved(&self, rules: &Rules) -> Result<HashMap<Table, Saved>, Error> {
        let mut tables = HashMap::new();
        for table in Table::ALL {
            if rules.chains.iter().any(|chain| chain.table == table) {
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
