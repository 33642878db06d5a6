//! iptables and ip6tables that fail when a test requests it.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use nix::{
    fcntl::{Flock, FlockArg},
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// A fault of the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramFault {
    /// Another process holds the lock.
    Locked,
    /// The rules cannot be read, for example because of native rules in a table.
    SaveFails,
    /// The rules cannot be written.
    RestoreFails,
    /// The programs hang, whether they read or write.
    Hang,
    /// The programs cannot be started.
    Missing,
    /// They lack the capability to change rules, or to read them.
    NotPermitted,
    /// The programs of one family fail, 0 for IPv4, 1 for IPv6.
    Family(usize),
}

const RESTORE: [&str; 2] = ["iptables-restore", "ip6tables-restore"];
const SAVE: [&str; 2] = ["iptables-save", "ip6tables-save"];

/// The node's programs, each called by a script that first checks for a fault.
pub struct Programs {
    folder: PathBuf,
    /// Precedes the name of a program.
    multi: &'static str,
    lock: Option<Flock<fs::File>>,
}

impl Programs {
    pub fn new() -> Programs {
        Programs::behind("")
    }

    /// Returns the legacy programs, the only ones that respect the lock, whatever the node uses.
    pub fn legacy() -> Programs {
        Programs::behind("xtables-legacy-multi ")
    }

    fn behind(multi: &'static str) -> Programs {
        let folder = PathBuf::from("/run/programs");
        fs::create_dir_all(&folder).expect("a folder");
        let lock = None;
        let programs = Programs {
            folder,
            multi,
            lock,
        };
        RESTORE.iter().chain(&SAVE).for_each(|p| programs.write(p));
        programs
    }

    fn write(&self, program: &str) {
        let (folder, multi) = (self.folder.display(), self.multi);
        let script = format!(
            "#!/bin/sh\n\
             case $(cat {folder}/{program}.fault 2>/dev/null) in\n\
             fails) echo '{program}: fault' >&2; exit 1 ;;\n\
             not-permitted) PATH=${{PATH#*:}} exec unshare -r {multi}{program} \"$@\" ;;\n\
             hangs) echo $$ >>{folder}/hanging; exec sleep 1000 ;;\n\
             esac\n\
             PATH=${{PATH#*:}} exec {multi}{program} \"$@\"\n"
        );
        let path = self.folder.join(program);
        fs::write(&path, script).expect("a script");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its mode");
    }

    /// Makes `command` find these programs before the others.
    pub fn come_first(&self, command: &mut Command) {
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", self.folder.display()));
    }

    /// Gives all runs from now on this fault.
    pub fn break_with(&mut self, fault: ProgramFault) {
        let all = || RESTORE.into_iter().chain(SAVE);
        match fault {
            ProgramFault::Locked => {
                let file = fs::File::create("/run/xtables.lock").expect("the lock's file");
                let lock = Flock::lock(file, FlockArg::LockExclusive);
                self.lock = Some(lock.map_err(|(_, e)| e).expect("the lock"));
            }
            ProgramFault::SaveFails => SAVE.iter().for_each(|p| self.mark(p, "fails")),
            ProgramFault::RestoreFails => RESTORE.iter().for_each(|p| self.mark(p, "fails")),
            ProgramFault::Hang => all().for_each(|p| self.mark(p, "hangs")),
            ProgramFault::Missing => all().for_each(|p| {
                fs::remove_file(self.folder.join(p)).expect("it is there");
            }),
            ProgramFault::NotPermitted => all().for_each(|p| self.mark(p, "not-permitted")),
            ProgramFault::Family(of) => {
                [RESTORE[of], SAVE[of]]
                    .iter()
                    .for_each(|p| self.mark(p, "fails"));
            }
        }
    }

    fn mark(&self, program: &str, fault: &str) {
        let file = self.folder.join(format!("{program}.fault"));
        fs::write(file, fault).expect("a file");
    }

    /// Ends the fault; programs that hang are killed.
    pub fn repair(&mut self) {
        self.lock = None;
        for program in RESTORE.iter().chain(&SAVE) {
            let _ = fs::remove_file(self.folder.join(format!("{program}.fault")));
            if !Path::new(&self.folder.join(program)).exists() {
                self.write(program);
            }
        }
        let hanging = self.folder.join("hanging");
        for pid in fs::read_to_string(&hanging).unwrap_or_default().lines() {
            let pid = Pid::from_raw(pid.parse().expect("a number"));
            // It may have been killed already.
            let _ = kill(pid, Signal::SIGKILL);
        }
        let _ = fs::remove_file(hanging);
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        self.repair();
    }
}
