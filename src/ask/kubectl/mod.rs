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
};

use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, de::DeserializeOwned};

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
    let kubectl = &asked.kubectl;
    let done = match &asked.target {
        _ if asked.check.is_some() => check::print(&asked),
        Target::Node(node) => pods::of_node(kubectl, node).and_then(|pod| run_in(&pod, &asked)),
        Target::NodeOf(pod) => kubectl
            .node_of(pod)
            .and_then(|node| pods::of_node(kubectl, &node))
            .and_then(|pod| run_in(&pod, &asked)),
        Target::Only => pods::only(kubectl).and_then(|pod| run_in(&pod, &asked)),
        Target::AllNodes => all_nodes::print(&asked),
    };
    done.unwrap_or_else(|why| cli::fail(&why, UNREACHABLE))
}

/// Runs the command in a pod, with this process's terminal.
fn run_in(pod: &Pod, asked: &Asked) -> Result<ExitCode, String> {
    let mut exec = asked.kubectl.exec(pod, Terminal::OfUser, &asked.command);
    let status = exec.status().map_err(|error| unusable(&error))?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

fn unusable(error: &io::Error) -> String {
    format!("cannot run kubectl: {error}; it must be on the PATH")
}

/// Which terminal a command in a pod has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Terminal {
    None,
    /// None, but standard input.
    Input,
    /// That of this process, if it has one: for colours, and for a table that follows changes.
    OfUser,
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

    /// Returns the objects that `kubectl get` prints for these arguments.
    fn get<T: DeserializeOwned>(&self, arguments: &[&str]) -> Result<T, String> {
        let mut command = self.command();
        command.arg("get").args(arguments).arg("--output=json");
        // It may ask for a password.
        command.stdin(Stdio::inherit()).stderr(Stdio::inherit());
        let done = command.output().map_err(|error| unusable(&error))?;
        let what = arguments.join(" ");
        if !done.status.success() {
            return Err(format!("kubectl cannot get {what}"));
        }
        serde_json::from_slice(&done.stdout)
            .map_err(|error| format!("cannot read what kubectl prints for get {what}: {error}"))
    }

    /// Returns the names of the nodes of Linux. The table that kubectl prints for people is much
    /// smaller than the objects.
    fn linux_nodes(&self) -> Result<Vec<String>, String> {
        let mut command = self.command();
        command.args(["get", "nodes", "--no-headers", "-l"]);
        command.arg("kubernetes.io/os!=windows");
        let done = command.output().map_err(|error| unusable(&error))?;
        let lines = String::from_utf8_lossy(&done.stdout);
        let names = lines.lines().filter_map(|line| line.split(' ').next());
        let names = names.map(str::to_owned).collect();
        done.status
            .success()
            .then_some(names)
            .ok_or_else(|| "kubectl cannot get nodes".to_owned())
    }

    /// Returns the kubeconfig of this call, with the certificates in it.
    fn kubeconfig(&self) -> Result<Vec<u8>, String> {
        let mut command = self.command();
        command.args(["config", "view", "--raw", "--minify", "--flatten"]);
        let done = command.stderr(Stdio::inherit()).output();
        let done = done.map_err(|error| unusable(&error))?;
        let kubeconfig = done.status.success().then_some(done.stdout);
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

    /// Builds the command that runs `tripod` with these arguments in a pod.
    fn exec(&self, pod: &Pod, terminal: Terminal, arguments: &[OsString]) -> Command {
        let mut command = self.command();
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        command.args(["exec", "--namespace", &self.namespace, name]);
        command.args(["--container", pods::container(pod)]);
        let is_interactive = || io::stdin().is_terminal() && io::stdout().is_terminal();
        if terminal == Terminal::OfUser && is_interactive() {
            command.args(["--stdin", "--tty"]);
        }
        if terminal == Terminal::Input {
            command.arg("--stdin");
        }
        command.args(["--", "tripod"]).args(arguments);
        command
    }
}
