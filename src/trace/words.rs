//! Descriptions of the steps of a packet's path.

use nftables::{RuleSummary, TracedChain, TracedStep, Verdict};

use super::report::{Outcome, Step};

/// Describes a step in `of`, and returns the outcome if the packet's path ends there; `rule` describes its
/// rule. `None`: it is not worth a line, such as the end of a chain that lets the packet pass.
pub(super) fn step(
    of: &TracedChain,
    step: &TracedStep,
    rule: Option<&RuleSummary>,
) -> Option<(Step, Option<Outcome>)> {
    let chain = chain(of);
    match step {
        TracedStep::End | TracedStep::Policy { drops: false } => None,
        // The kernel marks the end of a chain by a rule without a number.
        TracedStep::Rule {
            handle: 0,
            verdict: Some(Verdict::Continue),
        } => None,
        TracedStep::Policy { drops: true } => {
            let step = Step {
                at: format!("the end of {chain}"),
                verdict: "drop".to_owned(),
            };
            Some((step, Some(Outcome::Dropped)))
        }
        TracedStep::Rule { handle, verdict } => {
            let refuses = rule.is_some_and(|rule| rule.refuses);
            let (verdict, end) = match verdict {
                Some(Verdict::Drop) if refuses => ("reject".to_owned(), Some(Outcome::Refused)),
                Some(Verdict::Drop) => ("drop".to_owned(), Some(Outcome::Dropped)),
                Some(other) => (other.to_string(), None),
                None => ("another verdict".to_owned(), None),
            };
            let at = format!("{} of {chain}", named(*handle, rule));
            Some((Step { at, verdict }, end))
        }
    }
}

fn chain(chain: &TracedChain) -> String {
    format!("chain {} of table {}", chain.name, chain.table)
}

/// Names the rule by its comment, its sets, its target, or else its number.
fn named(handle: u64, rule: Option<&RuleSummary>) -> String {
    let mut parts = Vec::new();
    if let Some(rule) = rule {
        parts.extend(
            rule.comment
                .as_ref()
                .map(|comment| format!("\"{comment}\"")),
        );
        parts.extend(rule.sets.iter().map(|set| format!("@{set}")));
        parts.extend(rule.target.as_ref().map(|target| format!("-j {target}")));
    }
    if parts.is_empty() {
        parts.push(format!("with handle {handle}"));
    }
    format!("rule {}", parts.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain() -> TracedChain {
        TracedChain {
            family: 2,
            table: "nat".to_owned(),
            name: "KUBE-SERVICES".to_owned(),
        }
    }

    #[test]
    fn rules_are_named_by_what_they_say() {
        let commented = RuleSummary {
            comment: Some("default/web:tcp cluster IP".to_owned()),
            ..RuleSummary::default()
        };
        let looking_up = RuleSummary {
            sets: vec!["services".to_owned()],
            ..RuleSummary::default()
        };
        let refusing = RuleSummary {
            refuses: true,
            target: Some("REJECT".to_owned()),
            ..RuleSummary::default()
        };
        let jump = Verdict::Jump("KUBE-SVC-A".into());
        for (rule, verdict, at, words, end) in [
            (
                Some(&commented),
                Some(jump.clone()),
                "rule \"default/web:tcp cluster IP\"",
                "jump KUBE-SVC-A",
                None,
            ),
            (
                Some(&looking_up),
                Some(jump.clone()),
                "rule @services",
                "jump KUBE-SVC-A",
                None,
            ),
            (
                Some(&refusing),
                Some(Verdict::Drop),
                "rule -j REJECT",
                "reject",
                Some(Outcome::Refused),
            ),
            (
                None,
                Some(Verdict::Drop),
                "rule with handle 7",
                "drop",
                Some(Outcome::Dropped),
            ),
            (None, None, "rule with handle 7", "another verdict", None),
        ] {
            let met = TracedStep::Rule { handle: 7, verdict };
            let expected = Step {
                at: format!("{at} of chain KUBE-SERVICES of table nat"),
                verdict: words.to_owned(),
            };
            assert_eq!(step(&chain(), &met, rule), Some((expected, end)));
        }
        let policy = |drops| step(&chain(), &TracedStep::Policy { drops }, None);
        assert_eq!(policy(false), None);
        let end = TracedStep::Rule {
            handle: 0,
            verdict: Some(Verdict::Continue),
        };
        assert_eq!(step(&chain(), &end, None), None);
        let (dropped, end) = policy(true).expect("it is worth a line");
        assert_eq!(dropped.at, "the end of chain KUBE-SERVICES of table nat");
        assert_eq!(end, Some(Outcome::Dropped));
    }
}
