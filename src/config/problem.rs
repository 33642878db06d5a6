//! Problems of the fields of a configuration.

use std::fmt;

/// A value that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Path of the field in the file, without the top: `iptables.masqueradeBit`.
    pub field: String,
    /// The flag that sets the same value, without dashes; `None` if there is none.
    pub flag: Option<&'static str>,
    /// The fault, and the remedy.
    pub what: String,
}

impl Problem {
    /// The problem that `value` of `field` is wrong because of `why`.
    pub(super) fn invalid(
        field: impl Into<String>,
        flag: Option<&'static str>,
        value: impl fmt::Debug,
        why: impl fmt::Display,
    ) -> Problem {
        Problem {
            field: field.into(),
            flag,
            what: format!("invalid value {value:?}: {why}"),
        }
    }
}

/// Writes the whole path, as kube-proxy gives it, with the names in the file; and the
/// flag, since the value may have come from there.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KubeProxyConfiguration.{}", self.field)?;
        if let Some(flag) = self.flag {
            write!(f, " (--{flag})")?;
        }
        write!(f, ": {}", self.what)
    }
}
