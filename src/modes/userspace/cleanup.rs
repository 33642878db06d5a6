//! Removes what this mode ever installs.

use super::{
    capture::{Error, Local, Prepared, Redirect},
    return_path,
};
use crate::{
    kernel::xtables::remove::Preserved,
    net::{Family, PerFamily},
};

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

/// Makes open connections of these families, where they are captured by routes, survive the rules
/// of nat that would otherwise send them elsewhere: to be called before there are such rules.
/// Returns what was done in each family; `None`: there is no such capture.
///
/// # Errors
/// When the kernel lacks what that takes, or refuses.
pub fn prepare_successor(families: &[Family]) -> PerFamily<Result<Option<Prepared>, Error>> {
    PerFamily::each(|family| {
        if families.contains(&family) {
            Local::prepare_successor(family)
        } else {
            Ok(None)
        }
    })
}

/// Stops the capture of new connections, and leaves what open ones need: by routes in the families
/// that are `routed`, by rules in those that are `redirected`. Returns how many are open by routes,
/// and the families that have rules.
///
/// # Errors
/// When the kernel refuses in one family or capture; it is done in the others all the same.
pub async fn retire(
    routed: &[Family],
    redirected: &[Family],
) -> Result<(usize, Vec<Family>), Error> {
    let open = Local::retire(routed);
    let rules = Redirect::retire(redirected).await;
    Ok((open?, rules?))
}

/// Returns whether anything captures in any family by rules that are not
/// `preserved`, or by routes in the families that are `routed`.
///
/// # Errors
/// When that is not known.
pub async fn is_there(preserved: &Preserved, routed: &[Family]) -> Result<bool, Error> {
    Ok(Local::is_there(routed)? || Redirect::is_there(preserved).await?)
}

/// Returns whether chains of this mode may be there, without running a program; see
/// [`Owned::may_be_there`](crate::kernel::xtables::remove::Owned::may_be_there).
pub fn rules_may_be_there() -> bool {
    Redirect::may_be_there() || return_path::rules_may_be_there()
}
