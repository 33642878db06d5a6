//! The findings of a process that may make network namespaces, stored for one that may not: the
//! init container of a pod stores them for the main container.
//!
//! Without a namespace of its own, a process can try things only among the node's own rules and
//! links. Findings hold for one boot of one kernel; they do not depend on the privileges of a
//! process.

use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use enumset::EnumSet;
use net::Family;
use netlink::sysctl;
use nix::libc;
use serde::{Deserialize, Serialize};
use xtables::{Engine, features::Features};

use super::{Ability, Extension, Kernel, Unable, answer::Tried};

/// The file with the findings, if there are any.
pub const PATH: &str = "/run/tripod/kernel.json";

/// Version of the format, including the set of abilities that it knows.
const VERSION: u32 = 1;

/// Maximum number of bytes of the file that are read; no file of findings is as long.
const LONGEST: u64 = 64 * 1024;

/// The findings about a kernel, for as long as it runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Findings {
    version: u32,
    /// Id of the boot (`/proc/sys/kernel/random/boot_id`).
    boot_id: String,
    /// Version of the kernel (`uname -r`).
    kernel: String,
    /// Abilities as they are displayed, each with the reason if it is missing.
    abilities: BTreeMap<String, Option<String>>,
    rules: Vec<Rules>,
}

/// The matches and targets that rules may use in one family and engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Rules {
    family: String,
    engine: String,
    /// Matches and targets that are missing; all others are there.
    lacks: Vec<String>,
}

/// Why there are no findings that can be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read or written.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file is not a file that root alone may change.
    #[error("not a file of root that only root may write to")]
    Untrusted,
    /// The file does not have the format of findings.
    #[error("{0}")]
    Malformed(#[from] serde_json::Error),
    /// The findings are of another boot, kernel or format.
    #[error("they are of {what} {found:?}, and this is {here:?}")]
    Elsewhere {
        /// Name of the field that differs.
        what: &'static str,
        /// The value in the findings.
        found: String,
        /// The value of this node.
        here: String,
    },
    /// The boot id or version of this kernel cannot be read.
    #[error(transparent)]
    Sysctl(#[from] sysctl::Error),
}

fn boot_id() -> Result<String, sysctl::Error> {
    sysctl::read("kernel.random.boot_id")
}

fn kernel() -> Result<String, sysctl::Error> {
    sysctl::read("kernel.osrelease")
}

fn engine_name(engine: Engine) -> &'static str {
    match engine {
        Engine::NfTables => "nft",
        Engine::Legacy => "legacy",
    }
}

/// Returns whether the ability is stored: it cannot be tried without changing the network
/// namespace. A process tries all others itself, because it may have fewer privileges than the one
/// that stored the findings.
fn is_stored(ability: &Ability) -> bool {
    matches!(
        ability,
        Ability::Scheduler(_)
            | Ability::DummyLink
            | Ability::IpSet(_)
            | Ability::Nftables(..)
            | Ability::PortRules(_)
            | Ability::LocalRoutes(_)
    )
}

/// Path at which findings are written before they are renamed to `path`.
fn draft(path: &Path) -> PathBuf {
    path.with_extension("new")
}

/// Removes the findings at `path`, and the draft of a process that was killed while it wrote them.
/// Returns whether there were any.
///
/// # Errors
/// When they cannot be removed.
pub fn remove(path: &Path) -> io::Result<bool> {
    let mut found = false;
    for path in [path, &draft(path)] {
        match fs::remove_file(path) {
            Ok(()) => found = true,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

impl Findings {
    /// Extracts the findings of `kernel`; `None` if they are not worth storing, because nothing was
    /// tried in a namespace of its own. Unknown abilities are left out.
    ///
    /// # Errors
    /// When the boot id or the version of the kernel cannot be read.
    pub fn of(kernel: &Kernel) -> Result<Option<Findings>, Error> {
        if !kernel.isolated {
            return Ok(None);
        }
        let stored = kernel
            .tried
            .iter()
            .filter(|(ability, _)| is_stored(ability));
        let abilities = stored.filter_map(|(ability, tried)| {
            let missing = match tried {
                Ok(()) => None,
                Err(Unable::Missing(why)) => Some(why.clone()),
                Err(Unable::Unknown(_)) => return None,
            };
            Some((ability.to_string(), missing))
        });
        let rules = kernel.writers.iter().filter_map(|(family, writer)| {
            let has_nat = kernel.can(&Ability::Nat(family));
            let writer = writer.as_ref().filter(|_| has_nat)?;
            let mut lacks = Vec::new();
            for extension in EnumSet::<Extension>::all() {
                match kernel.tried.get(&Ability::Extension(family, extension))? {
                    Ok(()) => {}
                    Err(Unable::Missing(_)) => lacks.push(extension.word()),
                    Err(Unable::Unknown(_)) => return None,
                }
            }
            Some(Rules {
                family: family.to_string(),
                engine: engine_name(writer.engine).to_owned(),
                lacks,
            })
        });
        Ok(Some(Findings {
            version: VERSION,
            boot_id: boot_id()?,
            kernel: self::kernel()?,
            abilities: abilities.collect(),
            rules: rules.collect(),
        }))
    }

    /// Writes the findings to `path`, atomically.
    ///
    /// # Errors
    /// When the file, or its folder, cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let draft = draft(path);
        match fs::remove_file(&draft) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o644)
            .open(&draft)?;
        file.write_all(serde_json::to_string_pretty(self)?.as_bytes())?;
        Ok(fs::rename(&draft, path)?)
    }

    /// Reads the findings at `path`; `None` if there are none.
    ///
    /// # Errors
    /// When they cannot be used: not root's, malformed, or of another boot or
    /// kernel.
    pub fn read(path: &Path) -> Result<Option<Findings>, Error> {
        let opened = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(path);
        let file = match opened {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let metadata = file.metadata()?;
        let others_may_write = metadata.mode() & 0o022 != 0;
        if !metadata.is_file() || metadata.uid() != 0 || others_may_write {
            return Err(Error::Untrusted);
        }
        let mut text = String::new();
        file.take(LONGEST).read_to_string(&mut text)?;
        let findings: Findings = serde_json::from_str(&text)?;
        findings.check()?;
        Ok(Some(findings))
    }

    fn check(&self) -> Result<(), Error> {
        let same = |what, found: &str, here: String| {
            if found == here {
                Ok(())
            } else {
                Err(Error::Elsewhere {
                    what,
                    found: found.to_owned(),
                    here,
                })
            }
        };
        same("format", &self.version.to_string(), VERSION.to_string())?;
        same("boot", &self.boot_id, boot_id()?)?;
        same("kernel", &self.kernel, kernel()?)
    }

    /// Returns the stored outcome for `ability`, if there is one.
    pub(super) fn tried(&self, ability: &Ability) -> Option<Tried> {
        if !is_stored(ability) {
            return None;
        }
        let missing = self.abilities.get(&ability.to_string())?;
        Some(match missing {
            None => Ok(()),
            Some(why) => Err(Unable::Missing(why.clone())),
        })
    }

    /// Returns the stored features for rules of `family` in `engine`, if there are any.
    pub(super) fn features(&self, family: Family, engine: Engine) -> Option<Features> {
        let (family, engine) = (family.to_string(), engine_name(engine));
        let mut all = self.rules.iter();
        let rules = all.find(|rules| rules.family == family && rules.engine == engine)?;
        let all = EnumSet::all().into_iter();
        let there = all.filter(|extension: &Extension| !rules.lacks.contains(&extension.word()));
        Some(there.collect())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use testing::is_root;

    use super::*;

    const TRUSTED: &str = "files of root alone are trusted";

    fn file(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("tripod-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        folder.join("kernel.json")
    }

    fn found() -> Kernel {
        let mut kernel = Kernel::with_everything(&["rr".to_owned()]).without(&Ability::DummyLink);
        kernel.isolated = true;
        kernel
    }

    #[test]
    fn what_was_found_is_read_again() {
        if !is_root(TRUSTED) {
            return;
        }
        let findings = Findings::of(&found()).unwrap().unwrap();
        let path = file("again");
        findings.write(&path).unwrap();
        findings.write(&path).unwrap();
        let read = Findings::read(&path).unwrap().unwrap();
        assert_eq!(read, findings);
        let rr = Ability::Scheduler("rr".to_owned());
        assert_eq!(read.tried(&rr), Some(Ok(())));
        let dummy = read.tried(&Ability::DummyLink);
        assert!(matches!(dummy, Some(Err(Unable::Missing(_)))), "{dummy:?}");
        assert_eq!(read.tried(&Ability::Splice), None, "it may differ");
        let other = Ability::Scheduler("mh".to_owned());
        assert_eq!(read.tried(&other), None, "it was not tried");
    }

    #[test]
    fn what_is_unknown_is_not_stored() {
        let mut kernel = found();
        let unknown = Unable::Unknown("Cannot allocate memory".to_owned());
        kernel.record(Ability::DummyLink, Err(unknown));
        let findings = Findings::of(&kernel).unwrap().unwrap();
        assert_eq!(findings.tried(&Ability::DummyLink), None);
        kernel.isolated = false;
        assert_eq!(Findings::of(&kernel).unwrap(), None);
    }

    #[test]
    fn what_does_not_fit_is_not_used() {
        if !is_root(TRUSTED) {
            return;
        }
        let path = file("fit");
        assert!(matches!(Findings::read(&path), Ok(None)), "there is none");
        let findings = Findings::of(&found()).unwrap().unwrap();
        let other = |change: fn(&mut Findings)| {
            let mut other = findings.clone();
            change(&mut other);
            other.write(&path).unwrap();
            Findings::read(&path).unwrap_err().to_string()
        };
        let boot = other(|findings| findings.boot_id = "another".to_owned());
        assert!(boot.contains("boot \"another\""), "{boot}");
        let kernel = other(|findings| findings.kernel = "2.4".to_owned());
        assert!(kernel.contains("kernel \"2.4\""), "{kernel}");
        let version = other(|findings| findings.version += 1);
        assert!(version.contains("format \"2\""), "{version}");

        findings.write(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        assert!(matches!(Findings::read(&path), Err(Error::Untrusted)));
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/etc/hostname", &path).unwrap();
        assert!(matches!(Findings::read(&path), Err(Error::Io(_))));
        fs::remove_file(&path).unwrap();
        fs::write(&path, "{}").unwrap();
        assert!(matches!(Findings::read(&path), Err(Error::Malformed(_))));
    }
}
