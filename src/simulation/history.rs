//! What is known of one Service in a run.

use std::{collections::VecDeque, sync::Arc};

use super::world::Spec;

/// How a Service is to be, and was since it was last known to be in force.
pub(super) struct History {
    /// Each with the number of the change; the first one is in force.
    pub(super) versions: VecDeque<(u64, Option<Arc<Spec>>)>,
    /// The first one was reported to be in force.
    pub(super) in_force: bool,
    /// A sync that was to change it failed, or ended with its process.
    pub(super) is_interrupted: bool,
    /// Another process changed what there is of it, and no sync could repair that yet, since
    /// the Service failed.
    pub(super) is_damaged: bool,
    /// Its node port may stay open for good: see [`Promises::loses_node_ports`].
    ///
    /// [`Promises::loses_node_ports`]: super::subject::Promises::loses_node_ports
    pub(super) has_lost_node_port: bool,
    /// All its addresses may: what says of one in two ways that it is ours was taken away.
    pub(super) has_lost_addresses: bool,
    /// Earlier ones of which not all rules could be taken away yet, as the last sync said, or
    /// one before it, if the Service failed since.
    pub(super) left: Vec<Arc<Spec>>,
    /// Earlier ones whose clients stayed on their endpoints: their entries are deleted
    /// now and then only, and that may fail.
    pub(super) remembered: Vec<Arc<Spec>>,
}

impl History {
    /// Returns that of a Service which is not there.
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

    /// Returns whether it is to be otherwise than it was last known to be.
    pub(super) fn is_pending(&self) -> bool {
        self.versions.len() > 1
    }
}
