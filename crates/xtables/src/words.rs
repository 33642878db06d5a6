//! Rules in the words of `iptables-save`, compared without regard to quotes.

use std::{
    borrow::Cow,
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
};

use net::Family;

use super::rule::Rule;

/// Stands for a space within quotes.
const QUOTED_SPACE: char = '\u{1f}';

/// A rule in the words of `iptables-save`, without `-A CHAIN`. Programs differ in which words they
/// put between quotes: rules that differ in nothing else are equal.
#[derive(Clone, Debug)]
pub struct Words(String);

impl Words {
    /// Returns the words that `line` prints.
    pub fn new(line: &str) -> Words {
        Words(line.to_owned())
    }

    /// The words of a rule of `family`, as `iptables-save` prints them.
    pub fn of(rule: &Rule, family: Family) -> Words {
        Words(rule.words(family).to_string())
    }

    /// Returns the words as they were printed, or would be.
    pub(super) fn text(&self) -> &str {
        &self.0
    }

    /// Returns the chain or target of `-j` or `-g`; `None`: the rule has neither.
    pub fn target(&self) -> Option<&str> {
        target(&self.0)
    }

    /// Returns true if both rules are for the same packets, with any target: all words are equal
    /// except the chain or target.
    pub fn matches_as(&self, other: &Words) -> bool {
        fn matches(words: &Words) -> Option<Cow<'_, str>> {
            let target = words.target()?;
            words.0.strip_suffix(target).map(unquoted)
        }
        matches(self).is_some_and(|own| matches(other) == Some(own))
    }
}

impl PartialEq for Words {
    fn eq(&self, other: &Words) -> bool {
        self.0 == other.0 || unquoted(&self.0) == unquoted(&other.0)
    }
}

impl Eq for Words {}

impl Hash for Words {
    fn hash<H: Hasher>(&self, state: &mut H) {
        unquoted(&self.0).hash(state);
    }
}

impl fmt::Display for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Rules in their order, as one number: equal for equal rules, and for others only once
/// in 2⁶⁴.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digest(u64);

impl Digest {
    /// Digests `rules` of `family`.
    pub fn of(rules: &[Rule], family: Family) -> Digest {
        let mut digest = Digest::default();
        for rule in rules {
            digest.add(&rule.words(family).to_string());
        }
        digest
    }

    /// Adds a rule in the words of `iptables-save`, without `-A CHAIN`.
    pub fn add(&mut self, words: &str) {
        let mut hasher = DefaultHasher::new();
        (self.0, unquoted(words)).hash(&mut hasher);
        self.0 = hasher.finish();
    }
}

/// Returns the line without quotes and the escapes within them; a space that they
/// enclosed differs from one between words.
fn unquoted(line: &str) -> Cow<'_, str> {
    if !line.contains('"') {
        return Cow::Borrowed(line);
    }
    let mut out = String::with_capacity(line.len());
    let (mut quoted, mut escaped) = (false, false);
    for c in line.chars() {
        match c {
            _ if escaped => {
                out.push(c);
                escaped = false;
            }
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            ' ' if quoted => out.push(QUOTED_SPACE),
            c => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// The part of a table that a line of `iptables-save` describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line<'a> {
    /// It has the chain of this name.
    Chain(&'a str),
    /// A chain has a rule.
    Rule {
        /// The name of the chain.
        chain: &'a str,
        /// The rule, without `-A CHAIN`.
        words: &'a str,
    },
}

impl Line<'_> {
    /// Reads `line`; `None`: it is neither a chain nor a rule.
    pub fn parse(line: &str) -> Option<Line<'_>> {
        if let Some(declared) = line.strip_prefix(':') {
            return declared.split(' ').next().map(Line::Chain);
        }
        let rule = line.strip_prefix("-A ")?;
        let (chain, words) = rule.split_once(' ').unwrap_or((rule, ""));
        Some(Line::Rule { chain, words })
    }
}

/// Returns the rule in a line of `iptables-save -c`, and how many packets it applied to;
/// `None`: it is the line of something else.
pub(super) fn counted(line: &str) -> Option<(Line<'_>, u64)> {
    let (counts, rule) = line.strip_prefix('[')?.split_once("] ")?;
    let (packets, _) = counts.split_once(':')?;
    Some((Line::parse(rule)?, packets.parse().ok()?))
}

/// Reads a line in each way; for tests with text from anywhere.
pub fn read_anything(line: &str) {
    let _ = (Line::parse(line), counted(line), target(line));
    let _ = Words::new(line).target();
    let _ = values(line, "--comment").count();
    Digest::default().add(line);
}

/// Returns the word after each `option` of a rule in the words of `iptables-save`, without
/// quotes and the escapes within them.
pub fn values(words: &str, option: &str) -> impl Iterator<Item = String> {
    let bare = unquoted(words).into_owned();
    let mut found = Vec::new();
    let mut bare = bare.split(' ');
    while let Some(word) = bare.next() {
        if word == option {
            found.extend(bare.next().map(|value| value.replace(QUOTED_SPACE, " ")));
        }
    }
    found.into_iter()
}

/// Returns the chain or target of `-j` or `-g` in a rule as `iptables-save` prints it; `None`: the
/// rule has neither.
pub fn target(words: &str) -> Option<&str> {
    let (mut quoted, mut escaped) = (false, false);
    let mut bare = words.split(|c| {
        let space = c == ' ' && !quoted;
        quoted ^= c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        space
    });
    let mut found = None;
    while let Some(word) = bare.next() {
        if matches!(word, "-j" | "-g") {
            found = bare.next();
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_equal_whatever_the_quotes() {
        for (one, other) in [
            (
                "-m comment --comment a -j B",
                "-m comment --comment \"a\" -j B",
            ),
            ("--comment \"it's\"", "--comment \"it\\'s\""),
        ] {
            assert_eq!(Words::new(one), Words::new(other));
        }
        for (one, other) in [
            ("--comment \"a b\"", "--comment a b"),
            ("--comment \"a\\\"b\"", "--comment ab"),
            ("-j A", "-j B"),
        ] {
            assert_ne!(Words::new(one), Words::new(other));
        }
    }

    #[test]
    fn rules_for_the_same_packets_differ_in_their_target_alone() {
        let rule = Words::new("-d 192.0.2.1/32 -m comment --comment \"a\" -j A");
        for other in [
            "-d 192.0.2.1/32 -m comment --comment \"a\" -j A",
            "-d 192.0.2.1/32 -m comment --comment \"a\" -j B",
            "-d 192.0.2.1/32 -m comment --comment a -j B",
        ] {
            assert!(rule.matches_as(&Words::new(other)), "{other}");
        }
        for other in [
            "-d 192.0.2.2/32 -m comment --comment \"a\" -j A",
            "-d 192.0.2.1/32 -m comment --comment \"a\"",
            "-d 192.0.2.1/32 -m comment --comment \"a\" -g A",
        ] {
            assert!(!rule.matches_as(&Words::new(other)), "{other}");
        }
    }

    #[test]
    fn chains_differ_in_their_rules_and_order() {
        let digest = |rules: &[&str]| {
            let mut digest = Digest::default();
            rules.iter().for_each(|rule| digest.add(rule));
            digest
        };
        let a = digest(&["-j RETURN", "-p tcp -j B"]);
        assert_eq!(a, digest(&["-j RETURN", "-p tcp -j \"B\""]));
        assert_ne!(a, digest(&["-p tcp -j B", "-j RETURN"]));
        assert_ne!(a, digest(&["-j RETURN"]));
    }

    #[test]
    fn the_target_is_found_beside_comments() {
        let cases = [
            ("-j KUBE-SERVICES", Some("KUBE-SERVICES")),
            ("-p tcp -g A", Some("A")),
            ("-m comment --comment \"x -j B\" -j A", Some("A")),
            ("-m comment --comment \"x \\\" -j B\"", None),
            (
                "-j REJECT --reject-with icmp-port-unreachable",
                Some("REJECT"),
            ),
            ("-j", None),
            ("", None),
        ];
        for (words, expected) in cases {
            assert_eq!(target(words), expected, "{words}");
        }
    }

    #[test]
    fn values_are_what_follows_an_option() {
        let words = "-m set --match-set A dst -m set --match-set B src -m comment --comment \
                     \"say \\\"no\\\" --match-set C\" -j D";
        let found = |option| values(words, option).collect::<Vec<_>>();
        assert_eq!(found("--match-set"), ["A", "B"]);
        assert_eq!(found("--comment"), ["say \"no\" --match-set C"]);
        assert_eq!(found("-j"), ["D"]);
        assert!(found("-g").is_empty());
        assert!(values("--comment", "--comment").next().is_none());
    }

    #[test]
    fn counts_stand_before_a_rule() {
        let rule = Line::Rule {
            chain: "KUBE-SEP-A",
            words: "-p tcp -j DNAT --to-destination 10.0.0.1:80",
        };
        let line = "[12:720] -A KUBE-SEP-A -p tcp -j DNAT --to-destination 10.0.0.1:80";
        assert_eq!(counted(line), Some((rule, 12)));
        for line in [
            ":KUBE-SEP-A - [0:0]",
            "*nat",
            "-A KUBE-SEP-A -j DNAT",
            "[1] -A X",
            "",
        ] {
            assert_eq!(counted(line), None, "{line}");
        }
    }
}
