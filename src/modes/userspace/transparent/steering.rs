//! Leads what endpoints answer to clients to our sockets.
//!
//! ```text
//! mangle PREROUTING → TRIPOD-TRANSPARENT
//!     -m socket --transparent        MARK      for a socket of ours, errors about it (ICMP) too
//! rule 76: fwmark MARK lookup TABLE  local default
//! ```
//!
//! The mark is a whole one, so that no bit of it is somebody else's: such a
//! packet goes no further than to our socket. One rule serves all connections,
//! whatever Services there are.

use std::{
    net::IpAddr,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use ipnet::IpNet;

use super::Transparent;
use crate::{
    kernel::{
        links,
        netlink::{self, Protocol, Socket},
        probe::Kernel,
        routes::{self, Kind, Route},
        rules::{self, Action, Rule},
        sysctl,
        xtables::{
            self, Xtables,
            remove::{Owned, Preserved},
            rule::Table,
        },
    },
    modes::userspace::capture::Error,
    net::{Family, PerFamily},
};

/// The chain that Tripod owns in table mangle.
const CHAIN: &str = "TRIPOD-TRANSPARENT";
const OWNED: Owned = Owned {
    tables: &[Table::Mangle],
    is_ours: |table, chain| table == Table::Mangle && chain == CHAIN,
    shared: None,
};
/// What is for a socket of ours.
const MARK: u32 = 0x5450_5448;
/// Before the rules of local capture, and outside of its tables.
const PRIORITY: u32 = 76;
const TABLE: u32 = 0x5454_0000;

/// Settings that make the kernel look for the way back of a marked packet by
/// its mark, find this node, and drop the packet (`fib_validate_source`).
const MARKS_COUNT: &str = "net/ipv4/conf/all/src_valid_mark";

/// The jump and the rule as `iptables-save` prints them.
fn jump() -> String {
    format!("-A PREROUTING -j {CHAIN}")
}

fn marking() -> String {
    format!("-m socket --transparent -j MARK --set-xmark {MARK:#x}/0xffffffff")
}

fn rule(family: Family) -> Rule {
    Rule {
        family,
        priority: PRIORITY,
        ip_protocol: None,
        ports: None,
        mark: Some(MARK),
        action: Action::Lookup(TABLE),
    }
}

fn route(family: Family, loopback: u32) -> Route {
    let any: IpAddr = match family {
        Family::V4 => [0; 4].into(),
        Family::V6 => [0; 16].into(),
    };
    Route {
        table: TABLE,
        destination: IpNet::new_assert(any, 0),
        kind: Kind::Local(loopback),
        source: None,
    }
}

/// Batch text that makes a table, as `iptables-save` printed it, lead answers
/// here; `None`: it does.
fn repair(saved: &str) -> Option<String> {
    let (jump, own) = (jump(), format!("-A {CHAIN} {}", marking()));
    let lines = |wanted: &dyn Fn(&str) -> bool| -> Vec<&str> {
        saved
            .lines()
            .map(str::trim_end)
            .filter(|line| wanted(line))
            .collect()
    };
    let jumps = lines(&|line| is_jump(line));
    let rules = lines(&|line| line.starts_with(&format!("-A {CHAIN} ")));
    if jumps == [jump.as_str()] && rules == [own.as_str()] {
        return None;
    }
    let mut batch = format!("*mangle\n:{CHAIN} - [0:0]\n{own}\n");
    match jumps.split_first() {
        Some((_, more)) if jumps.iter().all(|j| *j == jump) => {
            batch.extend(more.iter().map(|j| deletion(j)));
        }
        _ => {
            batch.extend(jumps.iter().map(|j| deletion(j)));
            batch += &format!("{jump}\n");
        }
    }
    batch += "COMMIT\n";
    Some(batch)
}

fn is_jump(line: &str) -> bool {
    line.starts_with("-A ") && line.ends_with(&format!(" -j {CHAIN}"))
}

fn deletion(line: &str) -> String {
    format!("-D {}\n", line.strip_prefix("-A ").unwrap_or(line))
}

/// Keeps the way of answers in force, or away.
#[derive(Debug)]
pub struct Steering {
    wanted: bool,
    transparent: Arc<Transparent>,
    /// What works for IPv4 and IPv6, or why nothing does.
    xtables: [Result<Xtables, String>; 2],
    /// What was said of each.
    said: [Option<Note>; 2],
    /// What failed for now, and is to be tried again soon.
    unfinished: PerFamily<Option<String>>,
    cleaned: bool,
}

/// What an operator should know of a family: that it works, or why not.
pub type Note = Result<String, String>;

impl Steering {
    /// For the data path's `transparent`, on a `kernel` that was examined; what
    /// an earlier run left goes if it is not `wanted`.
    pub fn new(wanted: bool, transparent: Arc<Transparent>, kernel: &Kernel) -> Self {
        Steering {
            wanted,
            transparent,
            xtables: Family::ALL.map(|family| kernel.marker(family)),
            said: [None, None],
            unfinished: PerFamily::default(),
            cleaned: false,
        }
    }

    /// Looks at the kernel and repairs what is wrong there, for the `families` that
    /// are due. Answers what was not told yet.
    pub async fn sync(&mut self, families: PerFamily<bool>) -> Vec<Note> {
        let due = |family: Family| *families.get(family);
        if !Family::ALL.into_iter().any(due) {
            return Vec::new();
        }
        self.transparent.forget_paths();
        if !self.wanted {
            if !self.cleaned {
                self.cleaned = left_behind().is_ok_and(|left| !left) || cleanup().await.is_ok();
            }
            return Vec::new();
        }
        let steer = async |n: usize, family: Family| match due(family) {
            true => Some(self.steer(n, family).await),
            false => None,
        };
        let (v4, v6) = tokio::join!(steer(0, Family::V4), steer(1, Family::V6));
        let mut notes = Vec::new();
        for (n, (family, outcome)) in [(Family::V4, v4), (Family::V6, v6)].into_iter().enumerate() {
            let Some(outcome) = outcome else {
                continue;
            };
            let flag = self.transparent.steered(family);
            flag.store(outcome.is_ok(), Relaxed);
            let unsteered = |why: &str| {
                format!(
                    "--userspace-transparent does nothing for {family}, endpoints see the node's \
                     address: {why}"
                )
            };
            *self.unfinished.get_mut(family) = match &outcome {
                Err(Trouble { why, passes: true }) => Some(unsteered(why)),
                _ => None,
            };
            let note = match outcome {
                Ok(()) => Ok(format!(
                    "{family}: endpoints see clients, where their answers come back this way"
                )),
                Err(Trouble { passes: true, .. }) => continue,
                Err(Trouble { why, .. }) => Err(unsteered(&why)),
            };
            if self.said[n].as_ref() != Some(&note) {
                notes.push(note.clone());
                self.said[n] = Some(note);
            }
        }
        notes
    }

    /// What of `family` failed for now, with the reason.
    pub fn unfinished(&self, family: Family) -> Option<&String> {
        self.unfinished.get(family).as_ref()
    }

    async fn steer(&self, n: usize, family: Family) -> Result<(), Trouble> {
        if family == Family::V4 && sysctl::read(MARKS_COUNT).is_ok_and(|v| v.trim() == "1") {
            return Err(Trouble::lasting(format!(
                "{MARKS_COUNT} is 1 (wg-quick sets it), with which the kernel drops what is led \
                 to a socket by its mark; set it to 0"
            )));
        }
        let xtables = self.xtables[n].as_ref();
        let xtables = xtables.map_err(|why| Trouble::lasting(why.clone()))?;
        route_marked(family).map_err(|e| Trouble::lasting(e.to_string()))?;
        match mark_answers(xtables).await {
            // What is in force stays so while somebody else has the lock.
            Err(e) if e.is_passing() && self.transparent.steered(family).load(Relaxed) => Ok(()),
            other => other.map_err(|e| Trouble {
                passes: e.is_passing(),
                why: e.to_string(),
            }),
        }
    }
}

/// Why answers of a family are not led here.
struct Trouble {
    why: String,
    /// It may be over soon.
    passes: bool,
}

impl Trouble {
    fn lasting(why: String) -> Trouble {
        Trouble { why, passes: false }
    }
}

/// Has packets with our mark delivered here.
fn route_marked(family: Family) -> Result<(), netlink::Error> {
    let mut socket = Socket::open(Protocol::Route)?;
    let loopback = links::index("lo")?;
    links::set_up(&mut socket, loopback)?;
    for outcome in routes::add(&mut socket, &[route(family, loopback)])? {
        outcome?;
    }
    for outcome in rules::add(&mut socket, &[rule(family)])? {
        outcome?;
    }
    Ok(())
}

/// Has packets for our sockets marked.
async fn mark_answers(xtables: &Xtables) -> Result<(), xtables::Error> {
    match repair(&xtables.lines_with("mangle", CHAIN).await?) {
        Some(batch) => xtables.restore(&batch).await,
        None => Ok(()),
    }
}

/// Whether an earlier run left something. The routing rule comes first and
/// goes last.
fn left_behind() -> Result<bool, Error> {
    let mut socket = Socket::open(Protocol::Route)?;
    for family in Family::ALL {
        if rules::list(&mut socket, family)?.contains(&rule(family)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Removes everything that is ever installed here, also what an earlier
/// process left. Twice is harmless.
///
/// # Errors
/// With the first thing that could not be removed; the others are removed all
/// the same.
pub async fn cleanup() -> Result<(), Error> {
    let mut outcome = Ok(());
    for family in Family::ALL {
        let removed = OWNED.remove(family, &Preserved::nothing()).await;
        outcome = outcome.and(removed.map_err(Error::from));
        outcome = outcome.and(unroute(family));
    }
    outcome
}

fn unroute(family: Family) -> Result<(), Error> {
    let mut socket = Socket::open(Protocol::Route)?;
    let loopback = links::index("lo")?;
    routes::delete(&mut socket, &[route(family, loopback)])?;
    Ok(rules::delete(&mut socket, &[rule(family)])?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_repaired_and_what_is_right_left_alone() {
        let (jump, own) = (jump(), format!("-A {CHAIN} {}", marking()));
        let foreign = "-A PREROUTING -i eth1 -j MARK --set-xmark 0x1/0xffffffff";
        let declared = format!(":{CHAIN} - [0:0]");
        let right = [&declared, foreign, &jump, &own].join("\n");
        assert_eq!(repair(&right), None);
        let odd = format!("-A PREROUTING -p tcp -j {CHAIN}");
        let cases: [(&[&str], Vec<String>); 5] = [
            (&[foreign], vec![own.clone(), jump.clone()]),
            (&[&declared, &jump], vec![own.clone()]),
            (&[&declared, &own], vec![own.clone(), jump.clone()]),
            (
                &[&declared, &jump, &own, &jump],
                vec![own.clone(), format!("-D PREROUTING -j {CHAIN}")],
            ),
            (
                &[&declared, &odd, &own, &own],
                vec![
                    own.clone(),
                    format!("-D PREROUTING -p tcp -j {CHAIN}"),
                    jump.clone(),
                ],
            ),
        ];
        for (saved, expected) in cases {
            let batch = repair(&saved.join("\n")).unwrap();
            let lines: Vec<_> = batch.lines().collect();
            let (head, tail) = (format!(":{CHAIN} - [0:0]"), "COMMIT");
            assert_eq!(lines[..2], ["*mangle", &head], "{saved:?}");
            assert_eq!(lines[2..lines.len() - 1], expected, "{saved:?}");
            assert_eq!(lines.last(), Some(&tail));
        }
    }
}
