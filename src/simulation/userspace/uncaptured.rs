//! Reports on frontends whose capture failed once.

use net::{Family, PerFamily};
use nix::libc;
use simulated::Call;

use super::{in_node, local::OfLocal, unlisted::services};
use crate::{
    modes::Mode,
    services::Changes,
    simulation::named_cases::{Refusing, on_a_node},
};

/// Refuses the address of the second Service, and then has a sync for `changed` of all `numbers`:
/// because of the refusal it compares everything, so that nothing is left to be retried.
fn is_captured_with_the_next_change(numbers: &'static [u8], changed: &'static [u8]) {
    in_node(move || {
        let refusing = Refusing::default();
        on_a_node(OfLocal, refusing.clone(), async |_, mode| {
            let mut failed = async |numbers: &[u8], changed: &[u8], full| {
                let map = services(numbers);
                let names = services(changed);
                let changes = Changes {
                    ports: names.iter().map(|port| port.name.clone()).collect(),
                    full,
                    ..Changes::default()
                };
                let outcomes = mode.sync(&map, PerFamily::each(|_| Some(&changes))).await;
                let outcome = outcomes.into_iter().find(|(one, _)| *one == Family::V4);
                let report = outcome.and_then(|(_, outcome)| outcome.expect("an answer").ok());
                report.expect("it is applied").failed.len()
            };
            assert_eq!(failed(&[1], &[1], true).await, 0);
            let adds = |call| matches!(call, Call::Requests(libc::RTM_NEWADDR, _));
            refusing.refuse(adds, 0, 1);
            assert_eq!(failed(&[1, 2], &[2], false).await, 1);
            assert_eq!(refusing.stop(), 0, "the address was refused");
            assert_eq!(failed(numbers, changed, false).await, 0);
        });
    });
}

#[test]
fn a_frontend_that_was_refused_is_captured_with_the_next_change_of_another_one() {
    is_captured_with_the_next_change(&[1, 2, 3], &[3]);
}

#[test]
fn a_frontend_that_was_refused_is_captured_with_the_next_change_of_its_service() {
    is_captured_with_the_next_change(&[1, 2], &[2]);
}
