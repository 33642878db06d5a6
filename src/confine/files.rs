//! The files that the settings name, and the capabilities needed for those that belong to other
//! users.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use caps::Capability;
use nix::unistd::geteuid;

/// The files that the settings name.
#[derive(Clone, Debug, Default)]
pub struct Files<'a> {
    /// Files that are read at any time, not only at the start.
    pub read: Vec<PathBuf>,
    /// Files that are written, and created if they do not exist.
    pub written: Vec<&'a Path>,
    /// Unix sockets that are created.
    pub sockets: Vec<&'a Path>,
}

impl Files<'_> {
    /// Returns the capabilities without which files of other users may be out of reach.
    pub(super) fn needed(&self) -> impl Iterator<Item = Capability> {
        let user = geteuid().as_raw();
        let of_another = |path: &Path| is_of_another(path, user);
        let read = self.read.iter().any(|path| of_another(path));
        let read = read.then_some(Capability::CAP_DAC_READ_SEARCH);
        let mut made = self.written.iter().chain(&self.sockets);
        let written = made.any(|path| of_another(path));
        let written = written.then_some(Capability::CAP_DAC_OVERRIDE);
        read.into_iter().chain(written)
    }
}

/// Returns whether the file, or the lowest existing folder on its path, belongs to another user
/// than `user`, or is below a folder of another user that not everybody may search.
fn is_of_another(path: &Path, user: u32) -> bool {
    let found = path.ancestors().find_map(|path| match path.as_os_str() {
        path if path.is_empty() => fs::canonicalize(".").ok(),
        _ => fs::canonicalize(path).ok(),
    });
    let Some(found) = found else {
        // It may exist, below a folder that this user may not search.
        return true;
    };
    let of_another = |path: &Path| match fs::metadata(path) {
        Ok(metadata) => (metadata.uid() != user).then(|| metadata.permissions().mode()),
        Err(_) => Some(0),
    };
    // x for others, `inode(7)`.
    let closed = |folder| of_another(folder).is_some_and(|mode| mode & 0o001 == 0);
    of_another(&found).is_some() || found.ancestors().skip(1).any(closed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_others_and_in_their_closed_folders_are_found() {
        let user = geteuid().as_raw();
        let folder = std::env::temp_dir().join(format!("tripod-files-{}", std::process::id()));
        let inner = folder.join("inner");
        fs::create_dir_all(&inner).expect("a folder");
        let later = inner.join("later/file");
        assert!(!is_of_another(&inner, user));
        assert!(!is_of_another(&later, user));
        assert!(is_of_another(&inner, user + 1));
        assert!(is_of_another(&later, user + 1));
        let files = Files {
            read: vec![inner],
            written: vec![&later],
            sockets: Vec::new(),
        };
        assert_eq!(files.needed().count(), 0);

        if user == 0 {
            let owned = |by| std::os::unix::fs::chown(&folder, Some(by), None).expect("an owner");
            owned(1);
            let closed = |mode| {
                fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).expect("a mode");
                is_of_another(&later, user)
            };
            assert!(closed(0o750));
            assert!(!closed(0o755));
            owned(0);
        }
        fs::remove_dir_all(&folder).expect("removed");
    }
}
