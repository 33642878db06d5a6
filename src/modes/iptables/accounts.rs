//! Counters of nfacct, which must exist before the rules that count by them.

use hashbrown::HashSet;

use super::plan::{self, Options};
use crate::kernel::{extension::Extension, nfacct};

/// The counters that this process has made. Rules hold those that they use.
#[derive(Debug, Default)]
pub struct Accounts {
    made: HashSet<&'static str>,
    /// Why rules do not count; `None`: they do.
    missing: Option<String>,
}

impl Accounts {
    /// Makes the counters that rules of these `options` use, unless they were made before. If that
    /// fails, rules are planned without them: only metrics depend on them.
    pub fn ensure(&mut self, options: &mut Options) {
        self.missing = None;
        let names = plan::accounts(options);
        if names.iter().all(|name| self.made.contains(name)) {
            return;
        }
        match nfacct::create(&names) {
            Ok(()) => self.made.extend(names),
            Err(error) => {
                options.features = options.features.without(&[Extension::Nfacct]);
                self.missing = Some(format!(
                    "rules count nothing for metrics, as counters could not be made: {error}"
                ));
            }
        }
    }

    /// Makes those again that rules of these `options` use: another program may have deleted
    /// them together with the rules.
    pub fn repair(&mut self, options: &Options) {
        let names = plan::accounts(options);
        if !names.is_empty() && nfacct::create(&names).is_ok() {
            self.made.extend(names);
        }
    }

    /// Returns why rules do not count; `None`: they do.
    pub fn missing(&self) -> Option<&String> {
        self.missing.as_ref()
    }
}
