//! Choice of the capture method for each IP family.

use std::fmt;

use net::{Family, PerFamily};
use xtables::Toolkit;

use super::Error;
use crate::{
    config::ModeName,
    kernel::probe::{Ability, Extension, Kernel},
};

/// Argument of `--userspace-capture`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Requested {
    /// [`Method::Redirect`] if the kernel can, else [`Method::Local`].
    #[default]
    Auto,
    /// [`Method::Redirect`], or no capture at all.
    Redirect,
    /// [`Method::Local`], or no capture at all.
    Local,
}

/// How Services that choose userspace mode are captured next to a mode of the kernel: nftables mode
/// starts no programs, and the rules of the others have no place for packets that routes deliver.
pub fn next_to(mode: ModeName) -> Requested {
    match mode {
        ModeName::Nftables => Requested::Local,
        _ => Requested::Redirect,
    }
}

/// How packets are captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// By nat rules: [`super::Redirect`].
    Redirect,
    /// By routes: [`super::Local`].
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

/// The capture method of each family, and why it was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The method of each family.
    pub methods: PerFamily<Method>,
    /// Reasons for the log, one sentence for each family.
    pub reasons: Vec<String>,
}

/// Chooses according to the findings about `kernel`.
///
/// # Errors
/// When [`Requested::Redirect`] cannot work for IPv4. If only IPv6 cannot, IPv6 is captured by the
/// other method, and a reason says so.
pub fn choose(requested: Requested, kernel: &Kernel) -> Result<Choice, Error> {
    if requested == Requested::Local {
        return Ok(Choice {
            methods: PerFamily::each(|_| Method::Local),
            reasons: vec!["local capture, as configured".to_owned()],
        });
    }
    let mut reasons = Vec::new();
    let mut methods = PerFamily::each(|_| Method::Local);
    for (family, method) in methods.iter_mut() {
        let usable = redirecting(kernel, family).and_then(|tools| match requested {
            Requested::Redirect => Ok(tools),
            // REDIRECT alone drops packets that arrive on a link without an address, such as pods'
            // links in many network plugins.
            _ => has(kernel, family, Extension::Dnat).map(|()| tools),
        });
        match usable {
            Ok(tools) => {
                *method = Method::Redirect;
                reasons.push(format!(
                    "{family}: redirect capture, nat works with {}",
                    tools.writer.xtables.program()
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
    Ok(Choice { methods, reasons })
}

/// How `family` would be captured on a kernel on which no programs were tried.
pub(super) fn imagined(requested: Requested, kernel: &Kernel, family: Family) -> Method {
    let can = |extension| has(kernel, family, extension).is_ok();
    let redirects = match requested {
        Requested::Auto => can(Extension::Redirect) && can(Extension::Dnat),
        Requested::Redirect => can(Extension::Redirect),
        Requested::Local => false,
    };
    if redirects && kernel.why_unusable(&Ability::Nat(family)).is_none() {
        Method::Redirect
    } else {
        Method::Local
    }
}

/// Returns the tools for redirect capture.
pub(super) fn redirecting(kernel: &Kernel, family: Family) -> Result<Toolkit, xtables::Error> {
    let tools = kernel.toolkit(family)?;
    has(kernel, family, Extension::Redirect).map(|()| tools)
}

fn has(kernel: &Kernel, family: Family, extension: Extension) -> Result<(), xtables::Error> {
    let ability = Ability::Extension(family, extension);
    match kernel.why_unusable(&ability) {
        None => Ok(()),
        Some(why) => Err(xtables::Error::Unusable {
            family,
            reason: format!("{ability}: {why} ({})", ability.remedy()),
        }),
    }
}
