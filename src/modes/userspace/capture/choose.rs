//! Choosing how to capture, per IP family.

use std::fmt;

use super::Error;
use crate::{
    kernel::{
        probe::{Ability, Extension, Kernel},
        xtables::{self, Toolkit},
    },
    net::Family,
};

/// What the operator asked for with `--userspace-capture`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Requested {
    /// [`Method::Redirect`] where the kernel can, else [`Method::Local`].
    #[default]
    Auto,
    /// [`Method::Redirect`] only.
    Redirect,
    /// [`Method::Local`] only.
    Local,
}

/// How packets are captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// nat rules: [`super::Redirect`].
    Redirect,
    /// Routes: [`super::Local`].
    Local,
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Method::Redirect => "redirect",
            Method::Local => "local",
        })
    }
}

/// How each family is captured, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// For IPv4.
    pub v4: Method,
    /// For IPv6.
    pub v6: Method,
    /// Why, one sentence for each family, for the log.
    pub reasons: Vec<String>,
}

impl Choice {
    /// The method for `family`.
    pub fn method(&self, family: Family) -> Method {
        match family {
            Family::V4 => self.v4,
            Family::V6 => self.v6,
        }
    }

    /// The families that use `method`.
    pub fn families(&self, method: Method) -> Vec<Family> {
        [Family::V4, Family::V6]
            .into_iter()
            .filter(|f| self.method(*f) == method)
            .collect()
    }
}

/// Chooses, by what was found out of `kernel`.
///
/// # Errors
/// When [`Requested::Redirect`] cannot work for IPv4. Where only IPv6 cannot,
/// IPv6 is captured the other way, and a reason says so.
pub fn choose(requested: Requested, kernel: &Kernel) -> Result<Choice, Error> {
    if requested == Requested::Local {
        return Ok(Choice {
            v4: Method::Local,
            v6: Method::Local,
            reasons: vec!["local capture, as asked".to_owned()],
        });
    }
    let mut reasons = Vec::new();
    let mut methods = [Method::Local; 2];
    for (method, family) in methods.iter_mut().zip(Family::ALL) {
        let usable = redirecting(kernel, family).and_then(|tools| match requested {
            Requested::Redirect => Ok(tools),
            // REDIRECT alone drops what comes in through a link without an
            // address, as pods' links with many networks.
            _ => has(kernel, family, Extension::Dnat).map(|()| tools),
        });
        match usable {
            Ok(tools) => {
                *method = Method::Redirect;
                reasons.push(format!(
                    "{family}: redirect capture, nat works with {}",
                    tools.xtables.program()
                ));
            }
            Err(error) => {
                if requested == Requested::Redirect && family == Family::V4 {
                    return Err(Error::Unsupported {
                        method: Method::Redirect,
                        reason: format!(
                            "{error}. Use --userspace-capture=auto or local, which need no netfilter"
                        ),
                    });
                }
                reasons.push(format!("{family}: local capture, because {error}"));
            }
        }
    }
    let [v4, v6] = methods;
    Ok(Choice { v4, v6, reasons })
}

/// The tools for redirect capture.
pub(super) fn redirecting(kernel: &Kernel, family: Family) -> Result<Toolkit, xtables::Error> {
    let tools = kernel.toolkit(family)?;
    has(kernel, family, Extension::Redirect).map(|()| tools)
}

fn has(kernel: &Kernel, family: Family, extension: Extension) -> Result<(), xtables::Error> {
    let ability = Ability::Extension(family, extension);
    match kernel.lack(&ability) {
        None => Ok(()),
        Some(why) => Err(xtables::Error::Unusable {
            family,
            reason: format!("{ability}: {why} ({})", ability.remedy()),
        }),
    }
}
