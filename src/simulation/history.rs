//! The history of one Service in a run.

use std::{collections::VecDeque, sync::Arc};

use super::world::Spec;

/// The desired versions of a Service, from the last one known to be applied on.
pub(super) struct History {
    /// Each version with the number of its change; the first one is applied.
    pub(super) versions: VecDeque<(u64, Option<Arc<Spec>>)>,
    /// Whether the first one was reported to be applied.
    pub(super) in_force: bool,
    /// Whether a sync that should have changed it failed, or ended with its process.
    pub(super) is_interrupted: bool,
    /// Whether another process changed something of it that no sync could repair yet,
    /// because the Service failed then.
    pub(super) is_damaged: bool,
    /// Its node port may stay open permanently: see [`Promises::loses_node_ports`].
    ///
    /// [`Promises::loses_node_ports`]: super::subject::Promises::loses_node_ports
    pub(super) has_lost_node_port: bool,
    /// Whether all its addresses may stay open: both records that mark one as ours were removed.
    pub(super) has_lost_addresses: bool,
    /// Earlier versions some of whose rules could not be removed yet, according to the last
    /// sync, or to one before it if the Service failed since.
    pub(super) left: Vec<Arc<Spec>>,
    /// Earlier versions whose clients stayed on their endpoints: the entries of those are
    /// deleted only from time to time, and that may fail.
    pub(super) remembered: Vec<Arc<Spec>>,
}

impl History {
    /// The history of a Service that does not exist.
    pub(super) fn new() -> History {
        History {
            versions: [(0, None)].into(),
            in_force: false,
            is_interrupted: false,
            is_damaged: false,
            has_lost_node_port: false,
            has_lost_addresses: false,
            left: Vec::new(),
            remembered: Vec::new(),
        }
    }

    /// Returns whether its desired version differs from the last one known to be applied.
    pub(super) fn is_pending(&self) -> bool {
        self.versions.len() > 1
    }
}
