//! iptables and ip6tables, through their own `-restore` and `-save` programs:
//! they are what every other tool on the node uses, they lock where a lock is
//! needed, and a batch takes effect at once, table by table.
//!
//! Which program works depends on the kernel: one speaks nf_tables, the other
//! (legacy) x_tables. Plain `iptables-restore` is what the node's owner chose,
//! so it comes first; the others stand in where it is absent or fails.

use std::{
    collections::HashSet,
    env, fs, io,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::{Output, Stdio},
    time::Duration,
};

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    process::Command,
    time::timeout,
};

mod engine;
pub mod features;
pub mod info;
pub mod leftovers;
mod parts;
pub mod rule;
pub mod saved;
mod toolkit;

use self::parts::parts;
pub use self::{
    engine::{Engine, HINTS},
    toolkit::Toolkit,
};
use super::{Family, scratch};

/// The chain that probes make and delete again.
const SCRATCH: &str = "TRIPOD-PROBE";
/// Longer than any batch takes; a program that hangs is ended then.
const PATIENCE: Duration = Duration::from_secs(120);
/// Longer than a rule takes that is tried where there are no others; a program
/// that hangs must not keep a node from being served.
const TRIAL: Duration = Duration::from_secs(10);
/// How often a rule is tried that fails for a passing reason; the program waits
/// five seconds for the lock.
const TRIALS: u32 = 6;
/// A lock file of no meaning, see `XTABLES_LOCKFILE` in iptables(8). The lock is
/// one for all network namespaces that share /run: where nothing is but what is
/// tried, the lock that somebody holds on the node is no reason to wait.
const NO_LOCK: (&str, &str) = ("XTABLES_LOCKFILE", "/dev/null");
/// Longer than any reading takes. iptables-nft-save begins again whenever
/// somebody changed anything while it read: beside a busy writer it may never
/// come to an end, and is better tried again later.
const READING: Duration = Duration::from_secs(30);
/// Where the programs are on nodes whose PATH leaves them out.
const MORE_PLACES: &str = "/usr/local/sbin:/usr/sbin:/sbin";

/// Why a program could not do what it was for.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It could not be run to its end.
    #[error("cannot run {program}: {source}")]
    Run {
        /// Which.
        program: String,
        /// The system's reason.
        source: io::Error,
    },
    /// It failed.
    #[error("{program}: {message}{}", .line.as_ref().map_or_else(String::new, |l| format!(" (at: {l})")))]
    Failed {
        /// Which.
        program: String,
        /// What it said.
        message: String,
        /// The line of our batch that it complained about, if it told one.
        line: Option<String>,
    },
    /// The table has rules that the program cannot read, and so could not tell
    /// ours from others'.
    #[error(
        "{program}: table {table} holds rules of nft's own, which iptables cannot read; move them \
         to a table of another name"
    )]
    Incompatible {
        /// Which.
        program: String,
        /// Of this table.
        table: String,
    },
    /// There are rules, but not the program for them.
    #[error(
        "{family}: there are rules of ours in nf_tables, and no iptables-nft here that could \
         remove them (Debian package iptables)"
    )]
    Absent {
        /// Of this family.
        family: Family,
    },
    /// None of them works.
    #[error("no {family} nat: {reason}")]
    Unusable {
        /// For this family.
        family: Family,
        /// What each one said.
        reason: String,
    },
}

impl Error {
    /// For lack of privilege, not of a feature.
    pub fn is_permission(&self) -> bool {
        match self {
            Error::Run { source, .. } => source.kind() == io::ErrorKind::PermissionDenied,
            Error::Failed { message, .. } => {
                message.contains("ermission denied") || message.contains("not permitted")
            }
            Error::Incompatible { .. } | Error::Absent { .. } | Error::Unusable { .. } => false,
        }
    }

    /// For a reason that passes: somebody else held the lock or changed the
    /// rules at the same time, or memory was short (EAGAIN, EINTR, ENOBUFS;
    /// ERESTART has no words of its own in the C library).
    pub fn is_passing(&self) -> bool {
        const PASSING: [&str; 7] = [
            "holding the xtables lock",
            "Resource temporarily unavailable",
            "Interrupted system call",
            "No buffer space available",
            "Cannot allocate memory",
            "Device or resource busy",
            "iptables: Resource problem",
        ];
        match self {
            Error::Run { .. }
            | Error::Incompatible { .. }
            | Error::Absent { .. }
            | Error::Unusable { .. } => false,
            Error::Failed { message, .. } => PASSING.iter().any(|words| message.contains(words)),
        }
    }

    /// Because the kernel takes no netlink message of that size (EMSGSIZE).
    fn is_too_long(&self) -> bool {
        matches!(self, Error::Failed { message, .. } if message.contains("Message too long"))
    }
}

/// One program, or one of those within a multi-call program.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Program {
    path: PathBuf,
    applet: Option<String>,
    name: String,
    /// It works in a namespace of ours.
    aside: bool,
}

impl Program {
    fn find(file: &str, applet: Option<String>) -> Option<Program> {
        let places = env::var("PATH").unwrap_or_default() + ":" + MORE_PLACES;
        let path = places
            .split(':')
            .filter(|place| place.starts_with('/'))
            .map(|place| PathBuf::from(place).join(file))
            .find(|path| {
                fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
            })?;
        let name = match &applet {
            Some(applet) => format!("{file} {applet}"),
            None => file.to_owned(),
        };
        let aside = false;
        Some(Program {
            path,
            applet,
            name,
            aside,
        })
    }

    async fn run(&self, args: &[&str], input: &str) -> Result<Output, Error> {
        let failed = |source| Error::Run {
            program: self.name.clone(),
            source,
        };
        let mut child = Command::new(&self.path)
            .args(&self.applet)
            .args(args)
            .env("LC_ALL", "C")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .envs(self.aside.then_some(NO_LOCK))
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let stdin = child.stdin.take();
        let feed = async {
            if let Some(mut stdin) = stdin {
                // A program that fails early closes its input; what it says
                // tells more than our broken pipe.
                let _ = stdin.write_all(input.as_bytes()).await;
            }
        };
        let both = async { tokio::join!(feed, child.wait_with_output()).1 };
        let patience = if self.aside { TRIAL } else { PATIENCE };
        timeout(patience, both)
            .await
            .map_err(|_| failed(io::ErrorKind::TimedOut.into()))?
            .map_err(failed)
    }

    fn checked(&self, output: Output, input: &str) -> Result<String, Error> {
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let line = offending_line(&said, input).map(str::to_owned);
        let noise = |line: &&str| {
            line.is_empty() || line.starts_with("Try `") || line.starts_with("Error occurred at")
        };
        let message = said
            .lines()
            .map(str::trim)
            .filter(|line| !noise(line))
            .collect::<Vec<_>>()
            .join("; ");
        Err(Error::Failed {
            program: self.name.clone(),
            line,
            message: if message.is_empty() {
                output.status.to_string()
            } else {
                message
            },
        })
    }
}

/// The line of `input` whose number follows the word "line" in `message`.
fn offending_line<'a>(message: &str, input: &'a str) -> Option<&'a str> {
    let (_, after) = message.split_once("line")?;
    let digits = after.trim_start_matches([':', ' ']);
    let end = digits
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(digits.len());
    let number: usize = digits.get(..end)?.parse().ok()?;
    input.lines().nth(number.checked_sub(1)?)
}

/// How iptables-nft-save says, and succeeds, that it shows nothing of a table.
/// The other remark that it has, of base chains, leaves out only those.
fn is_incompatible(line: &str) -> bool {
    line.starts_with("# Table `") && line.contains("' is incompatible,")
}

/// Rules that fit into a netlink message of the usual `net.core.wmem_max`
/// (208 KiB) by a wide margin.
const RULES_IN_A_PART: usize = 200;

/// iptables or ip6tables as it works on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xtables {
    family: Family,
    restore: Program,
    save: Program,
}

impl Xtables {
    /// All that are installed, the node owner's choice first, each once: most
    /// names are links to the same program.
    pub fn installed(family: Family) -> impl Iterator<Item = Xtables> {
        let name = match family {
            Family::V4 => "iptables",
            Family::V6 => "ip6tables",
        };
        let mut seen = HashSet::new();
        let plain = ["", "-legacy", "-nft"].map(move |variant| {
            let program = |what| Program::find(&format!("{name}{variant}-{what}"), None);
            (program("restore"), program("save"))
        });
        let multi = ["legacy", "nft"].map(move |variant| {
            let program = |what| {
                let applet = format!("{name}-{variant}-{what}");
                Program::find(&format!("xtables-{variant}-multi"), Some(applet))
            };
            (program("restore"), program("save"))
        });
        plain
            .into_iter()
            .chain(multi)
            .filter_map(move |(restore, save)| {
                Some(Xtables {
                    family,
                    restore: restore?,
                    save: save?,
                })
            })
            .filter(move |xtables| {
                let path = &xtables.restore.path;
                seen.insert(path.canonicalize().unwrap_or_else(|_| path.clone()))
            })
    }

    /// One for each engine of the kernel.
    pub async fn engines(family: Family) -> Vec<(Xtables, Engine)> {
        let mut found: Vec<(Xtables, Engine)> = Vec::new();
        for xtables in Xtables::installed(family) {
            if let Ok(engine) = xtables.engine().await
                && found.iter().all(|(_, seen)| *seen != engine)
            {
                found.push((xtables, engine));
            }
        }
        found
    }

    /// The same programs for a network namespace of ours.
    fn aside(&self) -> Xtables {
        let mut aside = self.clone();
        aside.restore.aside = true;
        aside.save.aside = true;
        aside
    }

    /// Its family.
    pub fn family(&self) -> Family {
        self.family
    }

    /// Name of the program that applies batches.
    pub fn program(&self) -> &str {
        &self.restore.name
    }

    /// Applies a batch in the format of `iptables-restore`. Chains that it
    /// declares are emptied first, all others stay. Each table takes effect as
    /// a whole or not at all, in the order written; only where the kernel takes
    /// no message of that size, in smaller steps.
    ///
    /// # Errors
    /// What the program said and the line it complained about.
    pub async fn restore(&self, batch: &str) -> Result<(), Error> {
        let whole = self.restore_once(batch).await;
        if !whole.as_ref().is_err_and(Error::is_too_long) {
            return whole;
        }
        for part in parts(batch, RULES_IN_A_PART) {
            self.restore_once(&part).await?;
        }
        Ok(())
    }

    async fn restore_once(&self, batch: &str) -> Result<(), Error> {
        let output = self.restore.run(&["--noflush", "-w", "5"], batch).await?;
        self.restore.checked(output, batch).map(|_| ())
    }

    /// The rules of `table` in the format of `iptables-save`.
    ///
    /// # Errors
    /// What the program said.
    pub async fn save(&self, table: &str) -> Result<String, Error> {
        let output = self.save.run(&["-t", table], "").await?;
        let saved = self.save.checked(output, "")?;
        match saved.lines().any(is_incompatible) {
            true => Err(self.incompatible(table)),
            false => Ok(saved),
        }
    }

    fn incompatible(&self, table: &str) -> Error {
        Error::Incompatible {
            program: self.save.name.clone(),
            table: table.to_owned(),
        }
    }

    /// Hands the lines that [`Xtables::save`] would return to `each`, one by
    /// one: a node may have a hundred thousand of them.
    ///
    /// # Errors
    /// What the program said; lines may have been handed out before.
    pub async fn read(&self, table: &str, mut each: impl FnMut(&str)) -> Result<(), Error> {
        let program = &self.save;
        let failed = |source| Error::Run {
            program: program.name.clone(),
            source,
        };
        let mut child = Command::new(&program.path)
            .args(&program.applet)
            .args(["-t", table])
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let mut incompatible = false;
        let lines = async {
            let Some(stdout) = stdout else { return Ok(()) };
            let mut reader = BufReader::with_capacity(64 * 1024, stdout);
            let mut line = Vec::new();
            while reader.read_until(b'\n', &mut line).await? > 0 {
                let text = String::from_utf8_lossy(&line);
                incompatible |= is_incompatible(&text);
                each(text.trim_end());
                line.clear();
            }
            Ok(())
        };
        let words = async {
            let mut said = Vec::new();
            if let Some(mut stderr) = stderr {
                stderr.read_to_end(&mut said).await?;
            }
            Ok(said)
        };
        let all = async { tokio::try_join!(lines, words, child.wait()) };
        let ((), stderr, status) = timeout(READING, all)
            .await
            .map_err(|_| failed(io::ErrorKind::TimedOut.into()))?
            .map_err(failed)?;
        let stdout = Vec::new();
        let output = Output {
            status,
            stdout,
            stderr,
        };
        program.checked(output, "")?;
        match incompatible {
            true => Err(self.incompatible(table)),
            false => Ok(()),
        }
    }

    /// Whether `rule` is possible in `table`: match and target are there, in
    /// the program and in the kernel. Tried in a scratch chain, which is
    /// deleted again.
    ///
    /// # Errors
    /// Why it is not.
    pub async fn check(&self, table: &str, rule: &str) -> Result<(), Error> {
        let outcome = self
            .restore(&format!(
                "*{table}\n:{SCRATCH} - [0:0]\n-A {SCRATCH} {rule}\nCOMMIT\n"
            ))
            .await;
        if outcome.is_ok() {
            // Two batches: the legacy program would hide from the kernel a rule
            // that goes in the batch that brings it.
            self.restore(&format!("*{table}\n-F {SCRATCH}\n-X {SCRATCH}\nCOMMIT\n"))
                .await?;
        }
        outcome
    }

    /// As [`check`](Self::check), in a namespace in which nothing matters where
    /// one can be made.
    ///
    /// # Errors
    /// Why it is not possible.
    pub async fn try_rule(&self, table: &'static str, rule: &str) -> Result<(), Error> {
        let there = (self.aside(), rule.to_owned());
        let inside = async move || there.0.check(table, &there.1).await;
        match scratch::awaited(inside).await {
            Some(outcome) => outcome,
            None => self.check_patiently(table, rule).await,
        }
    }

    /// Whether the lock of the legacy programs can be had, now or later; tried
    /// in a namespace of ours with a batch that changes nothing.
    ///
    /// # Errors
    /// Why it never can.
    async fn try_lock(&self) -> Result<(), Error> {
        let there = self.restore.clone();
        let inside = async move || {
            let output = there
                .run(&["--noflush", "-w", "1"], "*nat\nCOMMIT\n")
                .await?;
            there.checked(output, "").map(drop)
        };
        match scratch::awaited(inside).await {
            Some(Err(error)) if !error.is_passing() => Err(error),
            _ => Ok(()),
        }
    }

    /// As [`check`](Self::check); that somebody holds the lock for a while does
    /// not make a rule impossible.
    async fn check_patiently(&self, table: &str, rule: &str) -> Result<(), Error> {
        for _ in 1..TRIALS {
            match self.check(table, rule).await {
                Err(error) if error.is_passing() => tracing::debug!("tried again: {error}"),
                outcome => return outcome,
            }
        }
        self.check(table, rule).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offending_line_is_found_in_each_wording() {
        let batch = "*nat\n:X - [0:0]\n-A X -j NOPE\nCOMMIT\n";
        let cases = [
            ("iptables-restore: line 3 failed", Some("-A X -j NOPE")),
            ("Error occurred at line: 3", Some("-A X -j NOPE")),
            ("line 2: CHAIN_ADD failed (File exists)", Some(":X - [0:0]")),
            ("line 0 is none", None),
            ("line 99 failed", None),
            ("Another app is holding the lock", None),
            ("line", None),
        ];
        for (message, line) in cases {
            assert_eq!(offending_line(message, batch), line, "{message}");
        }
    }

    fn program(script: &str) -> Program {
        Program {
            path: PathBuf::from("/bin/sh"),
            applet: Some("-c".to_owned()),
            name: script.to_owned(),
            aside: false,
        }
    }

    #[tokio::test]
    async fn what_the_program_says_is_the_error() {
        let program = program("iptables-restore");
        let script = "echo 'oops at line 2' >&2; exit 1";
        let output = program.run(&[script], "").await.unwrap();
        let error = program.checked(output, "a\nb\n").unwrap_err();
        assert_eq!(
            error.to_string(),
            "iptables-restore: oops at line 2 (at: b)"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_program_that_hangs_is_given_up_sooner_where_only_something_is_tried() {
        for (aside, patience) in [(true, TRIAL), (false, PATIENCE)] {
            let hanging = Program {
                aside,
                ..program("iptables-restore")
            };
            let begun = tokio::time::Instant::now();
            let outcome = hanging.run(&["exec sleep 1000"], "").await;
            assert!(matches!(outcome, Err(Error::Run { .. })), "{outcome:?}");
            assert_eq!(begun.elapsed().as_secs(), patience.as_secs());
        }
    }

    #[tokio::test]
    async fn a_large_batch_to_a_talkative_program_does_not_stall() {
        let program = program("cat");
        let batch = "-A X\n".repeat(200_000);
        let output = program.run(&["cat; cat /dev/null"], &batch).await.unwrap();
        assert_eq!(output.stdout.len(), batch.len());
        // One that does not read at all is no failure of ours either.
        assert!(
            program
                .run(&["exit 0"], &batch)
                .await
                .unwrap()
                .status
                .success()
        );
    }
}
