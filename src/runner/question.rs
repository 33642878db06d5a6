//! Questions to a running runner that only its mode can answer. They are answered between syncs.

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

/// Maximum number of waiting questions. Each may require reading the mode's whole state from the
/// kernel.
const WAITING: usize = 16;

/// Maximum duration of a comparison, because syncs wait meanwhile. The commands that ask wait
/// slightly longer for an answer.
const LONGEST_COMPARISON: Duration = Duration::from_secs(15);

/// Compares the kernel with the desired state of `mode` for `map`. Both families fail if that takes
/// longer than [`LONGEST_COMPARISON`].
pub(super) async fn compare<M: Mode>(mode: &mut M, map: &ServiceMap) -> Compared {
    let compared = timeout(LONGEST_COMPARISON, mode.compare(map)).await;
    compared.unwrap_or_else(|_| {
        comparison::both_failed(SyncError::ComparisonTooLong(LONGEST_COMPARISON))
    })
}

/// Explains where `packets` go and, with [`Reading::Whole`], compares the kernel with the desired
/// state of `mode` for `map`.
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

/// A question, with the channel for its answer.
#[derive(Debug)]
pub(super) enum Question {
    /// Differences between the kernel and the desired state.
    Compare(oneshot::Sender<Compared>),
    /// Where packets go.
    Explain(Vec<Packet>, Reading, oneshot::Sender<Explained>),
}

/// Whether the kernel's state is read for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// Everything that the mode installed, which takes long if there is much.
    Whole,
    /// Nothing: the answer follows from the Services alone.
    Nothing,
}

/// Where packets go, and differences between the kernel and the desired state.
#[derive(Debug)]
pub struct Explained {
    /// The packets of the question, in the same order.
    pub packets: Vec<ExplainedPacket>,
    /// Differences between the kernel and the desired state; `None` if the kernel was not read.
    pub compared: Option<Compared>,
}

/// A packet and where it goes.
#[derive(Debug)]
pub struct ExplainedPacket {
    /// The packet of the question.
    pub packet: Packet,
    /// Where it goes if the kernel matches the desired state.
    pub explanation: Result<Explanation, SyncError>,
    /// The ServicePort that owns the destination; `None` if there is none.
    pub service_port: Option<Arc<ServicePort>>,
}

/// Why a question was not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unanswered {
    /// Too many questions are waiting.
    #[error("too many queries at the same time: try again")]
    Busy,
    /// The runner has ended.
    #[error("the proxy is ending")]
    Ending,
}

impl Questions {
    /// A handle for asking, and the receiver of its questions.
    pub(super) fn new() -> (Questions, mpsc::Receiver<Question>) {
        let (sender, receiver) = mpsc::channel(WAITING);
        (Questions(sender), receiver)
    }

    /// Differences between the kernel and the desired state. Syncs wait meanwhile.
    ///
    /// # Errors
    /// When too many questions are waiting, or the runner has ended.
    pub async fn compare(&self) -> Result<Compared, Unanswered> {
        self.ask(Question::Compare).await
    }

    /// Explains where `packets` go and, depending on `reading`, compares the kernel with the
    /// desired state. Syncs wait meanwhile.
    ///
    /// # Errors
    /// When too many questions are waiting, or the runner has ended.
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
