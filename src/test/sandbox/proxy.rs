//! The Tripod under test.

use std::{
    collections::VecDeque,
    os::unix::process::CommandExt,
    path::Path,
    process::{Command as StdCommand, Stdio},
    sync::Arc,
    time::Duration,
};

use netlink::isolation;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, ChildStderr, Command},
    time::{Instant, sleep},
};

use super::subnets::Subnets;
use crate::{ask, config::ModeName, status_api::Status};

/// The socket of Tripod's API, in the empty `/run`.
pub(super) const SOCKET: &str = "/run/tripod/tripod.sock";

/// Time limit until everything is applied.
const PATIENCE: Duration = Duration::from_secs(120);
/// Time between two requests.
const PERIOD: Duration = Duration::from_millis(50);
/// Number of lines of its log that are shown.
const LINES: usize = 30;

/// A running Tripod; it is killed when this is dropped, or this process ends.
#[derive(Debug)]
pub(super) struct Proxy {
    child: Child,
    log: Arc<Mutex<VecDeque<String>>>,
}

impl Proxy {
    /// Starts it in the network namespace of this process.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(super) fn start(
        folder: &Path,
        mode: Option<ModeName>,
        node: &str,
        subnets: Subnets,
    ) -> Result<Proxy, String> {
        // This very program, even if its file was replaced or is not visible here.
        let mut command = StdCommand::new("/proc/self/exe");
        command.arg0("tripod").arg("--manifests").arg(folder);
        command.args(mode.map(|mode| format!("--proxy-mode={mode}")));
        command
            .arg(format!("--hostname-override={node}"))
            .arg(format!("--cluster-cidr={}", subnets.of_pods()))
            .arg(format!("--nodeport-addresses={}", subnets.of_node()))
            .arg(format!("--status-socket={SOCKET}"))
            .args(["--healthz-bind-address=", "--metrics-bind-address="])
            // These settings belong to the host.
            .args(["--conntrack-max-per-core=0", "--oom-score-adj=0"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        isolation::die_with_parent(&mut command);
        let mut child = Command::from(command)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| format!("cannot start Tripod: {error}"))?;
        let log = Arc::default();
        if let Some(stderr) = child.stderr.take() {
            tokio::spawn(keep(stderr, Arc::clone(&log)));
        }
        Ok(Proxy { child, log })
    }

    /// Waits until the desired state of the folder is applied.
    ///
    /// # Errors
    /// When Tripod exits, or takes too long; the error includes the end of its log.
    pub(super) async fn synced(&mut self) -> Result<Status, String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(self.with_log(&format!("Tripod ended ({status})")));
            }
            let answer = ask::status_of(Path::new(SOCKET)).await;
            let why = match answer {
                Ok(status) if is_synced(&status) => return Ok(status),
                Ok(status) => status.problems.join("; "),
                Err(why) => why,
            };
            if Instant::now() > deadline {
                let seconds = PATIENCE.as_secs();
                let what = format!("Tripod has not applied everything after {seconds} s: {why}");
                return Err(self.with_log(&what));
            }
            sleep(PERIOD).await;
        }
    }

    /// Returns `what`, and below it the end of the log.
    pub(super) fn with_log(&self, what: &str) -> String {
        let log = self.log.lock();
        let lines = log.iter().map(|line| format!("\n  {line}"));
        format!("{what}; its log:{}", lines.collect::<String>())
    }
}

fn is_synced(status: &Status) -> bool {
    let kinds = &status.objects.kinds;
    kinds.iter().all(|kind| kind.complete || !kind.required)
        && status.syncs.iter().all(|sync| sync.last.is_some())
        && !status.syncs.is_empty()
}

async fn keep(stderr: ChildStderr, log: Arc<Mutex<VecDeque<String>>>) {
    let mut lines = BufReader::new(stderr).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let mut log = log.lock();
        if log.len() == LINES {
            log.pop_front();
        }
        log.push_back(line);
    }
}
