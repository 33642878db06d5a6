//! Results that a caller may see, and their judgement.

use std::net::IpAddr;

use super::addresses::TARGET;
use super::columns::Kernel;
use super::endpoints::Pod;

/// The result that a caller sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observation {
    Answered(Answered),
    /// Refused at once: nothing listens there.
    Refused,
    /// No answer at all.
    Silent,
    /// The packet continued to where it would go without a Service: the router, which does not know
    /// such a host.
    Unserved,
    /// No endpoint answers: silence, or [`Observation::Unserved`].
    Unreached,
    /// The caller's own kernel does not let it out (EPERM).
    Stopped,
    /// One of these two.
    StoppedOrRefused,
    /// One of these two.
    SilentOrRefused,
    /// The health-check node port reports this number of local endpoints.
    Healthy(u64),
    /// The health-check node port reports that there is no local endpoint.
    Unhealthy,
}

/// The endpoints that answer, and the client address that they see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    pub by: Vec<(Pod, u32)>,
    pub how: How,
    pub source: Source,
    /// The port at which they were reached.
    pub port: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Each of them, and no other.
    Each,
    /// One of them or several, and no other.
    Some,
    /// In proportion to their numbers.
    Shares,
    /// A client stays with one of them; not all clients with the same.
    Sticky,
    /// A client may reach another one after it was silent for more than a second.
    StickyForASecond,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Any,
    /// The caller's own address; but a caller that is sent to itself must see another one.
    Kept,
    /// An address of the node.
    Node,
}

fn answered(by: Vec<(Pod, u32)>, how: How) -> Observation {
    Observation::Answered(Answered {
        by,
        how,
        source: Source::Any,
        port: TARGET,
    })
}

fn alike(pods: impl IntoIterator<Item = Pod>) -> Vec<(Pod, u32)> {
    pods.into_iter().map(|pod| (pod, 1)).collect()
}

/// Each of these answers, and no other.
pub fn each(pods: impl IntoIterator<Item = Pod>) -> Observation {
    answered(alike(pods), How::Each)
}

/// Each of these has an equal share.
pub fn equal_shares(pods: impl IntoIterator<Item = Pod>) -> Observation {
    answered(alike(pods), How::Shares)
}

/// Each of these has a share in proportion to its number.
pub fn shares(pods: impl IntoIterator<Item = (Pod, u32)>) -> Observation {
    answered(pods.into_iter().collect(), How::Shares)
}

/// Clients stay with one of these.
pub fn sticky(pods: impl IntoIterator<Item = Pod>) -> Observation {
    answered(alike(pods), How::Sticky)
}

/// Like [`sticky`], but only for a second of silence.
pub fn sticky_for_a_second(pods: impl IntoIterator<Item = Pod>) -> Observation {
    answered(alike(pods), How::StickyForASecond)
}

impl Observation {
    fn from(mut self, source: Source) -> Observation {
        if let Observation::Answered(answered) = &mut self {
            answered.source = source;
        }
        self
    }

    /// Sets the port at which they are reached, if it is not the usual one.
    pub fn at(mut self, port: u16) -> Observation {
        if let Observation::Answered(answered) = &mut self {
            answered.port = port;
        }
        self
    }

    /// The endpoint sees the caller's own address.
    pub fn seeing_the_caller(self) -> Observation {
        self.from(Source::Kept)
    }

    /// The endpoint sees the node's address.
    pub fn seeing_the_node(self) -> Observation {
        self.from(Source::Node)
    }
}

/// The result of one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Answer(Answer),
    Refused,
    Reset,
    Silent,
    Unserved,
    Stopped,
    Healthy(u64),
    Unhealthy,
    /// Something else, in words.
    Odd(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Name of the pod.
    pub by: String,
    /// The caller's address as seen by the endpoint.
    pub seen: IpAddr,
    /// The caller's address as seen by itself.
    pub caller: IpAddr,
    /// The port at which the endpoint was reached.
    pub port: u16,
}

/// Minimum and maximum number of calls of one kind.
pub fn calls(observation: &Observation, kernel: Kernel) -> (usize, usize) {
    match observation {
        Observation::Answered(Answered { by, how, .. }) => match how {
            // Random choice misses one of three in 60 calls once in 10^10.
            How::Each => (8 + by.len(), 60),
            How::Some => (3, 3),
            // Enough for `far_off` to tell 3:1 from 1:1 ...
            How::Shares if by.iter().any(|(_, share)| *share != by[0].1) => (300, 300),
            // ... and thirds from nearly thirds, which only the machine's own kernel has to show: a
            // call in a guest takes much longer.
            How::Shares if kernel == Kernel::Host => (1_200, 1_200),
            How::Shares => (300, 300),
            How::Sticky | How::StickyForASecond => (3, 3),
        },
        _ => (1, 1),
    }
}

/// Number of standard deviations by which a share may differ: more happens once in a million.
const FAR_OFF: f64 = 5.0;

/// Judges whether these outcomes match `observation`. `node` are the node's addresses, `caller` the
/// name of the caller.
pub fn judge(
    observation: &Observation,
    outcomes: &[Outcome],
    caller: &str,
    node: &[IpAddr],
) -> Result<(), String> {
    let Observation::Answered(expected) = observation else {
        let expected = match observation {
            Observation::Refused => Outcome::Refused,
            Observation::Silent => Outcome::Silent,
            Observation::Unserved => Outcome::Unserved,
            Observation::Unreached if outcomes.contains(&Outcome::Silent) => Outcome::Silent,
            Observation::Unreached => Outcome::Unserved,
            Observation::Stopped => Outcome::Stopped,
            Observation::StoppedOrRefused if outcomes.contains(&Outcome::Refused) => {
                Outcome::Refused
            }
            Observation::StoppedOrRefused => Outcome::Stopped,
            Observation::SilentOrRefused if outcomes.contains(&Outcome::Refused) => {
                Outcome::Refused
            }
            Observation::SilentOrRefused => Outcome::Silent,
            Observation::Healthy(count) => Outcome::Healthy(*count),
            Observation::Unhealthy => Outcome::Unhealthy,
            Observation::Answered(_) => return Err("unreachable".into()),
        };
        return match outcomes.iter().find(|outcome| **outcome != expected) {
            None => Ok(()),
            Some(other) => Err(format!("{other:?}")),
        };
    };
    let mut counts = vec![0_u32; expected.by.len()];
    for outcome in outcomes {
        let Outcome::Answer(answer) = outcome else {
            return Err(format!("{outcome:?}"));
        };
        let at = expected.by.iter().position(|(p, _)| p.name() == answer.by);
        let at = at.ok_or_else(|| format!("{} answers", answer.by))?;
        counts[at] += 1;
        if answer.port != expected.port {
            return Err(format!("{} answers at port {}", answer.by, answer.port));
        }
        let itself = answer.by == caller;
        let fine = match expected.source {
            Source::Any => true,
            Source::Kept if !itself => answer.seen == answer.caller,
            Source::Kept | Source::Node => node.contains(&answer.seen),
        };
        if !fine {
            return Err(format!("{} sees the caller as {}", answer.by, answer.seen));
        }
    }
    let counted = || {
        let named = expected.by.iter().zip(&counts);
        let named = named.map(|((pod, _), count)| format!("{} {count}", pod.name()));
        named.collect::<Vec<_>>().join(", ")
    };
    match expected.how {
        How::Each if counts.contains(&0) => Err(counted()),
        How::Shares if far_off(&expected.by, &counts) => Err(counted()),
        _ => Ok(()),
    }
}

/// Whether every expected endpoint was reached, so that more calls are useless.
pub fn all_met(observation: &Observation, outcomes: &[Outcome]) -> bool {
    let Observation::Answered(expected) = observation else {
        return true;
    };
    let met = |name: &str| {
        let mut answers = outcomes.iter();
        answers.any(|outcome| matches!(outcome, Outcome::Answer(a) if a.by == name))
    };
    expected.how != How::Each || expected.by.iter().all(|(pod, _)| met(pod.name()))
}

fn far_off(expected: &[(Pod, u32)], counts: &[u32]) -> bool {
    let calls = f64::from(counts.iter().sum::<u32>());
    let whole = f64::from(expected.iter().map(|(_, share)| share).sum::<u32>());
    expected.iter().zip(counts).any(|((_, share), count)| {
        let share = f64::from(*share) / whole;
        let deviation = (calls * share * (1.0 - share)).sqrt();
        (f64::from(*count) - calls * share).abs() > FAR_OFF * deviation
    })
}
