//! What others ask a runner while it runs, and only its mode can find out. It is answered between
//! syncs.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

use crate::{
    modes::{Mode, comparison},
    services::{ServiceMap, ServicePort},
};

pub use crate::modes::{
    Compared, Difference, Explanation, Found, Packet, SyncError,
    explain::{
        Caller, Candidate, Carrier, Connection, Origin, Stale, Verdict, connections,
        dropping_chains, stale,
    },
};

/// Maximum number of questions that wait. Each may require reading all that the kernel holds.
const WAITING: usize = 16;

/// How long a mode may take to compare, since syncs wait meanwhile. The commands that ask wait
/// slightly longer for an answer.
const LONGEST_COMPARISON: Duration = Duration::from_secs(15);

/// Returns how the kernel differs from what `mode` is to have there for `map`. Both families fail
/// where that takes longer than [`LONGEST_COMPARISON`].
pub(super) async fn compare<M: Mode>(mode: &mut M, map: &ServiceMap) -> Compared {
    let compared = timeout(LONGEST_COMPARISON, mode.compare(map)).await;
    compared.unwrap_or_else(|_| {
        comparison::both_failed(SyncError::ComparisonTooLong(LONGEST_COMPARISON))
    })
}

/// Returns what becomes of `packets`, and, if the kernel is read, how it differs from what `mode` is
/// to have there for `map`.
pub(super) async fn explain<M: Mode>(
    mode: &mut M,
    map: &ServiceMap,
    packets: Vec<Packet>,
    reading: Reading,
) -> Explained {
    let mut explained = Vec::new();
    for packet in packets {
        let explanation = mode.explain(map, &packet).await;
        let served_by = explanation.as_ref().ok().and_then(|e| e.served_by.as_ref());
        let service_port = served_by.and_then(|(name, _)| map.get(name).cloned());
        explained.push(ExplainedPacket {
            packet,
            explanation,
            service_port,
        });
    }
    Explained {
        packets: explained,
        compared: match reading {
            Reading::Whole => Some(compare(mode, map).await),
            Reading::Nothing => None,
        },
    }
}

/// Sends questions to a runner, which answers them between syncs.
#[derive(Clone, Debug)]
pub struct Questions(mpsc::Sender<Question>);

/// A question, with where the answer goes.
#[derive(Debug)]
pub(super) enum Question {
    /// How the kernel differs from what it is to hold.
    Compare(oneshot::Sender<Compared>),
    /// What becomes of packets.
    Explain(Vec<Packet>, Reading, oneshot::Sender<Explained>),
}

/// Whether what the kernel holds is read for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// All that the mode keeps there, which takes long if there is much.
    Whole,
    /// Nothing: the answer follows from the Services alone.
    Nothing,
}

/// What becomes of packets, and what in the kernel is not as it is to be.
#[derive(Debug)]
pub struct Explained {
    /// Those that were asked about, in their order.
    pub packets: Vec<ExplainedPacket>,
    /// How the kernel differs from what it should hold; `None`: it was not read.
    pub compared: Option<Compared>,
}

/// What becomes of a packet.
#[derive(Debug)]
pub struct ExplainedPacket {
    /// The packet that was asked about.
    pub packet: Packet,
    /// What becomes of it if the kernel is as it should be.
    pub explanation: Result<Explanation, SyncError>,
    /// The ServicePort to which the destination belongs; `None`: it belongs to none.
    pub service_port: Option<Arc<ServicePort>>,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unanswered {
    /// Too many questions are waiting.
    #[error("too many queries at the same time: try again")]
    Busy,
    /// The runner does not run any more.
    #[error("the proxy is ending")]
    Ending,
}

impl Questions {
    /// Returns a handle for asking, and the receiver of its questions.
    pub(super) fn new() -> (Questions, mpsc::Receiver<Question>) {
        let (sender, receiver) = mpsc::channel(WAITING);
        (Questions(sender), receiver)
    }

    /// Returns how the kernel differs from what it is to hold now. Syncs wait meanwhile.
    ///
    /// # Errors
    /// When too many ask, or the runner ends.
    pub async fn compare(&self) -> Result<Compared, Unanswered> {
        self.ask(Question::Compare).await
    }

    /// Returns what becomes of `packets`, and how the kernel differs from what it is to
    /// hold. Syncs wait meanwhile.
    ///
    /// # Errors
    /// When too many ask, or the runner ends.
    pub async fn explain(
        &self,
        packets: Vec<Packet>,
        reading: Reading,
    ) -> Result<Explained, Unanswered> {
        self.ask(|reply| Question::Explain(packets, reading, reply))
            .await
    }

    async fn ask<T>(
        &self,
        question: impl FnOnce(oneshot::Sender<T>) -> Question,
    ) -> Result<T, Unanswered> {
        let (reply, answer) = oneshot::channel();
        let asked = self.0.try_send(question(reply));
        asked.map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => Unanswered::Busy,
            mpsc::error::TrySendError::Closed(_) => Unanswered::Ending,
        })?;
        answer.await.map_err(|_| Unanswered::Ending)
    }
}
