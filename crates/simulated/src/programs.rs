//! The programs of iptables, and the interfaces of the kernel other than netlink.

use std::{
    future::pending,
    io,
    os::unix::process::ExitStatusExt,
    path::Path,
    pin::Pin,
    process::{self, ExitStatus, Output},
    time::Duration,
};

use net::Family;
use nix::{errno::Errno, libc};
use tokio::time::sleep;
use xtables::info::Size;

use super::{Call, Fault, Inner, Kernel, prints, xtables::Batch};

/// How long a program takes.
const TAKES: Duration = Duration::from_millis(10);
/// How long a program waits for the lock: `-w 5`.
const WAITS: Duration = Duration::from_secs(5);
/// The exit status of a program that does not get the lock (`RESOURCE_PROBLEM`).
const NO_LOCK: i32 = 4;

/// A program with its arguments and input.
#[derive(Clone, Debug)]
pub(super) struct Command {
    /// The name of its file.
    pub(super) program: String,
    /// Its arguments.
    pub(super) args: Vec<String>,
    /// Its standard input.
    pub(super) input: String,
}

impl Command {
    pub(super) fn of(command: &process::Command, input: &str) -> Command {
        let file = Path::new(command.get_program()).file_name();
        let args = command.get_args();
        Command {
            program: file.unwrap_or_default().to_string_lossy().into_owned(),
            args: args.map(|one| one.to_string_lossy().into_owned()).collect(),
            input: input.to_owned(),
        }
    }
}

/// Output and exit status of a program.
type Answer = Pin<Box<dyn Future<Output = io::Result<Output>> + Send>>;

/// How a program ends.
enum End {
    /// In this way, after the time that it waits.
    After(Duration, io::Result<Output>),
    Never,
}

fn exited(code: i32, stdout: String, stderr: String) -> Output {
    Output {
        status: ExitStatus::from_raw(code << 8),
        stdout: stdout.into(),
        stderr: stderr.into(),
    }
}

fn killed(stdout: String) -> Output {
    Output {
        status: ExitStatus::from_raw(libc::SIGKILL),
        stdout: stdout.into(),
        stderr: Vec::new(),
    }
}

impl Kernel {
    /// Runs a program.
    pub(super) fn run(&self, command: Command) -> Answer {
        let kernel = self.clone();
        Box::pin(async move {
            sleep(TAKES).await;
            let end = kernel.lock().run(&command);
            match end {
                End::After(pause, ended) => {
                    if !pause.is_zero() {
                        sleep(pause).await;
                    }
                    ended
                }
                End::Never => pending().await,
            }
        })
    }

    /// Size of a table of the legacy engine.
    pub(super) fn size(&self, family: Family, table: &str) -> io::Result<Size> {
        let mut inner = self.lock();
        inner.plain(Call::Size)?;
        inner
            .state
            .xtables
            .size(family, table)
            .map_err(io::Error::from)
    }

    /// Value of a setting; 0 if it was never set.
    pub(super) fn setting(&self, name: &str) -> String {
        let inner = self.lock();
        let value = inner.state.settings.get(name).cloned();
        value.unwrap_or_else(|| "0".to_owned())
    }

    /// Changes a setting.
    pub(super) fn set(&self, name: &str, value: &str) -> io::Result<()> {
        let mut inner = self.lock();
        inner.plain(Call::Setting)?;
        let settings = &mut inner.state.settings;
        settings.insert(name.to_owned(), value.to_owned());
        Ok(())
    }

    /// Prints the file that shows the virtual servers.
    pub(super) fn virtual_servers(&self) -> io::Result<String> {
        let inner = self.lock();
        if inner.dead {
            return Err(Errno::EIO.into());
        }
        Ok(inner.state.ipvs.table())
    }
}

impl Inner {
    /// A call that is carried out or refused.
    fn plain(&mut self, call: Call) -> io::Result<()> {
        if self.dead {
            return Err(Errno::EIO.into());
        }
        match self.decide(call) {
            Fault::Unsent(errno) | Fault::Refused(errno, _) => Err(errno.into()),
            Fault::KilledBefore | Fault::KilledAfter => {
                self.dead = true;
                Err(Errno::EIO.into())
            }
            _ => Ok(()),
        }
    }

    /// Asks the observer for the fate of a call.
    fn decide(&mut self, call: Call) -> Fault {
        let fault = self.observer.before(call, &mut self.state);
        self.notify();
        fault
    }

    fn run(&mut self, command: &Command) -> End {
        let family = if command.program.starts_with("ip6") {
            Family::V6
        } else {
            Family::V4
        };
        let call = if command.program.ends_with("-save") {
            Call::Save(family)
        } else {
            Call::Restore(family)
        };
        if self.dead {
            return End::Never;
        }
        let fault = self.decide(call);
        let at_once = |ended| End::After(Duration::ZERO, ended);
        let program = &command.program;
        match fault {
            Fault::Unsent(errno) => return at_once(Err(errno.into())),
            Fault::Refused(errno, _) => {
                let text = format!("{program}: {}\n", errno.desc());
                return at_once(Ok(exited(1, String::new(), text)));
            }
            Fault::Locked => {
                let text = "Another app is currently holding the xtables lock. Stopped waiting after 5s.\n";
                let ended = exited(NO_LOCK, String::new(), text.to_owned());
                return End::After(WAITS, Ok(ended));
            }
            Fault::Hangs => return End::Never,
            Fault::KilledBefore => {
                self.dead = true;
                return End::Never;
            }
            _ => {}
        }
        let ended = match call {
            Call::Save(_) => self.save(family, command, fault),
            _ => self.restore(family, command, fault),
        };
        if fault == Fault::KilledAfter {
            self.dead = true;
            return End::Never;
        }
        at_once(Ok(ended))
    }

    fn save(&mut self, family: Family, command: &Command, fault: Fault) -> Output {
        let mut arguments = command.args.iter();
        let table = arguments.find(|argument| *argument == "-t");
        let table = table.and_then(|_| arguments.next());
        let mut saved = self.state.xtables.saved(family, table.map(String::as_str));
        match fault {
            Fault::Interrupted | Fault::Ended(_) | Fault::Unanswered => {
                let half = saved.floor_char_boundary(saved.len() / 2);
                saved.truncate(half);
                killed(saved)
            }
            _ => exited(0, saved, String::new()),
        }
    }

    /// Applies a batch, table by table.
    fn restore(&mut self, family: Family, command: &Command, fault: Fault) -> Output {
        let program = &command.program;
        if prints() {
            println!("{program} reads\n{}", command.input);
        }
        let mut batch = Batch::new(family, &command.input);
        if let Fault::Line(at) = fault {
            batch.refuse_line(at);
        }
        let ends = match fault {
            Fault::Ended(after) => after,
            _ => usize::MAX,
        };
        let mut made = 0;
        loop {
            if made == ends {
                return killed(String::new());
            }
            let (accounts, sets) = (&self.state.accounts, &self.state.sets);
            match self.state.xtables.run_table(&mut batch, accounts, sets) {
                Ok(true) => {
                    made += 1;
                    self.state.count();
                }
                Ok(false) if fault == Fault::Unanswered => return killed(String::new()),
                Ok(false) => return exited(0, String::new(), String::new()),
                Err(refusal) => {
                    let text = format!("{program}: {refusal}\n");
                    return exited(refusal.status(), String::new(), text);
                }
            }
            self.observer.after(Call::Restore(family), &mut self.state);
            self.notify();
        }
    }
}
