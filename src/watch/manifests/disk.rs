//! Looks at the folder itself: which files there are, and what is new in them.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
    fs::{File, Metadata, OpenOptions},
    io::{self, Read},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
};

use super::folder::Found;

/// Largest file that is read, in bytes: room for some 50,000 Services, and
/// little enough that a stray image does not take the node's memory.
const LARGEST_FILE: u64 = 64 << 20;

/// Identity and age of a file's content; equal stamps mean equal content
/// unless someone writes twice within the clock's grain.
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

/// What a look at the folder found.
#[derive(Debug, Default)]
pub(super) struct Look {
    /// Files that are new, changed or gone since the last look.
    pub(super) found: BTreeMap<OsString, Found>,
    /// Stamps of all files.
    pub(super) stamps: Stamps,
    /// Files that were left as they were.
    pub(super) busy: BTreeSet<OsString>,
    /// Files that changed while they were read.
    pub(super) unsettled: BTreeSet<OsString>,
}

/// Which files to read.
#[derive(Clone, Debug, Default)]
pub(super) struct Focus {
    /// Files that were in the folder at the last look.
    pub(super) stamps: Stamps,
    /// Files to read even if their stamp is the same.
    pub(super) touched: BTreeSet<OsString>,
    /// Files that someone is writing: they are left as they were.
    pub(super) busy: BTreeSet<OsString>,
}

/// Returns whether a file of that name is a manifest. Hidden files are not:
/// editors and ConfigMap volumes keep their own things in them.
pub(super) fn is_manifest(name: &OsStr) -> bool {
    let extension = Path::new(name).extension().and_then(OsStr::to_str);
    matches!(extension, Some("yaml" | "yml" | "json")) && !name.as_encoded_bytes().starts_with(b".")
}

/// Looks at the folder and reads what may have changed.
///
/// # Errors
/// The folder cannot be listed; nothing is known about its files then.
pub(super) fn look(dir: &Path, focus: Focus) -> io::Result<Look> {
    let mut look = Look::default();
    let mut listed = BTreeSet::new();
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name();
        if is_manifest(&name) {
            listed.insert(name);
        }
    }
    for name in listed {
        let last = focus.stamps.get(&name);
        if focus.busy.contains(&name) {
            look.stamps.extend(last.map(|stamp| (name.clone(), *stamp)));
            look.busy.insert(name);
            continue;
        }
        let path = dir.join(&name);
        let stamp = match std::fs::metadata(&path) {
            Ok(metadata) if metadata.is_dir() => continue,
            Ok(metadata) => Some(Stamp::of(&metadata)),
            // A link to nothing, or a file that is just being removed.
            Err(error) if error.kind() == io::ErrorKind::NotFound && !path.is_symlink() => continue,
            Err(_) => None,
        };
        if stamp.is_some() && stamp.as_ref() == last && !focus.touched.contains(&name) {
            look.stamps.extend(stamp.map(|stamp| (name, stamp)));
            continue;
        }
        let found = match read(&path) {
            Ok((text, read_stamp)) => {
                if Some(read_stamp) != stamp {
                    look.unsettled.insert(name.clone());
                }
                look.stamps.insert(name.clone(), read_stamp);
                Found::Text(text)
            }
            Err(reason) => Found::Unreadable(reason),
        };
        look.found.insert(name, found);
    }
    for name in focus.stamps.into_keys() {
        if !look.stamps.contains_key(&name) {
            look.found.entry(name).or_insert(Found::Gone);
        }
    }
    Ok(look)
}

/// Reads a file, with its stamp after reading.
fn read(path: &Path) -> Result<(String, Stamp), String> {
    let explain = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => "a link to a file that does not exist".to_owned(),
        _ => format!("cannot be read: {error}"),
    };
    // Not to hang on a pipe that nobody writes to.
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
