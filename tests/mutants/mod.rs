//! Mutants: the source with one step left out or out of order. The simulation of
//! `src/simulation/` must notice each, except those with a reason why it cannot.

mod iptables;
mod ipvs;
mod mutant;
mod nftables;
mod report;
mod userspace;

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use self::mutant::Mutant;

/// Time limit; a mutant that does not end also counts as noticed.
const LONGEST: Duration = Duration::from_secs(240);

/// Steps of each random run, for mutants that runs of the default length do not notice, and the
/// time limit.
const MORE_STEPS: &str = "5000";
const LONGEST_WITH_MORE: Duration = Duration::from_secs(900);

/// The simulation of a mode, and the mutants that it must notice.
struct Simulated {
    /// The names of its tests begin with this.
    tests: &'static str,
    mutants: &'static [Mutant],
}

const SIMULATED: [Simulated; 4] = [
    Simulated {
        tests: "simulation::nftables::",
        mutants: nftables::MUTANTS,
    },
    Simulated {
        tests: "simulation::iptables::",
        mutants: iptables::MUTANTS,
    },
    Simulated {
        tests: "simulation::ipvs::",
        mutants: ipvs::MUTANTS,
    },
    Simulated {
        tests: "simulation::userspace::",
        mutants: userspace::MUTANTS,
    },
];

/// All mutants, each with the tests that must notice it.
fn all() -> impl Iterator<Item = (&'static str, &'static Mutant)> {
    SIMULATED
        .iter()
        .flat_map(|of| of.mutants.iter().map(|mutant| (of.tests, mutant)))
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

impl Mutant {
    /// Applies the change to the text of its file.
    fn of(&self, text: &str) -> String {
        let Mutant { file, from, to, .. } = self;
        assert_eq!(text.matches(from).count(), 1, "{file} has once: {from}");
        text.replacen(from, to, 1)
    }

    /// Its line in `docs/development/mutants.csv`.
    fn row(&self, noticed: &str) -> String {
        format!("{},\"{}\",\"{noticed}\"\n", self.file, self.breaks)
    }
}

#[test]
fn each_changes_one_place_that_is_there() {
    let mut changed = HashSet::new();
    for (tests, mutant) in all() {
        let text = fs::read_to_string(root().join(mutant.file)).unwrap();
        let other = mutant.of(&text);
        assert_ne!(other, text);
        let is_new = changed.insert((tests, mutant.file, other));
        assert!(is_new, "another one makes the change of: {}", mutant.breaks);
    }
}

/// Copies all files that git tracks, and new ones that it does not ignore, to `to`.
fn copy_tree(to: &Path) {
    let mut list = Command::new("git");
    list.args(["ls-files", "--cached", "--others", "--exclude-standard"]);
    let listed = list.current_dir(root()).output().unwrap();
    for name in String::from_utf8(listed.stdout).unwrap().lines() {
        let (from, to) = (root().join(name), to.join(name));
        if from.is_file() {
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(from, to).unwrap();
        }
    }
}

/// The result of a run of the simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    Failed,
    DoesNotEnd,
    DoesNotBuild,
}

/// Number of steps of each random run.
#[derive(Clone, Copy, Debug)]
enum Steps {
    Default,
    More,
}

fn simulate(tests: &str, tree: &Path, target: &Path, steps: Steps) -> Outcome {
    let cargo = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO"));
        command
            .args(["test", "--lib"])
            .args(arguments)
            .current_dir(tree)
            .env("CARGO_TARGET_DIR", target)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    };
    if !cargo(&["--no-run"]).status().unwrap().success() {
        return Outcome::DoesNotBuild;
    }
    let mut run = Command::new("timeout");
    let longest = match steps {
        Steps::Default => LONGEST,
        Steps::More => {
            run.env("TRIPOD_SIMULATE_STEPS", MORE_STEPS);
            LONGEST_WITH_MORE
        }
    };
    run.arg(longest.as_secs().to_string())
        .arg(env!("CARGO"))
        .args(["test", "--lib"]);
    let run = run.args(["--", tests]);
    let run = run
        .current_dir(tree)
        .env("CARGO_TARGET_DIR", target)
        .env("TRIPOD_ALL_CASES", "1");
    let status = run.stdout(Stdio::null()).stderr(Stdio::null()).status();
    match status.unwrap().code() {
        Some(0) => Outcome::Passed,
        // The exit status of timeout(1).
        Some(124) => Outcome::DoesNotEnd,
        _ => Outcome::Failed,
    }
}

/// The row of `docs/development/mutants.csv` of a mutant that does not run now; `None` if it runs.
/// `TRIPOD_MUTANTS` in the environment has parts of the descriptions of those that run.
fn preserved(mutant: &Mutant) -> Option<String> {
    let asked = std::env::var("TRIPOD_MUTANTS").ok()?;
    if asked.split('|').any(|part| mutant.breaks.contains(part)) {
        return None;
    }
    let text = fs::read_to_string(root().join("docs/development/mutants.csv")).ok()?;
    let begin = mutant.row("");
    let begin = begin.trim_end_matches("\"\n");
    let row = text.lines().find(|line| line.starts_with(begin))?;
    Some(format!("{row}\n"))
}

/// Runs all mutants and writes `docs/development/mutants.csv`; takes a minute for each.
#[test]
#[ignore = "takes a minute for each mutant: make mutants"]
fn run() {
    let scratch = root().join("target/mutants");
    let (tree, target) = (scratch.join("tree"), scratch.join("build"));
    let _ = fs::remove_dir_all(&tree);
    copy_tree(&tree);
    for Simulated { tests, .. } in SIMULATED {
        let outcome = simulate(tests, &tree, &target, Steps::Default);
        assert_eq!(outcome, Outcome::Passed, "{tests} without a change");
    }
    let mut csv = "file,what is broken,noticed\n".to_owned();
    let mut wrong = Vec::new();
    for (tests, mutant) in all() {
        if let Some(row) = preserved(mutant) {
            csv += &row;
            continue;
        }
        let path: PathBuf = tree.join(mutant.file);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, mutant.of(&text)).unwrap();
        let begun = Instant::now();
        let outcome = match simulate(tests, &tree, &target, Steps::Default) {
            Outcome::Passed => simulate(tests, &tree, &target, Steps::More),
            other => other,
        };
        fs::write(&path, text).unwrap();
        let (file, breaks, took) = (mutant.file, mutant.breaks, begun.elapsed());
        println!("{outcome:?} after {took:.0?}: {file}: {breaks}");
        let noticed = match outcome {
            Outcome::Failed | Outcome::DoesNotEnd => "yes",
            Outcome::Passed | Outcome::DoesNotBuild => mutant.unnoticed.unwrap_or("no"),
        };
        csv += &mutant.row(noticed);
        let is_noticed = noticed == "yes";
        if is_noticed == mutant.unnoticed.is_some() || outcome == Outcome::DoesNotBuild {
            wrong.push(format!("{outcome:?}: {file}: {breaks}"));
        }
    }
    fs::write(root().join("docs/development/mutants.csv"), csv).unwrap();
    assert!(wrong.is_empty(), "{wrong:#?}");
}
