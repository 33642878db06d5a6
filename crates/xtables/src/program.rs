//! Running one of the programs.

use std::{
    env, fs, io,
    os::unix::{fs::PermissionsExt, process::ExitStatusExt},
    path::PathBuf,
    process::{Command, Output},
    time::Duration,
};

use netlink::system::{self, Ended, Running};
use tokio::{io::AsyncReadExt, time::timeout};

use super::{Error, rule::Table};

/// Longer than any batch takes, apart from the time for its size; a program that hangs is ended
/// then.
const RUN_TIMEOUT: Duration = Duration::from_secs(120);
/// How many bytes of a batch take one second more, on a slow and busy machine.
const BYTES_PER_FURTHER_SECOND: usize = 50_000;
/// Longer than a rule takes that is tried where there are no others; a program
/// that hangs must not keep a node from being served.
const TRY_TIMEOUT: Duration = Duration::from_secs(20);
/// A lock file without a purpose, see `XTABLES_LOCKFILE` in iptables(8). The lock is one for all
/// network namespaces that share /run: in a namespace that is only used for trials, a lock that
/// another process holds on the node is no reason to wait.
const NO_LOCK: (&str, &str) = ("XTABLES_LOCKFILE", "/dev/null");
/// Where the programs are on nodes whose PATH leaves them out.
const MORE_PLACES: &str = "/usr/local/sbin:/usr/sbin:/sbin";

/// One program, or one of those within a multi-call program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Program {
    pub(super) path: PathBuf,
    pub(super) applet: Option<String>,
    pub(super) name: String,
    pub(super) namespace: Namespace,
}

/// Which network namespace a program works in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Namespace {
    /// The namespace that this process runs in, usually the node's.
    Node,
    /// A namespace that was made to try something.
    Ours,
}

impl Program {
    pub(super) fn find(file: &str, applet: Option<String>) -> Option<Program> {
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
        Some(Program {
            path,
            applet,
            name,
            namespace: Namespace::Node,
        })
    }

    /// Starts the program with `args`, and writes `input` to it.
    pub(super) fn start<'a>(&self, args: &[&str], input: &'a str) -> io::Result<Running<'a>> {
        let mut command = Command::new(&self.path);
        command
            .args(&self.applet)
            .args(args)
            .env("LC_ALL", "C")
            .envs((self.namespace == Namespace::Ours).then_some(NO_LOCK));
        system::current().start(command, input)
    }

    /// Returns the error for when it could not be run to its end.
    pub(super) fn failed(&self, source: io::Error) -> Error {
        let program = self.name.clone();
        Error::Run { program, source }
    }

    pub(super) async fn run(&self, args: &[&str], input: &str) -> Result<Output, Error> {
        let patience = match self.namespace {
            Namespace::Node => {
                let seconds =
                    u64::try_from(input.len() / BYTES_PER_FURTHER_SECOND).unwrap_or(u64::MAX);
                RUN_TIMEOUT.saturating_add(Duration::from_secs(seconds))
            }
            Namespace::Ours => TRY_TIMEOUT,
        };
        let running = self.start(args, input);
        let Running { mut stdout, ended } = running.map_err(|source| self.failed(source))?;
        let both = async {
            let mut printed = Vec::new();
            let (_, ended) = tokio::try_join!(stdout.read_to_end(&mut printed), ended)?;
            let Ended { status, stderr } = ended;
            Ok(Output {
                status,
                stdout: printed,
                stderr,
            })
        };
        self.in_time(patience, both).await
    }

    /// Waits until the program has ended, but no longer than that.
    pub(super) async fn in_time<T>(
        &self,
        patience: Duration,
        ended: impl Future<Output = io::Result<T>>,
    ) -> Result<T, Error> {
        timeout(patience, ended)
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            .map_err(|source| self.failed(source))
    }

    /// Returns whether all was printed: `unreadable` is a table of which nothing is.
    pub(super) fn printed(&self, output: Output, unreadable: Option<Table>) -> Result<(), Error> {
        self.checked(output, "")?;
        let program = self.name.clone();
        unreadable.map_or(Ok(()), |table| Err(Error::Incompatible { program, table }))
    }

    pub(super) fn checked(&self, output: Output, input: &str) -> Result<String, Error> {
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let errors = String::from_utf8_lossy(&output.stderr);
        let line = offending_line(&errors, input).map(str::to_owned);
        let noise = |line: &&str| {
            line.is_empty() || line.starts_with("Try `") || line.starts_with("Error occurred at")
        };
        let message = errors
            .lines()
            .map(str::trim)
            .filter(|line| !noise(line))
            .collect::<Vec<_>>()
            .join("; ");
        Err(Error::Failed {
            program: self.name.clone(),
            line,
            is_killed: output.status.signal().is_some(),
            message: if message.is_empty() {
                output.status.to_string()
            } else {
                message
            },
        })
    }
}

/// Finds the line of `input` whose number follows the word "line" in `message`.
fn offending_line<'a>(message: &str, input: &'a str) -> Option<&'a str> {
    let (_, after) = message.split_once("line")?;
    let digits = after.trim_start_matches([':', ' ']);
    let end = digits
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(digits.len());
    let number: usize = digits.get(..end)?.parse().ok()?;
    input.lines().nth(number.checked_sub(1)?)
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
            namespace: Namespace::Node,
        }
    }

    #[tokio::test]
    async fn what_the_program_says_is_the_error() {
        let program = program("iptables-restore");
        let script = "echo 'oops at line 2' >&2; exit 1";
        let output = program.run(&[script], "").await.unwrap();
        let error = program.checked(output, "a\nb\n").unwrap_err();
        let text = "iptables-restore: oops at line 2 (at: b)";
        assert_eq!(error.to_string(), text);
    }

    #[tokio::test(start_paused = true)]
    async fn a_program_that_hangs_is_given_up_sooner_where_only_something_is_tried() {
        for (namespace, patience) in [
            (Namespace::Ours, TRY_TIMEOUT),
            (Namespace::Node, RUN_TIMEOUT),
        ] {
            let hanging = Program {
                namespace,
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
        let output = program.run(&["exit 0"], &batch).await.unwrap();
        assert!(output.status.success());
    }
}
