//! Rulesets in the format of `iptables-save`, compared as `tests/vectors/README.md` describes: the
//! order of chains does not matter, that of rules in a chain does.
//!
//! kube-proxy writes Services in random order, so two rules may be swapped unless some packet
//! matches both.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::PathBuf,
    sync::atomic::{AtomicUsize, Ordering},
};

use ipnet::IpNet;

/// The chains of all tables, with their rules. The kernel's own chains are left out if they are
/// empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ruleset(BTreeMap<ChainName, Vec<Words>>);

/// A chain's table and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChainName {
    /// Such as `nat`.
    pub table: String,
    /// Such as `KUBE-SERVICES`.
    pub chain: String,
}

/// The words of a rule, quotes resolved, without `-A CHAIN`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Words(Vec<String>);

impl Ruleset {
    /// Parses output of `iptables-save` or input of `iptables-restore`. Policies and counters are
    /// left out.
    ///
    /// # Panics
    /// At a line that is neither.
    pub fn parse(text: &str) -> Ruleset {
        let mut chains = Ruleset::default();
        let mut table = String::new();
        for line in text.lines().map(str::trim) {
            if line.is_empty() || line.starts_with('#') || line == "COMMIT" {
                continue;
            }
            if let Some(name) = line.strip_prefix('*') {
                table = name.to_owned();
                continue;
            }
            let name = |chain: &str| ChainName {
                table: table.clone(),
                chain: chain.to_owned(),
            };
            if let Some(declared) = line.strip_prefix(':') {
                let (chain, rest) = declared.split_once(' ').expect("a chain and its policy");
                if rest.starts_with('-') {
                    chains.0.entry(name(chain)).or_default();
                }
                continue;
            }
            // Counters before a rule: `[1:60] -A …`.
            let rule = match line.strip_prefix('[') {
                Some(counted) => counted.split_once("] ").expect("counters").1,
                None => line,
            };
            let mut words = words(rule).into_iter();
            let action = words.next();
            let chain = words.next().expect("its chain");
            let rules = chains.0.entry(name(&chain)).or_default();
            let rule = Words(words.collect());
            match action.as_deref() {
                Some("-A") => rules.push(rule),
                Some("-I") => rules.insert(0, rule),
                _ => panic!("no rule: {line}"),
            }
        }
        chains
    }

    /// Drops the chains for which `leave_out` is true.
    pub fn without(mut self, leave_out: impl Fn(&ChainName) -> bool) -> Ruleset {
        self.0.retain(|name, _| !leave_out(name));
        self
    }

    /// Lists the differences from `other`, one per line; empty if the two are equal.
    pub fn differences(&self, other: &Ruleset) -> Vec<String> {
        let mut found = Vec::new();
        let names: BTreeSet<&ChainName> = self.0.keys().chain(other.0.keys()).collect();
        for name in names {
            match (self.0.get(name), other.0.get(name)) {
                (Some(_), None) => found.push(format!("missing chain {name}")),
                (None, Some(_)) => found.push(format!("more: chain {name}")),
                (Some(expected), Some(given)) => {
                    let found_here = differences(expected, given);
                    found.extend(found_here.iter().map(|line| format!("{name}: {line}")));
                }
                (None, None) => {}
            }
        }
        found
    }
}

fn differences(expected: &[Words], given: &[Words]) -> Vec<String> {
    let mut found = Vec::new();
    let mut left: Vec<&Words> = given.iter().collect();
    for rule in expected {
        match left.iter().position(|other| *other == rule) {
            Some(at) => drop(left.remove(at)),
            None => found.push(format!("missing: {rule}")),
        }
    }
    found.extend(left.iter().map(|rule| format!("more: {rule}")));
    if !found.is_empty() {
        return found;
    }
    // The rules are the same; now compare the order of those that can match the same packet.
    let order = |rules: &[Words], a: &Words, b: &Words| {
        let at = |rule: &Words| rules.iter().position(|other| other == rule);
        at(a) < at(b)
    };
    for (i, a) in expected.iter().enumerate() {
        for b in &expected[i + 1..] {
            let alike = a.without_comment() == b.without_comment();
            if !alike && a.overlaps(b) && !order(given, a, b) {
                found.push(format!("wrong order: {a} comes after {b}"));
            }
        }
    }
    found
}

impl Words {
    /// The value of `option`; `None` if it is negated or absent.
    pub fn value(&self, option: &str) -> Option<&str> {
        let at = self.0.iter().position(|word| word == option)?;
        let negated = at > 0 && self.0[at - 1] == "!";
        (!negated)
            .then(|| self.0.get(at + 1))
            .flatten()
            .map(|word| &**word)
    }

    /// The rule without its comment, which matters to no packet.
    fn without_comment(&self) -> Vec<&str> {
        let mut words = self.0.iter().map(String::as_str);
        let mut found = Vec::new();
        while let Some(word) = words.next() {
            if word == "--comment" {
                words.next();
            } else {
                found.push(word);
            }
        }
        found
    }

    /// Whether some packet could match both rules, judging by destination address, protocol and
    /// port.
    fn overlaps(&self, other: &Words) -> bool {
        let both = |option| Some((self.value(option)?, other.value(option)?));
        let net = |text: &str| -> Option<IpNet> {
            let whole = || text.parse().ok().map(|ip: std::net::IpAddr| ip.into());
            text.parse().ok().or_else(whole)
        };
        if let Some((a, b)) = both("-d")
            && let (Some(a), Some(b)) = (net(a), net(b))
            && !a.contains(&b)
            && !b.contains(&a)
        {
            return false;
        }
        ["-p", "--dport"]
            .into_iter()
            .all(|option| both(option).is_none_or(|(a, b)| a == b))
    }
}

/// Splits a line into words; quotes and backslashes mean what they mean to `iptables-restore`.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quoted = false;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => word
                .get_or_insert_default()
                .push(chars.next().unwrap_or('\\')),
            '"' => {
                quoted = !quoted;
                word.get_or_insert_default();
            }
            ' ' if !quoted => words.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

impl fmt::Display for ChainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.table, self.chain)
    }
}

impl fmt::Display for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(" "))
    }
}

/// One recorded case of `tests/vectors`.
#[derive(Clone, Debug)]
pub struct Case {
    pub name: String,
    /// The folder with its files.
    pub path: PathBuf,
    /// Flags of this run in addition to [`FLAGS`].
    pub args: Vec<String>,
}

/// Flags used for all recordings.
pub const FLAGS: [&str; 3] = [
    "--hostname-override=lab-node",
    "--cluster-cidr=10.244.0.0/16,fd00:10:244::/48",
    "--conntrack-max-per-core=0",
];

/// Reads all recorded cases, sorted by name.
///
/// # Panics
/// If they cannot be read.
pub fn cases() -> Vec<Case> {
    let folder = vectors();
    let entries = std::fs::read_dir(&folder).expect("tests/vectors");
    let mut cases: Vec<Case> = entries
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.is_dir())
        .map(|path| Case {
            name: path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned(),
            args: std::fs::read_to_string(path.join("args"))
                .expect("its flags")
                .split_whitespace()
                .map(str::to_owned)
                .collect(),
            path,
        })
        .collect();
    cases.sort_by(|a, b| a.name.cmp(&b.name));
    assert_eq!(cases.len(), 24, "recorded cases");
    cases
}

fn vectors() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/vectors")
}

impl Case {
    /// Reads one of its files, such as `iptables/ip6tables-save.txt`.
    ///
    /// # Panics
    /// If it cannot be read.
    pub fn read(&self, file: &str) -> String {
        let path = self.path.join(file);
        std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }

    /// Writes the objects and the Node to `folder`, for `--manifests`.
    ///
    /// # Panics
    /// If they cannot be written.
    pub fn write_manifests(&self, folder: &std::path::Path) {
        for from in [self.path.join("objects.yaml"), vectors().join("node.yaml")] {
            let to = folder.join(from.file_name().expect("a file"));
            std::fs::copy(&from, to).unwrap_or_else(|e| panic!("{}: {e}", from.display()));
        }
    }
}

mod tests {
    use super::Ruleset;

    #[test]
    fn order_counts_where_one_packet_matches_both() {
        let rules = |lines: &[&str]| {
            let lines: Vec<_> = lines.iter().map(|line| format!("-A X {line}\n")).collect();
            Ruleset::parse(&format!("*nat\n:X - [0:0]\n{}COMMIT\n", lines.concat()))
        };
        let a = "-d 10.0.0.1/32 -p tcp -m tcp --dport 80 -j A";
        let b = "-d 10.0.0.2/32 -p tcp -m tcp --dport 80 -j B";
        let all = "-m comment --comment \"a \\\"b\\\"\" -j C";
        let expected = rules(&[a, b, all]);
        let cases: [(&[&str], usize); 5] = [
            (&[a, b, all], 0),
            (&[b, a, all], 0),
            (&[all, a, b], 2),
            (&[a, all], 1),
            (&[a, b, b, all], 1),
        ];
        for (given, count) in cases {
            let found = expected.differences(&rules(given));
            assert_eq!(found.len(), count, "{given:?}: {found:?}");
        }
        let other = Ruleset::parse("*nat\n:Y - [0:0]\n:INPUT ACCEPT [1:2]\nCOMMIT\n");
        assert_eq!(expected.differences(&other).len(), 2);
    }
}

/// A folder of this process, removed on drop.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("tripod-render-{}-{number}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
