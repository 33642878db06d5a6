#![doc = include_str!("../README.md")]

use std::{collections::HashSet, io, mem, path::Path, process::Output, time::Duration};

use netlink::system::{Ended, Running};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, BufReader},
    time::sleep,
};

pub mod chains;
pub mod desired;
pub mod difference;
mod engine;
mod engines;
mod error;
pub mod extension;
pub mod features;
pub mod info;
pub mod multiset;
pub mod observed;
mod parts;
mod program;
pub mod remove;
pub mod rule;
pub mod run;
pub mod sync_watch;
mod toolkit;
pub mod transaction;
pub mod words;

use net::Family;
use netlink::scratch::{self, NoScratch};

pub use self::{
    engine::{Engine, HINTS, Search, legacy_tables},
    engines::Engines,
    error::Error,
    toolkit::Toolkit,
};
use self::{
    parts::parts,
    program::{Namespace, Program},
    rule::{Rule, Table},
    transaction::{Action, Op, Transaction},
    words::Line,
};

/// The chain that probes make and delete again; also the name of a set that exists
/// nowhere: a program that complains about that knows sets.
pub const SCRATCH: &str = "TRIPOD-PROBE";
/// Number of times that a batch is tried if it fails for a temporary reason.
const ATTEMPTS: u32 = 6;
/// The first pause before it is tried again; each further one is twice as long.
const TRIAL_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Longer than any reading takes. iptables-nft-save begins again whenever anything
/// changed while it read: while another process writes all the time, it may never come
/// to an end, and is better tried again later.
const READING: Duration = Duration::from_secs(90);

/// Returns the table that our rules go to and of which iptables-nft-save shows nothing, if `line`
/// reports that; the program succeeds nevertheless. Its other remark, about base chains, leaves out
/// only those.
fn incompatible(line: &str) -> Option<Table> {
    let (table, remark) = line.strip_prefix("# Table `")?.split_once('\'')?;
    Table::named(table).filter(|_| remark.starts_with(" is incompatible,"))
}

/// Hands each line to `each`. Returns the table that the program left out, if there is one.
async fn read_lines(
    from: impl AsyncRead + Unpin,
    mut each: impl FnMut(&str),
) -> io::Result<Option<Table>> {
    let mut unreadable = None;
    let mut reader = BufReader::with_capacity(64 * 1024, from);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line).await? > 0 {
        let text = String::from_utf8_lossy(&line);
        unreadable = unreadable.or_else(|| incompatible(&text));
        each(text.trim_end());
        line.clear();
    }
    Ok(unreadable)
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

/// Returns how the names of the programs of `family` begin.
pub fn program_prefix(family: Family) -> &'static str {
    match family {
        Family::V4 => "iptables",
        Family::V6 => "ip6tables",
    }
}

impl Xtables {
    /// Returns all that are installed, the node owner's choice first, each once: most
    /// names are links to the same program.
    pub fn installed(family: Family) -> impl Iterator<Item = Xtables> {
        let name = program_prefix(family);
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

    /// The programs in `folder`, of either engine.
    pub fn in_folder(family: Family, folder: &Path) -> Xtables {
        let name = program_prefix(family);
        let program = |what| Program {
            path: folder.join(format!("{name}-{what}")),
            applet: None,
            name: format!("{name}-{what}"),
            namespace: Namespace::Node,
        };
        Xtables {
            family,
            restore: program("restore"),
            save: program("save"),
        }
    }

    /// Returns a program for each engine of the kernel, and for others why their engine is not
    /// known.
    pub async fn engines(family: Family) -> Engines {
        Engines::of(family, Xtables::installed(family)).await
    }

    /// Returns the same programs for a network namespace of ours.
    fn isolated(&self) -> Xtables {
        let mut isolated = self.clone();
        isolated.restore.namespace = Namespace::Ours;
        isolated.save.namespace = Namespace::Ours;
        isolated
    }

    /// The family of the rules that it reads and writes.
    pub fn family(&self) -> Family {
        self.family
    }

    /// The file name of the program that applies batches.
    pub fn program(&self) -> &str {
        &self.restore.name
    }

    /// Applies a batch in the format of `iptables-restore`. Chains that it declares are
    /// emptied first, all others stay. Each table takes effect as a whole or not at
    /// all, in the order written; only if the kernel takes no message of that size, it
    /// takes effect in smaller steps.
    ///
    /// # Errors
    /// With the message of the program, and the line that it complained about.
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

    /// Applies a batch to find out whether it works. A passing failure says nothing
    /// about that; while another process holds the lock, this waits, however long it
    /// takes.
    async fn tried(&self, batch: &str) -> Result<(), Error> {
        let mut attempts = Attempts::new();
        let mut waits = false;
        loop {
            let tried = self.restore_once(batch).await;
            let is_lock = tried.as_ref().is_err_and(Error::is_lock);
            if !is_lock && mem::take(&mut waits) {
                tracing::info!("{}: the lock of iptables is free again", self.restore.name);
            }
            match tried {
                Err(error) if is_lock => {
                    if !mem::replace(&mut waits, true) {
                        tracing::warn!(
                            "{error}; waiting until the process that holds it ends (`fuser \
                             /run/xtables.lock` names it)"
                        );
                    }
                }
                Err(error) if error.is_passing() || error.is_unstarted() => {
                    attempts.again(error).await?;
                }
                done => return done,
            }
        }
    }

    /// Reads `table`, in the format of `iptables-save`.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn saved(&self, table: &str) -> Result<String, Error> {
        let mut saved = String::new();
        let each = |line: &str| saved += &format!("{line}\n");
        self.read(Some(table), each).await?;
        Ok(saved)
    }

    /// Hands the rules of `table` to `each`, in the format of `iptables-save` and
    /// line by line: a node may have a hundred thousand of them. `None`: of all tables that
    /// there are; each begins with a line of a star and its name.
    ///
    /// # Errors
    /// With the message of the program; lines may have been handed out before.
    pub async fn read(&self, table: Option<&str>, each: impl FnMut(&str)) -> Result<(), Error> {
        let arguments = table.map_or_else(Vec::new, |table| vec!["-t", table]);
        self.print(&arguments, each).await
    }

    /// Hands each line that the program prints with these `arguments` to `each`.
    async fn print(&self, arguments: &[&str], mut each: impl FnMut(&str)) -> Result<(), Error> {
        let program = &self.save;
        let failed = |source| program.failed(source);
        let running = program.start(arguments, "").map_err(failed)?;
        let Running { stdout, ended } = running;
        let all = async { tokio::try_join!(read_lines(stdout, &mut each), ended) };
        let (unreadable, Ended { status, stderr }) = program.in_time(READING, all).await?;
        let stdout = Vec::new();
        let output = Output {
            status,
            stdout,
            stderr,
        };
        program.printed(output, unreadable)
    }

    /// Hands each rule of `table` to `each`, and how many packets it applied to.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn read_counted(
        &self,
        table: Table,
        mut each: impl FnMut(Line<'_>, u64),
    ) -> Result<(), Error> {
        let line = |text: &str| {
            if let Some((rule, packets)) = words::counted(text) {
                each(rule, packets);
            }
        };
        self.print(&["-c", "-t", table.name()], line).await
    }

    /// Finds out whether `rule` is possible in `table`: match and target are there, in
    /// the program and in the kernel. Tried in a scratch chain, which is
    /// deleted again.
    ///
    /// # Errors
    /// Why it is not.
    pub async fn check(&self, table: Table, rule: &Rule) -> Result<(), Error> {
        let batch = |action| {
            let op = Op::new(table, SCRATCH, action);
            Transaction::common(self.family, vec![op]).to_string()
        };
        self.tried(&batch(Action::Fill(vec![rule.clone()]))).await?;
        // Two batches: the legacy program would hide from the kernel a rule that is
        // deleted in the batch that adds it.
        self.tried(&batch(Action::Delete)).await
    }

    /// As [`check`](Self::check), in a namespace in which nothing matters where
    /// one can be made.
    ///
    /// # Errors
    /// Why it is not possible.
    pub async fn try_rule(&self, table: Table, rule: &Rule) -> Result<(), Error> {
        let (isolated, owned) = (self.isolated(), rule.clone());
        let inside = async move || isolated.check(table, &owned).await;
        match scratch::awaited(inside).await {
            Ok(outcome) => outcome,
            Err(NoScratch::Impossible(_)) => self.check(table, rule).await,
            Err(error @ NoScratch::ForNow(_)) => Err(self.not_tried(&error)),
        }
    }

    /// Finds out whether the lock of the legacy programs can be taken, now or later; tried in a
    /// namespace of ours with a batch that changes nothing.
    ///
    /// # Errors
    /// Why it can never be taken.
    async fn try_lock(&self) -> Result<(), Error> {
        let there = self.restore.clone();
        let inside = async move || {
            let batch = "*nat\nCOMMIT\n";
            let output = there.run(&["--noflush", "-w", "1"], batch).await?;
            there.checked(output, batch).map(drop)
        };
        match scratch::awaited(inside).await {
            Ok(Err(error)) if !error.is_passing() => Err(error),
            Ok(_) | Err(NoScratch::Impossible(_)) => Ok(()),
            Err(error @ NoScratch::ForNow(_)) => Err(self.not_tried(&error)),
        }
    }

    /// Returns the error for when there is nowhere to try it for now.
    fn not_tried(&self, error: &NoScratch) -> Error {
        Error::Unknown {
            family: self.family,
            reason: error.to_string(),
        }
    }
}

/// Tries of a batch, each after twice the pause before it.
struct Attempts {
    left: u32,
    pause: Duration,
}

impl Attempts {
    fn new() -> Attempts {
        Attempts {
            left: ATTEMPTS,
            pause: TRIAL_PAUSE,
        }
    }

    /// Waits until the next try, after one that failed with `error` for a temporary reason.
    ///
    /// # Errors
    /// Returns `error` after the last try.
    async fn again(&mut self, error: Error) -> Result<(), Error> {
        self.left -= 1;
        if self.left == 0 {
            return Err(error);
        }
        tracing::debug!("tried again: {error}");
        sleep(self.pause).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
