//! The path that `--manifests` names: a folder, or a single file, which is followed through its
//! folder.

use std::{
    ffi::{OsStr, OsString},
    fmt,
    path::{Path, PathBuf},
};

/// The path of manifests.
#[derive(Clone, Debug)]
pub(super) struct ManifestPath {
    /// The path as given.
    named: PathBuf,
    /// The folder that is listed and watched.
    pub(super) dir: PathBuf,
    /// The only relevant file of the folder; `None` if all manifests are.
    pub(super) file: Option<OsString>,
}

impl ManifestPath {
    /// Resolves the path now. One that does not exist yet will be a folder.
    pub(super) fn of(named: &Path) -> ManifestPath {
        let is_file = named.exists() && !named.is_dir();
        let file = named.file_name().filter(|_| is_file);
        let dir = match named.parent() {
            Some(parent) if file.is_some() && parent.as_os_str().is_empty() => Path::new("."),
            Some(parent) if file.is_some() => parent,
            _ => named,
        };
        ManifestPath {
            named: named.to_owned(),
            dir: dir.to_owned(),
            file: file.map(OsStr::to_owned),
        }
    }

    /// Returns whether a file of that name in the folder is read. Hidden files are not, unless one
    /// is named: editors and ConfigMap volumes use them for their own purposes.
    pub(super) fn has(&self, name: &OsStr) -> bool {
        if let Some(file) = &self.file {
            return name == file;
        }
        let extension = Path::new(name).extension().and_then(OsStr::to_str);
        matches!(extension, Some("yaml" | "yml" | "json"))
            && !name.as_encoded_bytes().starts_with(b".")
    }
}

impl fmt::Display for ManifestPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.named.display().fmt(f)
    }
}
