//! What Services ask for that a mode cannot do.

use crate::services::{Preferences, Retry, ServicePortName};

/// A preference that the running mode cannot honour. Logged once, with an Event
/// on the Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported {
    /// Whose it is; other ports of the Service may have the same.
    pub port: ServicePortName,
    /// What is not done.
    pub reason: Reason,
}

/// Something that is not done as asked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reason {
    /// The annotation, such as [`Preferences::SCHEDULER`], or another part of
    /// the Service.
    pub what: &'static str,
    /// Why not, what is done instead, and what would help.
    pub why: String,
}

impl Reason {
    /// Of `what`, because of `why`.
    pub fn new(what: &'static str, why: impl Into<String>) -> Reason {
        let why = why.into();
        Reason { what, why }
    }

    /// Returns what of `tripod.proxy/retry` cannot be done where the kernel sends a
    /// connection to one endpoint.
    pub fn of_retry(preferences: &Preferences) -> Option<Reason> {
        match preferences.retry? {
            Retry::FirstFlight | Retry::Connect => Some(Reason::new(
                Preferences::RETRY,
                "each connection goes to one endpoint, no other one is tried when it does not \
                 answer, and nothing is sent twice; userspace mode tries others",
            )),
            Retry::Off => None,
        }
    }

    /// Returns what cannot be done for `port`.
    pub fn at(self, port: &ServicePortName) -> Unsupported {
        let port = port.clone();
        Unsupported { port, reason: self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_tries_one_endpoint_which_is_all_that_off_asks_for() {
        for (retry, supported) in [
            (None, true),
            (Some(Retry::Off), true),
            (Some(Retry::Connect), false),
            (Some(Retry::FirstFlight), false),
        ] {
            let preferences = Preferences {
                retry,
                ..Preferences::NONE
            };
            let what = Reason::of_retry(&preferences).map(|reason| reason.what);
            let expected = (!supported).then_some(Preferences::RETRY);
            assert_eq!(what, expected, "{retry:?}");
        }
    }
}
