//! Sockets in the file system and findings about the kernel that processes of Tripod leave behind.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::{
    hold,
    kernel::{probe::findings, socket::unix},
    lifecycle, status_api,
};

/// Results of removing files and their folders.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Removed {
    /// Files that are gone now.
    pub(super) gone: Vec<PathBuf>,
    /// Files that stay because a process uses them.
    pub(super) used: Vec<PathBuf>,
    /// Files that could not be removed, and why.
    pub(super) failed: Vec<String>,
}

impl Removed {
    /// Removes the socket at `path`, if the process that made it has ended.
    pub(super) fn socket(&mut self, path: &Path) {
        // The path may be both the usual and the configured one.
        if !path.exists() || self.used.iter().any(|used| used == path) {
            return;
        }
        match unix::remove_unused(path) {
            Ok(true) => self.gone.push(path.to_owned()),
            Ok(false) => self.used.push(path.to_owned()),
            Err(error) => self.failed.push(format!("{}: {error}", path.display())),
        }
    }

    /// Removes the sockets, and the findings of `--init-only`, at their usual places below `root`,
    /// and the folders that only they use.
    pub(super) fn usual(&mut self, root: &Path) {
        let below = |path: &str| root.join(path.trim_start_matches('/'));
        self.folder(&below(lifecycle::FOLDER));
        let sockets = [status_api::SOCKET, hold::SOCKET].map(below);
        for path in &sockets {
            self.socket(path);
        }
        self.findings(&below(findings::PATH));
        for folder in sockets.iter().filter_map(|path| path.parent()) {
            self.empty_folder(folder);
        }
    }

    /// Removes the findings at `path`, unless a process listens in their folder: it needs them when
    /// it is restarted.
    fn findings(&mut self, path: &Path) {
        let folder = path.parent().unwrap_or(path);
        if self.used.iter().any(|used| used.starts_with(folder)) {
            return;
        }
        match findings::remove(path) {
            Ok(true) => self.gone.push(path.to_owned()),
            Ok(false) => {}
            Err(error) => self.failed.push(format!("{}: {error}", path.display())),
        }
    }

    /// Removes the sockets in a folder, like [`socket`](Self::socket), and the folder.
    fn folder(&mut self, folder: &Path) {
        match fs::read_dir(folder) {
            Ok(entries) => {
                for entry in entries.flatten() {
                    self.socket(&entry.path());
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => {
                let failed = format!("{}: {error}", folder.display());
                return self.failed.push(failed);
            }
        }
        self.empty_folder(folder);
    }

    /// Removes a folder if it is empty.
    fn empty_folder(&mut self, folder: &Path) {
        use io::ErrorKind::{DirectoryNotEmpty, NotFound, ResourceBusy};
        match fs::remove_dir(folder) {
            Ok(()) => self.gone.push(folder.to_owned()),
            // In a container the folder may be a mounted folder of the node.
            Err(error) if [DirectoryNotEmpty, NotFound, ResourceBusy].contains(&error.kind()) => {}
            Err(error) => self.failed.push(format!("{}: {error}", folder.display())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn what_a_process_listens_on_stays() {
        let name = format!("tripod-sockets-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        let [ended, running] = ["userspace-0", "userspace-1"].map(|name| folder.join(name));
        drop(UnixListener::bind(&ended).unwrap());
        let listener = UnixListener::bind(&running).unwrap();
        let mut removed = Removed::default();
        removed.folder(&folder);
        let expected = Removed {
            gone: vec![ended],
            used: vec![running.clone()],
            failed: Vec::new(),
        };
        assert_eq!(removed, expected);
        drop(listener);
        let mut removed = Removed::default();
        removed.folder(&folder);
        assert_eq!(removed.gone, [running, folder.clone()]);
        let mut nothing = Removed::default();
        nothing.folder(&folder);
        assert_eq!(nothing, Removed::default());
    }

    #[test]
    fn what_init_only_found_out_stays_for_a_process_that_runs() {
        let root = std::env::temp_dir().join(format!("tripod-found-{}", std::process::id()));
        let socket = root.join(status_api::SOCKET.trim_start_matches('/'));
        fs::create_dir_all(socket.parent().unwrap()).unwrap();
        let found = root.join("run/tripod/kernel.json");
        fs::write(&found, "{}").unwrap();
        let running = UnixListener::bind(&socket).unwrap();
        Removed::default().usual(&root);
        assert!(
            found.exists(),
            "the process needs it when it is started again"
        );
        drop(running);
        Removed::default().usual(&root);
        assert!(!found.exists());
        fs::remove_dir_all(root).unwrap();
    }

    /// A pod sees the node's files below a folder.
    #[test]
    fn folders_of_tripod_go_with_the_last_socket() {
        let name = format!("tripod-root-{}", std::process::id());
        let root = std::env::temp_dir().join(name);
        let [next, asked, held] =
            [lifecycle::FIRST, status_api::SOCKET, hold::SOCKET].map(|path| {
                let path = root.join(path.trim_start_matches('/'));
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                UnixListener::bind(&path).map(drop).unwrap();
                path
            });
        let found = root.join("run/tripod/kernel.json");
        let draft = root.join("run/tripod/kernel.new");
        for file in [&found, &draft] {
            fs::write(file, "{}").unwrap();
        }
        let left = root.join("run/other");
        fs::create_dir(&left).unwrap();
        fs::remove_file(&held).unwrap();
        let holder = UnixListener::bind(&held).unwrap();
        let mut removed = Removed::default();
        removed.socket(&held);
        removed.usual(&root);
        assert!(removed.gone.contains(&next) && removed.gone.contains(&asked));
        assert!(removed.gone.contains(&found));
        assert_eq!(removed.used, [held]);
        assert!(!root.join("run/tripod").exists(), "{removed:?}");
        drop(holder);
        Removed::default().usual(&root);
        assert!(!root.join("run/tripod-holder").exists());
        assert!(left.exists(), "it is another program's");
        fs::remove_dir_all(root).unwrap();
    }
}
