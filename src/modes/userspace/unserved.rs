//! IP families whose Services are not served because the node does not have the family.

use net::{Family, PerFamily};

use super::capture::Capture;
use crate::{log_once::LogOnce, modes::why_missed, services::ServiceMap};

/// Why families are not served. That is not a failure: no client can use them.
#[derive(Debug, Default)]
pub(super) struct Unserved {
    why: PerFamily<Option<String>>,
    logged: PerFamily<LogOnce>,
}

impl Unserved {
    /// Determines which families captured by `capture` the node does not have.
    pub(super) fn observe(&mut self, capture: &Capture) {
        self.why = PerFamily::each(|family| capture.why_unserved(family));
    }

    /// Why `family` is not served; `None` if it is.
    pub(super) fn why(&self, family: Family) -> Option<&String> {
        self.why.get(family).as_ref()
    }

    /// Returns why `family` is not served, if `map` has ServicePorts of `family`, and logs it once.
    pub(super) fn report(&mut self, family: Family, map: &ServiceMap) -> Option<String> {
        let why = self.why(family);
        let why = why.and_then(|why| why_missed(family, map, why));
        let text = why
            .as_ref()
            .map(|why| format!("{family} Services are not served: {why}"));
        let logged = self.logged.get_mut(family);
        logged.end_others(text.as_slice());
        for text in logged.replace(text) {
            tracing::warn!("{text}");
        }
        why
    }
}
