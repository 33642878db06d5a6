//! The versions of an object in several files.

use std::{
    ffi::{OsStr, OsString},
    sync::Arc,
};

/// The versions of one object, sorted by their files' names. There is nearly always one: a map of
/// maps took 450 bytes for each.
#[derive(Clone, Debug)]
pub(super) struct Versions<T>(Vec<(Arc<OsStr>, T)>);

impl<T> Default for Versions<T> {
    fn default() -> Versions<T> {
        Versions(Vec::new())
    }
}

impl<T> Versions<T> {
    fn find(&self, file: &OsStr) -> Result<usize, usize> {
        self.0.binary_search_by(|(name, _)| (**name).cmp(file))
    }

    /// Sets the version of `file`.
    pub(super) fn set(&mut self, file: &Arc<OsStr>, version: T) {
        match self.find(file) {
            Ok(at) => self.0[at].1 = version,
            Err(at) => {
                self.0.reserve_exact(1);
                self.0.insert(at, (Arc::clone(file), version));
            }
        }
    }

    /// Removes the version of `file`.
    pub(super) fn remove(&mut self, file: &OsStr) {
        if let Ok(at) = self.find(file) {
            self.0.remove(at);
        }
    }

    /// The version that counts, which is that of the last file; `None` if there is none.
    pub(super) fn winner(&self) -> Option<(&OsStr, &T)> {
        self.0.last().map(|(file, version)| (&**file, version))
    }

    /// Returns the other files, each with whether it was also in `before`.
    pub(super) fn losers(&self, before: &Versions<T>) -> impl Iterator<Item = (OsString, bool)> {
        let others = self.0.split_last().map_or(&[][..], |(_, others)| others);
        let others = others.iter();
        others.map(|(file, _)| (file.to_os_string(), before.find(file).is_ok()))
    }

    /// Returns whether more than one file has a version.
    pub(super) fn are_several(&self) -> bool {
        self.0.len() > 1
    }

    /// Returns whether no file has a version.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
