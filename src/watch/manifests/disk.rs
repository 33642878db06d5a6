//! Scans the folder itself: lists its files, and reads new content.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fs::{File, Metadata, OpenOptions},
    io::{self, Read},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
};

use super::{folder::Found, path::ManifestPath};

/// Maximum size of a file in bytes: room for some 50,000 Services, and little enough that a stray
/// image does not exhaust the node's memory.
const LARGEST_FILE: u64 = 64 << 20;

/// Identity and age of a file's content; equal stamps mean equal content unless
/// a file is written twice within the clock's resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// Stamps of the files as they were last read.
pub(super) type Stamps = BTreeMap<OsString, Stamp>;

/// The result of a scan of the folder.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// Files that are new, changed or gone since the last scan.
    pub(super) found: BTreeMap<OsString, Found>,
    /// Stamps of all files.
    pub(super) stamps: Stamps,
    /// Files that are being written and were not read.
    pub(super) being_written: BTreeSet<OsString>,
    /// Files that changed while they were read.
    pub(super) changed_while_read: BTreeSet<OsString>,
}

/// The files to read.
#[derive(Clone, Debug, Default)]
pub(super) struct Selection {
    /// Stamps of the files that were in the folder at the last scan.
    pub(super) stamps: Stamps,
    /// Files to read even if their stamp is the same.
    pub(super) dirty: BTreeSet<OsString>,
    /// Files that are being written: they are not read.
    pub(super) being_written: BTreeSet<OsString>,
}

/// Lists the folder and reads files that may have changed.
///
/// # Errors
/// When the folder cannot be listed, or lacks the only relevant file; nothing is then known about
/// its files.
pub(super) fn scan(path: &ManifestPath, selection: Selection) -> io::Result<Scan> {
    let dir = &path.dir;
    let mut scan = Scan::default();
    let mut listed = BTreeSet::new();
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name();
        if path.has(&name) {
            listed.insert(name);
        }
    }
    if path.file.is_some() && listed.is_empty() {
        return Err(io::ErrorKind::NotFound.into());
    }
    for name in listed {
        let last = selection.stamps.get(&name);
        if selection.being_written.contains(&name) {
            scan.stamps.extend(last.map(|stamp| (name.clone(), *stamp)));
            scan.being_written.insert(name);
            continue;
        }
        let path = dir.join(&name);
        let stamp = match std::fs::metadata(&path) {
            Ok(metadata) if metadata.is_dir() => continue,
            Ok(metadata) => Some(Stamp::of(&metadata)),
            // A dangling link, or a file that is just being removed.
            Err(error) if error.kind() == io::ErrorKind::NotFound && !path.is_symlink() => continue,
            Err(_) => None,
        };
        if stamp.is_some() && stamp.as_ref() == last && !selection.dirty.contains(&name) {
            scan.stamps.extend(stamp.map(|stamp| (name, stamp)));
            continue;
        }
        let found = match read(&path) {
            Ok((text, read_stamp)) => {
                if Some(read_stamp) != stamp {
                    scan.changed_while_read.insert(name.clone());
                }
                scan.stamps.insert(name.clone(), read_stamp);
                Found::Text(text)
            }
            Err(reason) => Found::Unreadable(reason),
        };
        scan.found.insert(name, found);
    }
    for name in selection.stamps.into_keys() {
        if !scan.stamps.contains_key(&name) {
            scan.found.entry(name).or_insert(Found::Gone);
        }
    }
    Ok(scan)
}

/// Returns a file's text, with its stamp after reading.
fn read(path: &Path) -> Result<(String, Stamp), String> {
    let explain = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => "a link to a file that does not exist".to_owned(),
        _ => format!("cannot be read: {error}"),
    };
    // Without it, opening a pipe that has no writer would block.
    let mut file = OpenOptions::new()
        .read(true)
        .custom_flags(nix::libc::O_NONBLOCK)
        .open(path)
        .map_err(explain)?;
    if !file.metadata().map_err(explain)?.is_file() {
        return Err("not a regular file".to_owned());
    }
    let bytes = read_bytes(&mut file).map_err(explain)?;
    if bytes.len() as u64 > LARGEST_FILE {
        let limit = LARGEST_FILE >> 20;
        return Err(format!(
            "larger than {limit} MiB; split it into several files"
        ));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let good = error.as_bytes().get(..at).unwrap_or_default();
        let line = good.iter().filter(|byte| **byte == b'\n').count() + 1;
        format!("line {line} is not UTF-8 text")
    })?;
    let stamp = Stamp::of(&file.metadata().map_err(explain)?);
    Ok((text, stamp))
}

fn read_bytes(file: &mut File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(LARGEST_FILE + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

impl Stamp {
    fn of(metadata: &Metadata) -> Stamp {
        Stamp {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}
