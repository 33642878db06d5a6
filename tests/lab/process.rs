//! Child processes that do not outlive the test.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

/// Returns a command that the kernel kills when the thread that started it ends, even by
/// SIGKILL, when no destructor runs.
pub fn die_with_parent(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

/// A child in a separate process group; the whole group is killed on drop.
#[derive(Debug)]
pub struct Group {
    child: Child,
    done: Option<ExitStatus>,
}

impl Group {
    pub fn spawn(command: &mut Command) -> std::io::Result<Group> {
        let child = command.process_group(0).spawn()?;
        Ok(Group { child, done: None })
    }

    /// Returns the process id, which is also the id of the group.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the child, with the handles that were requested with `Stdio::piped`.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    pub fn signal(&self, signal: Signal) {
        if self.done.is_none() {
            let _ = kill(self.as_pid(), signal);
        }
    }

    /// Returns its exit status; `None` if it still runs at `deadline`.
    pub fn wait_until(&mut self, deadline: Instant) -> Option<ExitStatus> {
        while self.done.is_none() {
            self.done = self.child.try_wait().expect("waiting for a child of ours");
            if self.done.is_none() {
                if Instant::now() > deadline {
                    return None;
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        self.done
    }

    /// Sends SIGKILL, and waits until it has ended.
    pub fn kill(&mut self) {
        if self.done.is_none() {
            let _ = killpg(self.as_pid(), Signal::SIGKILL);
            self.done = self.child.wait().ok();
        }
    }

    fn as_pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).expect("process ids are positive"))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}
