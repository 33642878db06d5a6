//! Creates the rings with which the data path of userspace mode receives and sends, while the
//! process may still do so.

use super::probe::Chosen;
use crate::{
    cli::Settings,
    config::ModeName,
    kernel::probe::Ability,
    modes::userspace::{self, Io, Rings},
};

/// Creates rings for the workers of the `chosen` mode, if they should have any and this kernel
/// allows it. If it does not, notes that in `chosen`.
pub(super) fn make(settings: &Settings, chosen: &mut Chosen) -> Rings {
    if settings.own.io == Io::Epoll || chosen.mode != ModeName::Userspace {
        return Rings::default();
    }
    let made = match chosen.kernel.why_unusable(&Ability::IoUring) {
        Some(why) => Err(why.to_owned()),
        None => Rings::make(userspace::workers(settings.own.workers)).map_err(|e| e.to_string()),
    };
    made.unwrap_or_else(|why| {
        // If it was requested, the mode itself reports that it does without.
        if settings.own.io == Io::Auto {
            let note = format!("io_uring is not used: {why}; connections are served by epoll only");
            tracing::info!("{note}");
            chosen.epoll_alone = Some(note);
        }
        Rings::default()
    })
}
