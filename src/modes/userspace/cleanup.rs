//! Removes what this mode ever installs.

use super::{
    capture::{Error, Local, Redirect},
    return_path,
};
use crate::{kernel::xtables::remove::Preserved, net::Family};

/// Removes what this mode ever installed on this node.
///
/// # Errors
/// With the first thing that could not be removed; the others are removed all
/// the same.
pub async fn cleanup() -> Result<(), Error> {
    let redirect = Redirect::cleanup(&Family::ALL, &Preserved::nothing()).await;
    let local = Local::cleanup(&Family::ALL);
    redirect.and(local).and(return_path::cleanup().await)
}

/// Removes what captures in other ways than this mode, which runs: rules in
/// engines other than what is `preserved`, and routes of the families that it has
/// rules for.
///
/// # Errors
/// With the first thing that could not be removed; the others are removed all
/// the same.
pub async fn cleanup_except(preserved: &Preserved, redirected: &[Family]) -> Result<(), Error> {
    let rules = Redirect::cleanup(&Family::ALL, preserved).await;
    rules.and(Local::cleanup(redirected))
}

/// Returns whether anything captures in any family by rules that are not
/// `preserved`, or by routes in the families that are `routed`.
pub async fn is_there(preserved: &Preserved, routed: &[Family]) -> bool {
    Redirect::is_there(preserved).await || Local::is_there(routed)
}
