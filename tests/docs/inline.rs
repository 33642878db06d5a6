//! Commands of other programs in running text, where the object of the command may be missing: such
//! commands exist, and so do the objects of this repository that they name.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::{
    commands::{is_target, is_there},
    documents,
    kubectl::Cluster,
    parts, root, shell,
};
use crate::{
    deploy::chart::tool,
    lab::{is_installed, skip},
};

/// Programs whose commands are checked.
pub const PROGRAMS: [&str; 17] = [
    "make",
    "cargo",
    "kubectl",
    "helm",
    "conntrack",
    "ip",
    "ipset",
    "iptables",
    "ip6tables",
    "ipvsadm",
    "kill",
    "kubeadm",
    "nft",
    "sed",
    "ss",
    "systemctl",
    "ulimit",
];

/// Code that begins with the name of a program but is not a command of it.
const NO_COMMANDS: [&str; 1] = ["ip tripod"];

/// Commands that cannot be checked here, by their beginning, and why.
const UNCHECKED: [(&str, &str); 8] = [
    ("kubeadm ", "kubeadm is not here"),
    ("kubectl krew ", "krew is not here"),
    (
        "ip addr add 10.96.0.9/32 dev lo",
        "tests/ipvs/traffic.rs gives endpoints the address so",
    ),
    (
        "ip link set tunl0 up",
        "module ipip makes the link; tests/ipvs/traffic.rs sets it up so in a guest",
    ),
    (
        "ipvsadm -R",
        "the program has no help without IPVS; tests/ipvs/vectors.rs compares what it prints",
    ),
    ("kill -9", "a signal that every process knows"),
    ("ulimit -n", "the shell has it (POSIX, ulimit)"),
    (
        "sed -i",
        "what it does to a file is in the sentence; its help says no more",
    ),
];

/// Commands of kubectl that name no object: kubectl itself must know them.
const BARE: [&[&str]; 5] = [
    &["apply", "-k"],
    &["delete", "-k"],
    &["describe"],
    &["port-forward"],
    &["rollout", "undo"],
];

/// Placeholder for the name of a pod in the text, and a name that a pod may have.
const POD: (&str, &str) = ("POD", "kube-proxy-x2x9z");

/// Flags of other programs that appear alone in the text, and the commands that have them.
const FLAGS: [(&str, &[&str]); 8] = [
    ("--noflush", &["iptables-restore"]),
    ("--set", &["helm", "upgrade"]),
    ("--force-conflicts", &["helm", "upgrade"]),
    ("--reuse-values", &["helm", "upgrade"]),
    ("--reset-then-reuse-values", &["helm", "upgrade"]),
    ("--server-side", &["helm", "upgrade"]),
    ("--rollback-on-failure", &["helm", "upgrade"]),
    ("--to-revision", &["kubectl", "rollout", "undo"]),
];

/// Flags of programs that are not installed here, and the program of each.
const ELSEWHERE: [(&str, &str); 4] = [
    ("--skip-phases", "kubeadm"),
    ("--kube-proxy-arg", "k3s"),
    ("--disable-kube-proxy", "k3s"),
    ("--dry-run", "talosctl"),
];

/// Returns the documents for users and those for developers of Tripod, by their paths.
pub fn all_documents() -> BTreeMap<PathBuf, String> {
    let mut all = documents();
    for name in [
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "benches/README.md",
        "fuzz/README.md",
    ] {
        let path = root().join(name);
        let text = fs::read_to_string(&path).expect("a document");
        all.insert(path, text);
    }
    all
}

/// Checks a command, by its words.
///
/// # Errors
/// Names the thing that does not exist, or says that there is no check for the command.
fn check(words: &[String]) -> Result<(), String> {
    let all: Vec<&str> = words.iter().map(String::as_str).collect();
    let line = all.join(" ");
    if UNCHECKED.iter().any(|(begin, _)| line.starts_with(begin)) || is_run(&line) {
        return Ok(());
    }
    match all[..] {
        ["make", ref rest @ ..] => make(rest),
        ["cargo", ref rest @ ..] => cargo(rest),
        ["kubectl", ref rest @ ..] => kubectl(rest),
        ["kill", job] if job.starts_with('%') => Ok(()),
        ["helm", "uninstall"] => has_flag(&["helm", "uninstall"], "--help"),
        [program @ ("conntrack" | "ipset" | "nft" | "ss"), word] => knows(program, word),
        ["iptables", "-t", "nat", word] => knows("iptables", word),
        ["systemctl", _, unit] => is_there(&format!("deploy/debian/{unit}.service")),
        _ => Err("it is not known how to check it: say so in tests/docs/inline.rs".to_owned()),
    }
}

/// Returns whether a test runs the command verbatim; for ip(8), also without the program's name.
fn is_run(line: &str) -> bool {
    let of_ip = line.strip_prefix("ip ").unwrap_or(line);
    let folders = ["faults", "ipvs", "nftables"];
    let mut folders = folders.iter();
    folders.any(|folder| {
        let sources = sources(&root().join("tests").join(folder));
        sources.iter().any(|source| {
            source.contains(&format!("\"{line}\"")) || source.contains(&format!("\"{of_ip}\""))
        })
    })
}

/// Checks that the help of a program names the word; without the program the test prints SKIP.
fn knows(program: &str, word: &str) -> Result<(), String> {
    if !is_installed(program) {
        skip(format!("{program} is not installed"));
        return Ok(());
    }
    let done = Command::new(program).arg("--help").output();
    let done = done.map_err(|error| format!("{program}: {error}"))?;
    let text = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
    let mut words = text.split(|c: char| c.is_whitespace() || c == ',');
    words
        .any(|known| known == word)
        .then_some(())
        .ok_or(format!("{program} has no {word}"))
}

pub fn make(words: &[&str]) -> Result<(), String> {
    let is_variable = |word: &&str| word.contains('=');
    let variables = words.iter().copied().filter(is_variable);
    let targets: Vec<&str> = words
        .iter()
        .copied()
        .filter(|word| !is_variable(word))
        .collect();
    targets.iter().try_for_each(|target| is_target(target))?;
    let makefile = fs::read_to_string(root().join("Makefile")).expect("the Makefile");
    let fuzz = fs::read_to_string(root().join("fuzz/run.sh")).expect("fuzz/run.sh");
    for variable in variables {
        let (name, value) = variable.split_once('=').unwrap_or_default();
        let is_read = makefile.contains(&format!("$({name})"))
            || (targets[..] == ["fuzz"] && fuzz.contains(&format!("${{{name}:-")));
        is_read
            .then_some(())
            .ok_or(format!("nothing reads the variable {name}"))?;
        match (name, &targets[..]) {
            ("T", ["fuzz"]) => is_there(&format!("fuzz/fuzz_targets/{value}.rs"))?,
            ("T", _) => is_test("tests", value)?,
            _ => {}
        }
    }
    Ok(())
}

fn cargo(words: &[&str]) -> Result<(), String> {
    match words {
        ["deny"] => is_there("deny.toml"),
        ["test", "--lib", path] | ["nextest", "run", "--lib", path] => is_test("src", path),
        ["nextest", "run", "--lib", "-p", package] => {
            let folder = package.strip_prefix("tripod-").unwrap_or(package);
            is_there(&format!("crates/{folder}/Cargo.toml"))
        }
        ["bench", "--bench", bench, rest @ ..] => {
            let cargo = fs::read_to_string(root().join("Cargo.toml")).expect("Cargo.toml");
            let is_bench = cargo.contains(&format!("[[bench]]\nname = \"{bench}\"\n"));
            is_bench
                .then_some(())
                .ok_or(format!("there is no bench {bench}"))?;
            let words = rest.iter().filter(|word| **word != "--");
            let mut words = words.filter(|word| word.parse::<u32>().is_err());
            words.try_for_each(|word| is_word_of(bench, word))
        }
        _ => Err(
            "only cargo deny, test --lib, nextest run --lib and bench --bench are known".to_owned(),
        ),
    }
}

/// Checks that the bench reads the word: it occurs as a text in its source.
fn is_word_of(bench: &str, word: &str) -> Result<(), String> {
    let is_read = sources(&root().join("benches").join(bench))
        .iter()
        .any(|source| source.contains(&format!("\"{word}\"")));
    is_read
        .then_some(())
        .ok_or(format!("bench {bench} does not know {word}"))
}

/// Reads the Rust files in a folder.
fn sources(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let each = paths.flat_map(|path| match path.extension() {
        _ if path.is_dir() => sources(&path),
        Some(kind) if kind == "rs" => vec![fs::read_to_string(&path).expect("a source")],
        _ => Vec::new(),
    });
    each.collect()
}

/// Checks that `path`, such as `modes::guest`, is a module in `folder`, or a function of one.
fn is_test(folder: &str, path: &str) -> Result<(), String> {
    let at = root().join(folder).join(path.replace("::", "/"));
    let (module, name) = path.rsplit_once("::").unwrap_or(("", path));
    let parent = root().join(folder).join(module.replace("::", "/"));
    let of_parent = [parent.with_extension("rs"), parent.join("mod.rs")];
    let is_function = of_parent.iter().any(|file| {
        let source = fs::read_to_string(file).unwrap_or_default();
        source.contains(&format!("fn {name}("))
    });
    let is_there = at.is_dir() || at.with_extension("rs").is_file() || is_function;
    is_there
        .then_some(())
        .ok_or(format!("{folder} has no tests {path}"))
}

fn kubectl(words: &[&str]) -> Result<(), String> {
    if words == ["tripod"] {
        return Ok(());
    }
    if BARE.contains(&words) {
        let verb = words.iter().filter(|word| !word.starts_with('-'));
        let command: Vec<&str> = std::iter::once(&"kubectl").chain(verb).copied().collect();
        return has_flag(&command, "--help");
    }
    let words = words.iter().copied();
    let words: Vec<&str> = words
        .map(|word| if word == POD.0 { POD.1 } else { word })
        .collect();
    Cluster::new().check(&words)
}

/// Checks that the help of a command names the flag. Helm and kubectl may not be installed.
fn has_flag(command: &[&str], flag: &str) -> Result<(), String> {
    let program = match command[0] {
        "helm" => tool("helm/helm"),
        "kubectl" => tool("kubectl/kubectl"),
        other => Some(other.into()),
    };
    let Some(program) = program else {
        return Ok(());
    };
    let done = Command::new(program)
        .args(&command[1..])
        .arg("--help")
        .output()
        .map_err(|error| format!("{command:?}: {error}"))?;
    let text = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
    let has_flag = flag == "--help" || text.contains(flag);
    // For an unknown command kubectl prints the help of the one above it.
    let usage = text.contains(&format!("  {} ", command.join(" ")));
    let is_known = done.status.success() && (usage || command.len() == 1);
    (has_flag && is_known)
        .then_some(())
        .ok_or(format!("{command:?} has not {flag}"))
}

/// Returns the flags in `code`, except those after `--`.
pub fn flags(code: &str) -> impl Iterator<Item = &str> {
    let words = code.split_whitespace().take_while(|word| *word != "--");
    let flags = words.filter(|word| word.starts_with("--"));
    flags.map(|word| {
        word.split('=')
            .next()
            .unwrap_or_default()
            .trim_end_matches(',')
    })
}

/// Returns whether another program that is named here has the flag.
pub fn is_known(flag: &str) -> bool {
    let elsewhere = ELSEWHERE.iter().map(|(known, _)| *known);
    FLAGS
        .iter()
        .map(|(known, _)| *known)
        .chain(elsewhere)
        .any(|known| known == flag)
}

/// Returns whether `code` is a command that is checked here.
pub fn is_command(code: &str) -> bool {
    let commands = shell::commands(code);
    let is_known = |words: &Vec<String>| PROGRAMS.contains(&&*words[0]);
    !NO_COMMANDS.contains(&code) && commands.iter().any(is_known)
}

#[test]
fn commands_in_running_text_are_known() {
    let (mut checked, mut used, mut wrong) = (0, BTreeSet::new(), Vec::new());
    for (path, document) in all_documents() {
        for code in parts(&document).code {
            let begins = |(begin, _): &&(&str, &str)| code.starts_with(begin);
            used.extend(UNCHECKED.iter().find(begins).map(|(begin, _)| *begin));
            if !is_command(&code) {
                continue;
            }
            let commands = shell::commands(&code);
            for words in commands
                .iter()
                .filter(|words| PROGRAMS.contains(&&*words[0]))
            {
                if words.len() == 1 {
                    continue;
                }
                checked += 1;
                if let Err(why) = check(words) {
                    wrong.push(format!("{}: {code}: {why}", path.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(checked > 60, "{checked} commands found");
    assert_eq!(
        used.len(),
        UNCHECKED.len(),
        "no document has others than {used:?}"
    );
}

#[test]
fn variables_for_tests_are_read() {
    let folders = ["src", "crates", "tests"];
    let sources = folders.map(|folder| sources(&root().join(folder))).concat();
    let benches = self::sources(&root().join("benches"));
    let mut found = BTreeSet::new();
    for (path, document) in all_documents() {
        for code in parts(&document).code {
            let words = code.split_whitespace();
            let names = words.filter_map(|word| word.split('=').next());
            for name in names.filter(|name| name.starts_with("TRIPOD_")) {
                let text = format!("\"{name}\"");
                let mut all = sources.iter().chain(&benches);
                let is_read = all.any(|source| source.contains(&text));
                assert!(is_read, "{}: nothing reads {name}", path.display());
                found.insert(name.to_owned());
            }
        }
    }
    assert!(found.len() > 4, "{found:?}");
}

#[test]
fn flags_of_other_programs_are_theirs() {
    for (flag, command) in FLAGS {
        has_flag(command, flag).unwrap_or_else(|why| panic!("{why}"));
    }
    let documents = documents();
    let all = documents.values().flat_map(|document| parts(document).code);
    let named: BTreeSet<String> = all
        .flat_map(|code| flags(&code).map(str::to_owned).collect::<Vec<_>>())
        .collect();
    let known = FLAGS.iter().map(|(flag, _)| *flag);
    for flag in known.chain(ELSEWHERE.iter().map(|(flag, _)| *flag)) {
        assert!(named.contains(flag), "no document names {flag}");
    }
}

/// The fault in each is found.
#[test]
fn commands_that_are_not_there_are_found() {
    for code in [
        "make tests",
        "make soak X=1",
        "make lab T=userspace::overloads",
        "make guest T=modes::guest::guest_full_mode",
        "make fuzz T=manifest",
        "make test SECONDS_EACH=3",
        "cargo bench --bench cluster -- scales",
        "cargo bench --bench clusters",
        "cargo test --lib modes::ipvs::dif",
        "cargo publish",
        "kubectl -n kube-system delete daemonset kubeproxy",
        "kubectl -n default get daemonset kube-proxy --output yaml",
        "helm remove",
        "conntrack -Q",
        "ipset destry",
        "ip link del kube-ipvs1",
        "iptables -t nat -Q",
        "nft -q",
        "nft list table ip tripot",
        "ss -q",
        "systemctl restart tripot",
    ] {
        let words = shell::commands(code).remove(0);
        let is_missing = ["conntrack", "ipset", "nft", "ss", "iptables"].contains(&&*words[0])
            && !is_installed(&words[0]);
        assert!(is_missing || check(&words).is_err(), "{code}");
    }
    if tool("kubectl/kubectl").is_some() && tool("helm/helm").is_some() {
        for (command, flag) in [
            (&["kubectl", "rolout", "undo"][..], "--help"),
            (&["kubectl", "rollout", "undos"], "--help"),
            (&["kubectl", "rollout", "undo"], "--to-revisions"),
            (&["helm", "upgrades"], "--help"),
            (&["helm", "upgrade"], "--force-conflict-s"),
        ] {
            assert!(has_flag(command, flag).is_err(), "{command:?} {flag}");
        }
    }
}
