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
async fn compare<M: Mode>(mode: &mut M, map: &ServiceMap) -> Compared {
    let compared = timeout(LONGEST_COMPARISON, mode.compare(map)).await;
    compared.unwrap_or_else(|_| {
        comparison::both_failed(SyncError::ComparisonTooLong(LONGEST_COMPARISON))
    })
}

/// Explains where `packets` go and, if it `compares`, compares the kernel with the desired state of
/// `mode` for `map`.
pub(super) async fn answer<M: Mode>(
    mode: &mut M,
    map: &ServiceMap,
    packets: Vec<Packet>,
    compares: bool,
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
        compared: match compares {
            true => Some(compare(mode, map).await),
            false => None,
        },
    }
}

/// Sends questions to a runner, which answers them between syncs.
#[derive(Clone, Debug)]
pub struct Questions(mpsc::Sender<Question>);

/// A question, with the channel for its answer.
#[derive(Debug)]
pub(super) struct Question {
    /// Packets of which is asked where they go.
    pub(super) packets: Vec<Packet>,
    /// Whether the kernel is compared with the desired state. That reads everything that the mode
    /// installed, which takes long if there is much.
    pub(super) compares: bool,
    pub(super) reply: oneshot::Sender<Explained>,
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
        let explained = self.explain(Vec::new(), true).await?;
        Ok(explained.compared.unwrap_or_default())
    }

    /// Explains where `packets` go and, if it `compares`, compares the kernel with the desired state.
    /// Syncs wait meanwhile.
    ///
    /// # Errors
    /// When too many questions are waiting, or the runner has ended.
    pub async fn explain(
        &self,
        packets: Vec<Packet>,
        compares: bool,
    ) -> Result<Explained, Unanswered> {
        let (reply, answer) = oneshot::channel();
        let asked = self.0.try_send(Question {
            packets,
            compares,
            reply,
        });
        asked.map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => Unanswered::Busy,
            mpsc::error::TrySendError::Closed(_) => Unanswered::Ending,
        })?;
        answer.await.map_err(|_| Unanswered::Ending)
    }
}
