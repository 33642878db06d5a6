//! Promises about calls, and the comparison with their results; pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use super::super::{
    call::Seen,
    chance,
    report::{Finding, Outcome},
};
use crate::listing::all_of;

/// Names of servers.
pub type Servers = BTreeSet<String>;

/// The promise about one caller's calls of one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Promise {
    /// Each of these servers answers some calls, and no other answers any.
    Every(Servers),
    /// Only these servers answer; not all of them need to, because the scheduler does not choose at
    /// random.
    Only(Servers),
    /// One of these servers answers all calls.
    SameOne(Servers),
    /// The caller is refused.
    Refused,
    /// The caller is refused, or gets no answer: this kernel cannot refuse.
    RefusedOrSilent,
    /// The caller gets no answer.
    Silent,
}

/// Number of calls in addition to those needed: two UDP calls may have the same port and then count
/// as one.
const MORE: usize = 3;

impl Promise {
    /// Computes how many calls are needed to judge the promise.
    pub fn calls(&self) -> usize {
        match self {
            Promise::Every(servers) => calls_for(servers.len()),
            Promise::SameOne(servers) => calls_until_same(servers.len()),
            Promise::Only(_) => 10,
            Promise::Refused | Promise::RefusedOrSilent | Promise::Silent => 3,
        }
    }

    fn words(&self) -> String {
        match self {
            Promise::Every(servers) if servers.len() == 1 => format!("{} answers", all_of(servers)),
            Promise::Every(servers) => format!("each of {} answers", all_of(servers)),
            Promise::Only(servers) => format!("of {} only some answer", all_of(servers)),
            Promise::SameOne(servers) => format!("one of {} answers all", all_of(servers)),
            Promise::Refused => "refused".to_owned(),
            Promise::RefusedOrSilent => "refused, or no answer".to_owned(),
            Promise::Silent => "no answer".to_owned(),
        }
    }

    /// Judges whether the results match the promise.
    pub fn judge(&self, seen: &[Seen]) -> Finding {
        let answered = answered(seen);
        let names: Servers = answered.keys().map(|name| (*name).to_owned()).collect();
        let all_answered = answered.values().sum::<usize>() == seen.len() && !seen.is_empty();
        let refused = |seen: &Seen| *seen == Seen::Refused;
        let kept = match self {
            Promise::Every(servers) => all_answered && names == *servers,
            Promise::Only(servers) => all_answered && names.is_subset(servers),
            Promise::SameOne(servers) => {
                all_answered && names.len() == 1 && names.is_subset(servers)
            }
            Promise::Refused => !seen.is_empty() && seen.iter().all(refused),
            Promise::RefusedOrSilent => {
                let none = |seen: &Seen| matches!(seen, Seen::Refused | Seen::Silence);
                !seen.is_empty() && seen.iter().all(none)
            }
            Promise::Silent => !seen.is_empty() && seen.iter().all(|seen| *seen == Seen::Silence),
        };
        Finding::tried(self.words(), summary(seen), kept)
    }
}

/// Computes the number of calls needed to see each of `servers` servers with equal shares.
fn calls_for(servers: usize) -> usize {
    let share = 1.0 / servers.max(1) as f64;
    chance::calls_to_see(servers, share, 1).max(1) + MORE
}

/// Computes the number of calls after which the probability that all of them reached the same one
/// of `servers` servers is less than [`chance::MISSED`].
fn calls_until_same(servers: usize) -> usize {
    let shares = servers.max(2) as f64;
    let same = |calls: usize| shares.powf(1.0 - calls as f64);
    let enough = (1..).find(|calls| same(*calls) < chance::MISSED);
    enough.unwrap_or(1)
}

/// Counts the calls that each server answered.
pub fn answered(seen: &[Seen]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for seen in seen {
        if let Seen::Answer { name, .. } = seen {
            *counts.entry(&**name).or_default() += 1;
        }
    }
    counts
}

/// Summarizes the results of the calls in words.
pub fn summary(seen: &[Seen]) -> String {
    let mut parts: Vec<String> = answered(seen)
        .into_iter()
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    let count = |of: &Seen| seen.iter().filter(|seen| *seen == of).count();
    for (what, count) in [
        ("open", count(&Seen::Open)),
        ("refused", count(&Seen::Refused)),
        ("no answer", count(&Seen::Silence)),
    ] {
        if count > 0 {
            parts.push(format!("{what} {count}"));
        }
    }
    let mut others = BTreeMap::<&str, usize>::new();
    for seen in seen {
        if let Seen::Other(why) = seen {
            *others.entry(why).or_default() += 1;
        }
    }
    parts.extend(others.iter().map(|(why, count)| format!("{why} {count}")));
    format!("of {} calls: {}", seen.len(), parts.join(", "))
}

/// The promise about the client address that servers see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientPromise {
    /// The addresses that the caller has.
    pub addresses: Vec<IpAddr>,
    /// Whether servers would see the node instead with `--masquerade-all`.
    pub may_be_masqueraded: bool,
}

impl ClientPromise {
    /// Judges whether servers saw the caller; `is_own` says whether an address is this
    /// node's. `None`: no server answered.
    pub fn judge(&self, seen: &[Seen], is_own: impl Fn(IpAddr) -> bool) -> Option<Finding> {
        let clients = seen.iter().filter_map(|seen| match seen {
            Seen::Answer { client, .. } => Some(client.ip()),
            _ => None,
        });
        let clients: BTreeSet<IpAddr> = clients.collect();
        if clients.is_empty() {
            return None;
        }
        let text = all_of(&clients);
        let (seen, outcome) = if clients.iter().all(|ip| self.addresses.contains(ip)) {
            (text, Outcome::Passed)
        } else if self.may_be_masqueraded && clients.iter().all(|ip| is_own(*ip)) {
            let why = "the node, as with --masquerade-all, which is not known here";
            (format!("{text}: {why}"), Outcome::Skipped)
        } else {
            (text, Outcome::Failed)
        };
        Some(Finding {
            promised: format!("servers see {}", all_of(&self.addresses)),
            seen,
            outcome,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers<const COUNT: usize>(names: [&str; COUNT]) -> Servers {
        names.map(str::to_owned).into()
    }

    fn by(name: &str) -> Seen {
        Seen::Answer {
            name: name.to_owned(),
            client: "10.244.0.9:4000".parse().unwrap(),
        }
    }

    #[test]
    fn calls_are_so_many_that_none_is_missed_by_chance() {
        for (servers, calls) in [(1, 1), (2, 21), (3, 37), (4, 53)] {
            assert_eq!(calls_for(servers), calls + MORE, "{servers}");
        }
        assert_eq!([1, 2, 3].map(calls_until_same), [21, 21, 14]);
    }

    #[test]
    fn a_promise_is_kept_by_all_calls_or_not() {
        use Outcome::{Failed, Passed};
        let two = servers(["a", "b"]);
        for (promise, seen, outcome) in [
            (Promise::Every(two.clone()), vec![by("a"), by("b")], Passed),
            (Promise::Every(two.clone()), vec![by("a"), by("a")], Failed),
            (
                Promise::Every(two.clone()),
                vec![by("a"), by("b"), by("c")],
                Failed,
            ),
            (
                Promise::Every(two.clone()),
                vec![by("a"), by("b"), Seen::Silence],
                Failed,
            ),
            (Promise::Every(two.clone()), vec![], Failed),
            (Promise::Only(two.clone()), vec![by("a"), by("a")], Passed),
            (Promise::Only(two.clone()), vec![by("c")], Failed),
            (
                Promise::SameOne(two.clone()),
                vec![by("b"), by("b")],
                Passed,
            ),
            (
                Promise::SameOne(two.clone()),
                vec![by("a"), by("b")],
                Failed,
            ),
            (Promise::Refused, vec![Seen::Refused], Passed),
            (Promise::Refused, vec![Seen::Refused, Seen::Silence], Failed),
            (Promise::Refused, vec![], Failed),
            (
                Promise::RefusedOrSilent,
                vec![Seen::Refused, Seen::Silence],
                Passed,
            ),
            (Promise::RefusedOrSilent, vec![by("a")], Failed),
            (Promise::Silent, vec![Seen::Silence], Passed),
            (Promise::Silent, vec![Seen::Silence, Seen::Refused], Failed),
            (Promise::Silent, vec![], Failed),
        ] {
            let judged = promise.judge(&seen);
            assert_eq!(judged.outcome, outcome, "{promise:?} {seen:?}");
        }
    }

    #[test]
    fn what_was_seen_is_said_in_words() {
        let seen = [
            by("a"),
            by("a"),
            Seen::Silence,
            Seen::Other("no route".into()),
        ];
        let judged = Promise::Every(servers(["a", "b"])).judge(&seen);
        assert_eq!(judged.promised, "each of a, b answers");
        assert_eq!(judged.seen, "of 4 calls: a 2, no answer 1, no route 1");
    }

    #[test]
    fn servers_see_the_caller_or_the_node_by_masquerade_all() {
        let pod: IpAddr = "10.244.0.9".parse().unwrap();
        let other: IpAddr = "10.244.0.1".parse().unwrap();
        let judge = |addresses: Vec<IpAddr>, may_be_masqueraded| {
            let promise = ClientPromise {
                addresses,
                may_be_masqueraded,
            };
            let judged = promise.judge(&[by("a"), Seen::Silence], |ip| ip == pod);
            judged.map(|judged| judged.outcome)
        };
        assert_eq!(judge(vec![pod], false), Some(Outcome::Passed));
        assert_eq!(judge(vec![other], false), Some(Outcome::Failed));
        assert_eq!(judge(vec![other], true), Some(Outcome::Skipped));
        let promise = ClientPromise {
            addresses: vec![pod],
            may_be_masqueraded: false,
        };
        assert_eq!(promise.judge(&[Seen::Refused], |_| false), None);
    }
}
