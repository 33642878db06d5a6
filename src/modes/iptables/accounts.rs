//! Counters of nfacct, which must exist before the rules that count by them.

use hashbrown::HashSet;
use netlink::nfacct;
use xtables::extension::Extension;

use super::plan::{self, Options};
use crate::services::Changes;

/// The counters that this process has made. Rules hold those that they use.
#[derive(Debug, Default)]
pub struct Accounts {
    made: HashSet<&'static str>,
    /// Why rules do not count; `None`: they do.
    missing: Option<String>,
}

impl Accounts {
    /// Makes the counters that rules of these `options` use. Those that were made before are made
    /// again when `changes` ask for a repair: another program may have deleted them together with
    /// the rules. If one cannot be made, rules are planned without: only metrics depend on them.
    pub fn ensure(&mut self, options: &mut Options, changes: &Changes) {
        self.missing = None;
        let names = plan::accounts(options);
        let are_made = names.iter().all(|name| self.made.contains(name));
        if names.is_empty() || are_made && !changes.full && !changes.retry {
            return;
        }
        match nfacct::create(&names) {
            Ok(()) => self.made.extend(names),
            Err(_) if are_made => {}
            Err(error) => {
                options.features -= Extension::Nfacct;
                self.missing = Some(format!(
                    "rules count nothing for metrics, because counters could not be created: \
                     {error}"
                ));
            }
        }
    }

    /// Returns why rules do not count; `None`: they do.
    pub fn missing(&self) -> Option<&String> {
        self.missing.as_ref()
    }
}
