//! The programs for each engine of the kernel.

use net::Family;

use super::{Engine, Error, Xtables, run::Writer};

/// Programs of one IP family, one for each engine of the kernel.
#[derive(Debug)]
pub struct Engines {
    family: Family,
    found: Vec<Writer>,
    /// Why the engine of each of the other programs is not known.
    unidentified: Vec<Error>,
}

impl Engines {
    /// Keeps the first of `programs` for each engine.
    pub(super) async fn of(family: Family, programs: impl Iterator<Item = Xtables>) -> Engines {
        let mut engines = Engines {
            family,
            found: Vec::new(),
            unidentified: Vec::new(),
        };
        for xtables in programs {
            match xtables.engine().await {
                Ok(engine) if engines.writer(engine).is_some() => {}
                Ok(engine) => engines.found.push(Writer { xtables, engine }),
                Err(error) => engines.unidentified.push(error),
            }
        }
        engines
    }

    /// Returns the programs with their engines.
    pub fn writers(&self) -> &[Writer] {
        &self.found
    }

    /// Returns the program for `engine`; `None`: none is known to speak to it.
    pub fn writer(&self, engine: Engine) -> Option<&Writer> {
        self.found.iter().find(|writer| writer.engine == engine)
    }

    /// Returns why it is not known of some programs to which engine they speak; `None`: it is known
    /// of all.
    fn unidentified(&self) -> Option<Error> {
        let reasons: Vec<String> = self.unidentified.iter().map(Error::to_string).collect();
        (!reasons.is_empty()).then(|| Error::Unidentified {
            family: self.family,
            reason: reasons.join("; "),
        })
    }

    /// Returns why it is not known whether there is a program for `engine`; `None`: it is known.
    pub fn unknown(&self, engine: Engine) -> Option<Error> {
        let is_known = self.writer(engine).is_some();
        self.unidentified().filter(|_| !is_known)
    }
}

#[cfg(test)]
mod tests {
    use std::{env, fs, os::unix::fs::PermissionsExt, path::Path, process};

    use testing::block_on;

    use super::{
        super::program::{Namespace, Program},
        *,
    };

    /// Returns a program that does this.
    fn script(folder: &Path, name: &str, does: &str) -> Xtables {
        let path = folder.join(name);
        fs::write(&path, format!("#!/bin/sh\n{does}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let program = Program {
            path,
            applet: None,
            name: name.to_owned(),
            namespace: Namespace::Node,
        };
        Xtables {
            family: Family::V4,
            restore: program.clone(),
            save: program,
        }
    }

    #[test]
    fn a_program_that_does_not_say_its_engine_is_not_absent() {
        let folder = env::temp_dir().join(format!("tripod-engines-{}", process::id()));
        fs::create_dir_all(&folder).unwrap();
        let says = |name, words: &str| script(&folder, name, &format!("echo '{words}'"));
        let nft = says("iptables-restore", "iptables-restore v1.8.9 (nf_tables)");
        let again = says(
            "iptables-nft-restore",
            "iptables-restore v1.8.9 (nf_tables)",
        );
        let broken = script(
            &folder,
            "iptables-legacy-restore",
            "echo 'libxtables.so.12: cannot open' >&2; exit 127",
        );
        let programs = vec![nft.clone(), broken, again];
        let engines = block_on(Engines::of(Family::V4, programs.into_iter()));
        let (xtables, engine) = (nft.clone(), Engine::NfTables);
        assert_eq!(engines.writers(), [Writer { xtables, engine }]);
        let unknown = engines.unknown(Engine::Legacy).expect("it may be legacy");
        let text = unknown.to_string();
        for words in ["iptables-legacy-restore", "libxtables.so.12", "IPv4"] {
            assert!(text.contains(words), "{text}");
        }
        assert!(engines.unknown(Engine::NfTables).is_none());

        let engines = block_on(Engines::of(Family::V4, [nft].into_iter()));
        assert!(engines.unknown(Engine::Legacy).is_none(), "there is none");
        assert!(engines.unidentified().is_none());
        fs::remove_dir_all(&folder).unwrap();
    }
}
