//! Compares results with promises.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use super::{
    call::Seen,
    promise::{Answers, Promise},
    report::Finding,
};
use crate::listing::{all_of, first_of};

/// Maximum number of endpoints that are named in a row.
const NAMED: usize = 4;

/// Judges calls with the results `seen`, made by the host with the address `caller`.
pub(super) fn judge(promise: &Promise, seen: &[Seen], caller: IpAddr) -> Finding {
    let (promised, fault) = match promise {
        Promise::Nothing(why) => {
            return Finding::skipped(why.clone());
        }
        Promise::Refused => (
            "refused".to_owned(),
            other_than(&Seen::Refused, "it must be refused", seen),
        ),
        Promise::Silence => (
            "no answer".to_owned(),
            other_than(&Seen::Silence, "nothing must answer", seen),
        ),
        Promise::Answers(answers) => (answers.words(), answers.fault(seen, caller)),
    };
    let kept = fault.is_none();
    let seen: Vec<String> = [summary(seen)].into_iter().chain(fault).collect();
    Finding::tried(promised, seen.join("; "), kept)
}

/// Returns the finding that the running Tripod and the objects disagree.
pub(super) fn disagreement(why: String) -> Finding {
    Finding::tried("-".to_owned(), why, false)
}

fn other_than(promised: &Seen, fault: &str, seen: &[Seen]) -> Option<String> {
    let is_as_promised = !seen.is_empty() && seen.iter().all(|seen| seen == promised);
    (!is_as_promised).then(|| fault.to_owned())
}

impl Answers {
    /// Returns whether each endpoint is among those that answered.
    pub(super) fn are_seen(&self, seen: &[Seen]) -> bool {
        self.endpoints.iter().all(|endpoint| {
            let endpoint = endpoint.to_string();
            seen.iter()
                .any(|seen| matches!(seen, Seen::Answer { name, .. } if *name == endpoint))
        })
    }

    fn words(&self) -> String {
        let endpoints = first_of(&self.endpoints, NAMED);
        let mut words = match self.endpoints.len() {
            0 | 1 => endpoints,
            _ if self.stays => format!("always the same of {endpoints}"),
            _ if self.every => endpoints,
            _ => format!("some of {endpoints}"),
        };
        if self.sees_caller {
            words.push_str(", sees the caller");
        }
        words
    }

    /// Returns the first deviation from the promise; `None` if there is none.
    fn fault(&self, seen: &[Seen], caller: IpAddr) -> Option<String> {
        let known: BTreeSet<String> = self.endpoints.iter().map(SocketAddr::to_string).collect();
        let mut answered = BTreeSet::new();
        for seen in seen {
            let Seen::Answer { name, client } = seen else {
                return Some("an endpoint must answer each call".to_owned());
            };
            if !known.contains(name) {
                return Some(format!("{name} must not answer"));
            }
            if self.sees_caller && client.ip().to_canonical() != caller {
                return Some(format!("{name} saw {} as the caller", client.ip()));
            }
            answered.insert(name.clone());
        }
        if seen.is_empty() {
            return Some("no call was made".to_owned());
        }
        if self.stays && answered.len() > 1 {
            return Some("one caller must stay on one endpoint".to_owned());
        }
        let missing = self.endpoints.iter();
        let missing: Vec<&SocketAddr> = missing
            .filter(|endpoint| self.every && !answered.contains(&endpoint.to_string()))
            .collect();
        (!missing.is_empty()).then(|| format!("never {} in {} calls", all_of(missing), seen.len()))
    }
}

/// Summarizes the results, without duplicates.
fn summary(seen: &[Seen]) -> String {
    let mut counts = BTreeMap::<(bool, String), usize>::new();
    for seen in seen {
        let (is_other, words) = match seen {
            Seen::Answer { name, .. } => (false, name.clone()),
            Seen::Open => (true, "open".to_owned()),
            Seen::Refused => (true, "refused".to_owned()),
            Seen::Silence => (true, "no answer".to_owned()),
            Seen::Other(what) => (true, what.clone()),
        };
        *counts.entry((is_other, words)).or_default() += 1;
    }
    let is_mixed = counts.len() > 1 && counts.keys().any(|(is_other, _)| *is_other);
    // Sorted as addresses, as elsewhere, and not as text.
    let mut found: Vec<_> = counts.into_iter().collect();
    found.sort_by_key(|((is_other, words), _)| (*is_other, words.parse::<SocketAddr>().ok()));
    let found = found.into_iter().map(|((_, words), count)| {
        if is_mixed {
            format!("{words} ({count} of {})", seen.len())
        } else {
            words
        }
    });
    first_of(found, NAMED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::report::Outcome;

    fn answer(name: &str, client: &str) -> Seen {
        Seen::Answer {
            name: name.to_owned(),
            client: client.parse().expect("an address"),
        }
    }

    fn from_pod(name: &str) -> Seen {
        answer(name, "198.18.0.2:4000")
    }

    fn answers(stays: bool, sees_caller: bool) -> Promise {
        Promise::Answers(Answers {
            endpoints: ["10.1.0.1:80", "10.1.0.2:80"]
                .map(|one| one.parse().expect("an address"))
                .to_vec(),
            calls: 3,
            every: !stays,
            stays,
            sees_caller,
        })
    }

    const CALLER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(198, 18, 0, 2));
    const ONE: &str = "10.1.0.1:80";
    const OTHER: &str = "10.1.0.2:80";

    /// Answered by a server that saw the node's address.
    fn masked() -> Seen {
        answer(OTHER, "198.18.0.17:4000")
    }

    #[test]
    fn what_is_as_promised_passes() {
        let (one, other) = (|| from_pod(ONE), || from_pod(OTHER));
        for (promise, seen) in [
            (answers(false, false), vec![one(), other(), one()]),
            (answers(false, false), vec![masked(), one(), one()]),
            (answers(true, false), vec![one(), one(), one()]),
            (answers(false, true), vec![one(), other(), one()]),
            (Promise::Refused, vec![Seen::Refused; 2]),
            (Promise::Silence, vec![Seen::Silence; 2]),
        ] {
            let judged = judge(&promise, &seen, CALLER);
            assert_eq!(judged.outcome, Outcome::Passed, "{promise:?} {judged:?}");
        }
        let judged = judge(&answers(true, true), &[one()], CALLER);
        let words = "always the same of 10.1.0.1:80, 10.1.0.2:80, sees the caller";
        assert_eq!((&*judged.promised, &*judged.seen), (words, ONE));
    }

    #[test]
    fn what_is_not_as_promised_fails_with_the_reason() {
        let (one, other) = (|| from_pod(ONE), || from_pod(OTHER));
        let foreign = || from_pod("10.1.0.3:80");
        for (promise, seen, words) in [
            (
                answers(false, false),
                vec![one(), one(), one()],
                "10.1.0.1:80; never 10.1.0.2:80 in 3 calls",
            ),
            (
                answers(false, false),
                vec![one(), other(), foreign()],
                "10.1.0.1:80, 10.1.0.2:80, 10.1.0.3:80; 10.1.0.3:80 must not answer",
            ),
            (
                answers(false, false),
                vec![one(), other(), Seen::Silence],
                "10.1.0.1:80 (1 of 3), 10.1.0.2:80 (1 of 3), no answer (1 of 3); \
                 an endpoint must answer each call",
            ),
            (
                answers(false, false),
                vec![Seen::Other("no route".to_owned())],
                "no route; an endpoint must answer each call",
            ),
            (
                answers(true, false),
                vec![one(), one(), other()],
                "10.1.0.1:80, 10.1.0.2:80; one caller must stay on one endpoint",
            ),
            (
                answers(false, true),
                vec![one(), masked(), one()],
                "10.1.0.1:80, 10.1.0.2:80; 10.1.0.2:80 saw 198.18.0.17 as the caller",
            ),
            (answers(true, false), vec![], "; no call was made"),
            (
                Promise::Refused,
                vec![Seen::Refused, Seen::Silence],
                "no answer (1 of 2), refused (1 of 2); it must be refused",
            ),
            (
                Promise::Refused,
                vec![one()],
                "10.1.0.1:80; it must be refused",
            ),
            (
                Promise::Silence,
                vec![Seen::Silence, other()],
                "10.1.0.2:80 (1 of 2), no answer (1 of 2); nothing must answer",
            ),
        ] {
            let judged = judge(&promise, &seen, CALLER);
            assert_eq!(judged.outcome, Outcome::Failed, "{promise:?} {judged:?}");
            assert_eq!(judged.seen, words);
        }
    }

    #[test]
    fn what_is_not_promised_is_skipped() {
        let judged = judge(&Promise::Nothing("SCTP".to_owned()), &[], CALLER);
        assert_eq!(judged.outcome, Outcome::Skipped);
        assert_eq!((&*judged.promised, &*judged.seen), ("-", "SCTP"));
    }

    #[test]
    fn long_lists_are_cut() {
        assert_eq!(first_of(1..=6, NAMED), "1, 2, 3, 4 and 2 more");
    }
}
