//! Failures, counted by their causes and by how the process ended that was replaced at that time.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// What went wrong for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    Refused,
    /// The connection was reset, or ended before the answer.
    Reset,
    TimedOut,
    /// An endpoint answered that the Service does not have.
    WrongEndpoint,
    /// Another endpoint of the Service answered a client with session affinity.
    AffinityLost,
    /// No answer to a datagram.
    DatagramLost,
    /// Another endpoint of the Service answered on a UDP flow.
    FlowMoved,
    Other,
}

impl Cause {
    pub const ALL: [Cause; 8] = [
        Cause::Refused,
        Cause::Reset,
        Cause::TimedOut,
        Cause::WrongEndpoint,
        Cause::AffinityLost,
        Cause::DatagramLost,
        Cause::FlowMoved,
        Cause::Other,
    ];

    /// The name in figures.
    pub fn name(self) -> &'static str {
        match self {
            Cause::Refused => "refused",
            Cause::Reset => "reset",
            Cause::TimedOut => "timed_out",
            Cause::WrongEndpoint => "wrong_endpoint",
            Cause::AffinityLost => "affinity_lost",
            Cause::DatagramLost => "datagram_lost",
            Cause::FlowMoved => "flow_moved",
            Cause::Other => "other",
        }
    }

    /// The cause of a connection's failure.
    pub fn of(error: &io::Error) -> Cause {
        match error.kind() {
            ErrorKind::ConnectionRefused => Cause::Refused,
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof => {
                Cause::Reset
            }
            ErrorKind::TimedOut => Cause::TimedOut,
            _ => Cause::Other,
        }
    }
}

/// When a process is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Moment {
    /// Before the next one starts.
    Alone,
    /// When the next one begins to take over.
    Yielding,
    /// When the next one serves.
    Replaced,
}

/// How the process ended that was replaced at the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    InOrder,
    Killed(Moment),
}

impl End {
    /// One in ten hand-overs kills a process, at each moment in turn. The first one is early, so that
    /// a short run has one.
    pub fn of(hand_over: usize) -> End {
        match (hand_over % 10, hand_over / 10 % 3) {
            (3, 0) => End::Killed(Moment::Alone),
            (3, 1) => End::Killed(Moment::Yielding),
            (3, _) => End::Killed(Moment::Replaced),
            _ => End::InOrder,
        }
    }
}

/// Failures while one process replaces another, again and again.
#[derive(Default)]
pub struct Tally {
    /// The number of the hand-over that has begun last.
    hand_over: AtomicUsize,
    failures: Mutex<Failures>,
}

#[derive(Default)]
struct Failures {
    counts: BTreeMap<(End, Cause), usize>,
    /// The first of each kind.
    texts: BTreeMap<(End, Cause), Vec<String>>,
}

/// How many failures of each kind are described.
const DESCRIBED: usize = 5;

impl Tally {
    pub fn begin(&self, hand_over: usize) {
        self.hand_over.store(hand_over, Relaxed);
    }

    /// The number of the hand-over that has begun last.
    pub fn now(&self) -> usize {
        self.hand_over.load(Relaxed)
    }

    /// Counts a failure of what began at hand-over `begun`. A process may have been killed at any of
    /// the hand-overs since.
    pub fn failed(&self, begun: usize, cause: Cause, text: impl FnOnce() -> String) {
        let now = self.now();
        let ends = (begun..=now).map(End::of);
        let end = ends.max().unwrap_or(End::InOrder);
        let mut failures = self.failures.lock().expect("no panic");
        *failures.counts.entry((end, cause)).or_default() += 1;
        let texts = failures.texts.entry((end, cause)).or_default();
        if texts.len() < DESCRIBED {
            texts.push(format!("{}, in hand-overs {begun} to {now}", text()));
        }
    }

    /// The number of failures by this cause, in order or when a process was killed.
    pub fn count(&self, in_order: bool, cause: Cause) -> usize {
        let failures = self.failures.lock().expect("no panic");
        let counts = failures.counts.iter();
        let counted =
            counts.filter(|((end, of), _)| *of == cause && (*end == End::InOrder) == in_order);
        counted.map(|(_, count)| count).sum()
    }

    /// The first failures of each kind for which `chosen` holds, and their number.
    pub fn describe(&self, chosen: impl Fn(End, Cause) -> bool) -> Vec<String> {
        let failures = self.failures.lock().expect("no panic");
        let counts = failures.counts.iter();
        let chosen = counts.filter(|((end, cause), _)| chosen(*end, *cause));
        let describe = |(kind, count): (&(End, Cause), &usize)| {
            format!("{count} of {kind:?}: {:?}", failures.texts[kind])
        };
        chosen.map(describe).collect()
    }
}
