//! The API of the running proxy on a unix socket and at the metrics address, and the commands that
//! print its answers.

mod api;
mod diff;
mod explain;
mod kubectl;
mod packets;
mod page;
mod services;
mod start;
mod status;
mod terminal;
mod trace;
mod traffic;

use std::{process::Command, time::Duration};

use serde_json::Value;

use crate::lab::{Host, Lab, Tripod, eventually, tripod_binary};

/// How soon a change must show.
const SOON: Duration = Duration::from_secs(10);

/// The output of a command, and its exit status.
#[derive(Debug)]
struct Printed {
    text: String,
    error: String,
    status: Option<i32>,
}

impl Printed {
    fn of(mut command: Command) -> Printed {
        let output = command.output().expect("running tripod");
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        Printed {
            text: text(&output.stdout),
            error: text(&output.stderr),
            status: output.status.code(),
        }
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// Runs `tripod` on `node` with these arguments, to its end.
fn tripod(node: &Host, arguments: &[&str]) -> Printed {
    let mut command = node.command(tripod_binary());
    command.args(arguments);
    Printed::of(command)
}

fn status(lab: &Lab) -> Value {
    tripod(&lab.node, &["status", "--output=json"]).json()
}

/// A proxy of `lab` that answers and has synced both families.
fn started(lab: &Lab, flags: &[&str]) -> Tripod {
    let tripod = Tripod::start_with(lab, flags);
    eventually("it answers", SOON, || {
        let printed = self::tripod(&lab.node, &["status", "-o", "json"]);
        match printed.status {
            Some(0 | 1) => Ok(()),
            _ => Err(printed.error),
        }
    });
    tripod
}

/// A proxy of `lab` in a mode of the kernel.
fn started_in(lab: &Lab, mode: &str) -> Tripod {
    started_in_with(lab, mode, &[])
}

/// Like [`started_in`], with further flags.
fn started_in_with(lab: &Lab, mode: &str, flags: &[&str]) -> Tripod {
    let mut command = lab.node.command(tripod_binary());
    command
        .arg(format!("--proxy-mode={mode}"))
        .args(["--hostname-override=node", "--manifests"])
        .arg(lab.manifests())
        .args(["--cluster-cidr=10.244.0.0/24,fd00:244::/64", "--v=2"])
        .args(flags);
    Tripod::start_on(&lab.node, command)
}
