//! Connects a simulated kernel with the watch: which calls fail, and which checks follow them.

use std::sync::Arc;

use net::{Family, PerFamily};
use nix::libc;
use parking_lot::Mutex;
use simulated::{Call, Fault, Observer, State, accounts, ipset::ADD_MEMBERS};

use super::watch::{CALLS, Watch};

/// Lets the watch decide about the calls to a simulated kernel.
pub(super) struct Watching(pub(super) Arc<Mutex<Watch>>);

/// Returns whether a call has a link be up, addresses be assigned or accounts of rules exist, and
/// changes nothing if that is so.
fn makes_sure(call: Call) -> bool {
    const KINDS: [u16; 3] = [libc::RTM_NEWLINK, libc::RTM_NEWADDR, accounts::NEW];
    matches!(call, Call::Requests(kind, _) if KINDS.contains(&kind))
}

impl Observer for Watching {
    fn before(&mut self, call: Call, state: &mut State) -> Fault {
        let mut watch = self.0.lock();
        watch.counts.calls += 1;
        // There are as many notifications as changes by others.
        watch.calls += usize::from(call != Call::Notifications);
        if watch.calls > CALLS {
            watch.fail("a sync makes call after call");
        }
        if watch.is_settled && call.changes() && !makes_sure(call) {
            watch.fail(&format!("{call:?}, although everything is applied"));
        }
        let Watch {
            rules,
            random,
            faults,
            ..
        } = &mut *watch;
        if random.chance(faults.edits) && rules.may_edit_before(call) {
            if faults.once {
                faults.edits = 0;
            }
            watch.edit(state);
        }
        let edits = watch.edits;
        for family in Family::ALL {
            if watch.rules.reads(call, family) {
                watch.read.get_mut(family).get_or_insert(edits);
            }
        }
        let Watch { random, faults, .. } = &mut *watch;
        let fault = faults.of(call, random);
        watch.record(|| match fault {
            Fault::None => format!("{call:?}"),
            fault => format!("{call:?}: {fault:?}"),
        });
        if let Some(family) = watch.writing.take() {
            *watch.program_failed.get_mut(family) = false;
        }
        match call {
            Call::Save(family) if fault != Fault::None => {
                *watch.program_failed.get_mut(family) = true;
            }
            Call::Restore(family) if fault == Fault::None => watch.writing = Some(family),
            Call::Restore(family) => *watch.program_failed.get_mut(family) = true,
            _ => {}
        }
        match fault {
            Fault::None => {}
            Fault::KilledBefore | Fault::KilledAfter => {
                watch.counts.kills += 1;
                watch.goes_wrong();
            }
            _ => {
                let left_out = match (call, fault) {
                    (Call::Transaction(_), Fault::Refused(..)) => &Family::ALL[..],
                    (Call::Restore(family), _) => &[family],
                    _ => &[],
                };
                if matches!(call, Call::Requests(ADD_MEMBERS, _)) {
                    // The call does not say to which family its set belongs.
                    watch.lacks_members = PerFamily::each(|_| true);
                }
                for family in left_out {
                    *watch.left_out.get_mut(*family) = true;
                }
                watch.counts.faults += u64::from(watch.faults.outage.is_none());
                watch.goes_wrong();
            }
        }
        fault
    }

    fn after(&mut self, call: Call, state: &mut State) {
        if call.changes() {
            let families = match call {
                Call::Restore(family) => &[family][..],
                _ => &Family::ALL,
            };
            self.0.lock().check(state, families);
        }
    }
}
