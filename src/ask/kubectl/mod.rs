//! `kubectl tripod`: asks the Tripod of a node from any machine. kubectl, with the user's own
//! configuration, finds the pod and runs the command in it. The program is the same; it does this
//! if it is called `kubectl-tripod`, as kubectl calls its plugins.

mod all_nodes;
mod check;
mod command_line;
mod missing;
mod pods;

use std::{
    ffi::{OsStr, OsString},
    io::{self, IsTerminal},
    path::Path,
    process::{Command, ExitCode, Stdio},
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, de::DeserializeOwned};
use tokio::{io::AsyncWriteExt, runtime::Builder, time::timeout};

pub use self::command_line::command;
use self::command_line::{Asked, Target};
use super::UNREACHABLE;
use crate::cli;

/// Returns whether kubectl calls the program of this name: krew links `kubectl-tripod`, and a
/// command name with a dash has an underscore in its place.
pub fn is_called_by(program: &OsStr) -> bool {
    let name = Path::new(program).file_stem();
    name.is_some_and(|name| name == "kubectl-tripod" || name == "kubectl_tripod")
}

/// Does what the arguments ask for, program name first. Returns the exit status: that of the
/// command in the pod; of all nodes 0, or 1 if a node is not healthy; 2 if the cluster or a
/// Tripod cannot be asked.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let asked = match command_line::read(arguments) {
        Ok(asked) => asked,
        Err(stop) => return stop.print(),
    };
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start: {error}"));
    let done = runtime.and_then(|runtime| runtime.block_on(answer(&asked)));
    done.unwrap_or_else(|why| cli::fail(&why, UNREACHABLE))
}

async fn answer(asked: &Asked) -> Result<ExitCode, String> {
    let kubectl = &asked.kubectl;
    let node = match &asked.target {
        Target::Node(node) => Some(node.clone()),
        Target::NodeOf(pod) => Some(kubectl.node_of(pod)?),
        Target::Only | Target::AllNodes => None,
    };
    if let Some(check) = &asked.check {
        return check::print(asked, check, node).await;
    }
    match node {
        _ if asked.target == Target::AllNodes => all_nodes::print(asked).await,
        Some(node) => run_in(&pods::find(kubectl, &pods::all(kubectl)?, &node)?, asked),
        None => run_in(&pods::only(kubectl)?, asked),
    }
}

/// Runs the command in a pod, with this process's terminal if it has one: for colours, and for a table
/// that follows changes.
fn run_in(pod: &Pod, asked: &Asked) -> Result<ExitCode, String> {
    let is_interactive = io::stdin().is_terminal() && io::stdout().is_terminal();
    let terminal: &[&str] = match is_interactive {
        true => &["--stdin", "--tty"],
        false => &[],
    };
    let mut exec = asked.kubectl.exec(pod, terminal, &asked.command);
    let status = exec.status().map_err(|error| unusable(&error))?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

fn unusable(error: &io::Error) -> String {
    format!("cannot run kubectl: {error}; it must be on the PATH")
}

/// A list, as kubectl prints it.
#[derive(Deserialize)]
struct Items<T> {
    items: Vec<T>,
}

/// How kubectl reaches the cluster, and where Tripod's pods are.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Kubectl {
    /// Flags for each call, such as `--context=NAME`.
    flags: Vec<String>,
    /// The namespace of Tripod's pods.
    namespace: String,
    /// The labels of Tripod's pods.
    selector: String,
}

impl Kubectl {
    fn command(&self) -> Command {
        let mut command = Command::new("kubectl");
        command.args(&self.flags);
        command
    }

    /// Returns what kubectl prints for these arguments; `None` if it fails. It may ask for a password.
    fn output(&self, arguments: &[&str], stderr: Stdio) -> Result<Option<Vec<u8>>, String> {
        let mut command = self.command();
        command.args(arguments).stdin(Stdio::inherit());
        let done = command.stderr(stderr).output();
        let done = done.map_err(|error| unusable(&error))?;
        Ok(done.status.success().then_some(done.stdout))
    }

    /// Returns the objects that `kubectl get` prints for these arguments.
    fn get<T: DeserializeOwned>(&self, arguments: &[&str]) -> Result<T, String> {
        let what = arguments.join(" ");
        let all = [&["get"], arguments, &["--output=json"]].concat();
        let text = self.output(&all, Stdio::inherit())?;
        let text = text.ok_or_else(|| format!("kubectl cannot get {what}"))?;
        serde_json::from_slice(&text)
            .map_err(|error| format!("cannot read what kubectl prints for get {what}: {error}"))
    }

    /// Returns the names of the nodes of Linux, if they may be listed. The table that kubectl prints for
    /// people is much smaller than the objects.
    fn linux_nodes(&self) -> Vec<String> {
        let of_linux = "kubernetes.io/os!=windows";
        let table = self.output(
            &["get", "nodes", "--no-headers", "-l", of_linux],
            Stdio::null(),
        );
        let table = table.ok().flatten().unwrap_or_default();
        let lines = String::from_utf8_lossy(&table);
        let names = lines.lines().filter_map(|line| line.split(' ').next());
        names.map(str::to_owned).collect()
    }

    /// Returns the kubeconfig of this call, with the certificates in it.
    fn kubeconfig(&self) -> Result<Vec<u8>, String> {
        let view = ["config", "view", "--raw", "--minify", "--flatten"];
        let kubeconfig = self.output(&view, Stdio::inherit())?;
        kubeconfig.ok_or_else(|| "kubectl cannot print the kubeconfig".to_owned())
    }

    /// Asks for the node on which a pod runs: `NAMESPACE/NAME`, or `NAME` in the namespace of
    /// kubectl's context.
    fn node_of(&self, pod: &str) -> Result<String, String> {
        let object: Pod = match pod.split_once('/') {
            Some((namespace, name)) => self.get(&["pod", name, "--namespace", namespace])?,
            None => self.get(&["pod", pod])?,
        };
        let node = pods::node(&object).cloned();
        node.ok_or_else(|| format!("pod {pod} has no node yet"))
    }

    /// Builds the command that runs `tripod` with these arguments in a pod; `flags` are those of
    /// `kubectl exec`.
    fn exec(
        &self,
        pod: &Pod,
        flags: &[&str],
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Command {
        let mut command = self.command();
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        command.args(["exec", "--namespace", &self.namespace, name]);
        command.args(["--container", pods::container(pod)]);
        command.args(flags).args(["--", "tripod"]).args(arguments);
        command
    }

    /// Runs `tripod` with these arguments and this standard input in a pod. Returns the JSON that it
    /// prints. kubectl waits for a node that has gone for a long time.
    async fn ask_in<T: DeserializeOwned>(
        &self,
        pod: &Pod,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
        input: Option<&[u8]>,
        limit: Duration,
    ) -> Result<T, String> {
        let stdin: &[&str] = input.map_or(&[], |_| &["--stdin"]);
        let mut command = tokio::process::Command::from(self.exec(pod, stdin, arguments));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(Stdio::piped()).kill_on_drop(true);
        let done = async {
            let mut running = command.spawn()?;
            if let (Some(mut stdin), Some(input)) = (running.stdin.take(), input) {
                // If it ends early, its output says why.
                let _ = stdin.write_all(input).await;
            }
            running.wait_with_output().await
        };
        let done = timeout(limit, done).await;
        let done = done.map_err(|_| format!("no answer within {} s", limit.as_secs()))?;
        let done = done.map_err(|error| unusable(&error))?;
        serde_json::from_slice(&done.stdout).map_err(|error| {
            let said = String::from_utf8_lossy(&done.stderr);
            // kubectl ends with such a line.
            let is_why = |line: &&str| !line.starts_with("command terminated with exit code");
            match said.trim().lines().rfind(is_why) {
                Some(said) => said.to_owned(),
                None => format!("cannot read its answer: {error}"),
            }
        })
    }
}
