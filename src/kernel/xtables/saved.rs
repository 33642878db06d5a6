//! What `iptables-save` says of a table, as much of it as a comparison needs.

use std::hash::{DefaultHasher, Hash, Hasher};

use hashbrown::HashMap;

/// A table.
#[derive(Clone, Debug, Default)]
pub struct Saved {
    /// Its chains by name.
    pub chains: HashMap<String, SavedChain>,
}

/// A chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SavedChain {
    /// Its rules in their order, as one number.
    pub digest: Digest,
    /// Its rules without `-A CHAIN`, if they were asked for.
    pub rules: Option<Vec<String>>,
}

/// Rules in their order, as one number: equal for equal rules, and for others
/// but once in 2⁶⁴.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digest(u64);

impl Digest {
    /// Adds a rule in the words of `iptables-save`, without `-A CHAIN`.
    pub fn add(&mut self, words: &str) {
        let mut hasher = DefaultHasher::new();
        (self.0, words).hash(&mut hasher);
        self.0 = hasher.finish();
    }
}

impl Saved {
    /// Takes one line in. The rules' words are kept of chains that `keep`
    /// names.
    pub fn line(&mut self, line: &str, keep: impl Fn(&str) -> bool) {
        if let Some(chain) = line.strip_prefix(':') {
            let name = chain.split(' ').next().unwrap_or_default();
            let rules = keep(name).then(Vec::new);
            let digest = Digest::default();
            let chain = SavedChain { digest, rules };
            self.chains.insert(name.to_owned(), chain);
        } else if let Some(rule) = line.strip_prefix("-A ") {
            let (name, words) = rule.split_once(' ').unwrap_or((rule, ""));
            if let Some(chain) = self.chains.get_mut(name) {
                chain.digest.add(words);
                if let Some(rules) = &mut chain.rules {
                    rules.push(words.to_owned());
                }
            }
        }
    }
}

/// The chain or target that a rule leads to, by `-j` or `-g`, in the words of
/// `iptables-save`.
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
    fn chains_are_told_apart_by_their_rules_and_order() {
        let text = "# Generated\n*nat\n:PREROUTING ACCEPT [0:0]\n:A - [0:0]\n:B - [0:0]\n\
                    -A PREROUTING -j A\n-A A -j RETURN\n-A A -p tcp -j B\n-A B -j RETURN\nCOMMIT\n";
        let mut saved = Saved::default();
        for line in text.lines() {
            saved.line(line, |name| name == "PREROUTING");
        }
        let digest = |rules: &[&str]| {
            let mut digest = Digest::default();
            rules.iter().for_each(|rule| digest.add(rule));
            digest
        };
        assert_eq!(saved.chains.len(), 3);
        assert_eq!(
            saved.chains["PREROUTING"].rules,
            Some(vec!["-j A".to_owned()])
        );
        let a = &saved.chains["A"];
        assert_eq!(
            (a.digest, &a.rules),
            (digest(&["-j RETURN", "-p tcp -j B"]), &None)
        );
        assert_ne!(a.digest, digest(&["-p tcp -j B", "-j RETURN"]));
        assert_ne!(a.digest, saved.chains["B"].digest);
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
        for (words, wanted) in cases {
            assert_eq!(target(words), wanted, "{words}");
        }
    }
}
