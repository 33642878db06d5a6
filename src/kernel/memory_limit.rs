//! The memory that this process, and the kernel on its behalf, may use: the limit of its cgroup and
//! of those above it.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

/// Where the hierarchies of cgroups are mounted.
const MOUNTED: &str = "/sys/fs/cgroup";

/// Version 1 writes a number like this where there is no limit: the largest one, in whole pages.
const NO_LIMIT: u64 = 1 << 60;

/// A limit of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// Number of bytes that may be in use.
    pub bytes: u64,
    /// The folder of the cgroup with the limit.
    folder: PathBuf,
    version: Version,
}

/// Version of the memory controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    /// Buffers of TCP sockets have a separate limit.
    One,
    /// Buffers of sockets count as memory of the process.
    Two,
}

/// Returns the lowest limit; `None` if none is visible.
pub fn of_this_process() -> Option<MemoryLimit> {
    let cgroups = fs::read_to_string("/proc/self/cgroup").ok()?;
    lowest(&cgroups, |file| fs::read_to_string(file).ok())
}

/// Returns the lowest limit of the `cgroups` that `/proc/<pid>/cgroup` names (`cgroups(7)`), and of
/// those above them; `read` returns the content of a file.
fn lowest(cgroups: &str, read: impl Fn(&Path) -> Option<String>) -> Option<MemoryLimit> {
    let limits = cgroups.lines().flat_map(|line| {
        let (controllers, path) = named(line).unzip();
        let (root, file, version) = match controllers {
            Some("") => (MOUNTED.to_owned(), "memory.max", Version::Two),
            _ => (
                format!("{MOUNTED}/memory"),
                "memory.limit_in_bytes",
                Version::One,
            ),
        };
        // In a container the path may be one of the host, where the container's own
        // cgroup is mounted at the root.
        let above = path.map(Path::new).into_iter().flat_map(Path::ancestors);
        let inside = above.map(|path| path.strip_prefix("/").unwrap_or(path));
        let limits = inside.filter_map(|path| {
            let folder = Path::new(&root).join(path);
            let bytes = read(&folder.join(file))?.trim().parse().ok()?;
            Some(MemoryLimit {
                bytes,
                folder,
                version,
            })
        });
        limits.collect::<Vec<_>>()
    });
    let limits = limits.filter(|limit| limit.bytes < NO_LIMIT);
    limits.min_by_key(|limit| limit.bytes)
}

/// Returns the controllers and the path of a line, if it has the memory controller or
/// is that of version 2, whose controllers are not named.
fn named(line: &str) -> Option<(&str, &str)> {
    let (_number, rest) = line.split_once(':')?;
    let (controllers, path) = rest.split_once(':')?;
    let memory = controllers.split(',').any(|name| name == "memory");
    (memory || controllers.is_empty()).then_some((controllers, path))
}

/// How much of the limit is in use, with the buffers of sockets.
#[derive(Debug)]
pub struct Usage {
    current: File,
    stat: File,
}

impl Usage {
    /// Opens the usage of the cgroup with the `limit`; `None` if it does not include buffers of
    /// sockets, or cannot be read.
    pub fn of(limit: &MemoryLimit) -> Option<Usage> {
        let open = |file| File::open(limit.folder.join(file)).ok();
        match limit.version {
            Version::One => None,
            Version::Two => Some(Usage {
                current: open("memory.current")?,
                stat: open("memory.stat")?,
            }),
        }
    }

    /// Number of bytes in use, without pages of files, which the kernel reclaims when it needs
    /// them.
    ///
    /// # Errors
    /// When the kernel's files cannot be read or parsed.
    pub fn bytes(&self) -> io::Result<u64> {
        let current = text(&self.current)?;
        let stat = text(&self.stat)?;
        let file = stat.lines().find_map(|line| line.strip_prefix("file "));
        let number = |text: &str| text.trim().parse::<u64>().map_err(io::Error::other);
        let pages = file.map_or(Ok(0), number)?;
        Ok(number(&current)?.saturating_sub(pages))
    }
}

/// Reads the present text of a file; the first page is enough.
fn text(file: &File) -> io::Result<String> {
    let mut buffer = [0; 4096];
    let length = file.read_at(&mut buffer, 0)?;
    Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(cgroups: &str, files: &[(&str, &str)]) -> Option<u64> {
        let limit = lowest(cgroups, |file| {
            let found = files.iter().find(|(name, _)| Path::new(name) == file);
            found.map(|(_, text)| format!("{text}\n"))
        });
        limit.map(|limit| limit.bytes)
    }

    #[test]
    fn the_lowest_limit_of_the_cgroup_and_those_above_it_counts() {
        let files = [
            ("/sys/fs/cgroup/pods/memory.max", "1000"),
            ("/sys/fs/cgroup/pods/a/memory.max", "max"),
            ("/sys/fs/cgroup/memory/pods/b/memory.limit_in_bytes", "500"),
            (
                "/sys/fs/cgroup/memory/memory.limit_in_bytes",
                "9223372036854771712",
            ),
        ];
        assert_eq!(limit("0::/pods/a\n", &files), Some(1000));
        assert_eq!(limit("0::/other\n", &files), None);
        assert_eq!(limit("5:cpu:/pods/b\n", &files), None);
        assert_eq!(limit("5:cpu,memory:/pods/b\n0::/\n", &files), Some(500));
        assert_eq!(limit("4:memory:/\n", &files), None);
        assert_eq!(limit("nonsense\n", &files), None);
    }

    #[test]
    fn a_container_sees_its_own_cgroup_at_the_root() {
        let files = [("/sys/fs/cgroup/memory/memory.limit_in_bytes", "700")];
        assert_eq!(limit("4:memory:/kubepods/pod1/c1\n", &files), Some(700));
    }

    #[test]
    fn pages_of_files_are_not_in_use() {
        let folder = std::env::temp_dir().join(format!("tripod-usage-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("memory.current"), "5000\n").unwrap();
        fs::write(
            folder.join("memory.stat"),
            "anon 700\nfile 3000\nsock 1000\n",
        )
        .unwrap();
        let limit = |version| MemoryLimit {
            bytes: 6000,
            folder: folder.clone(),
            version,
        };
        let usage = Usage::of(&limit(Version::Two)).unwrap();
        assert_eq!(usage.bytes().unwrap(), 2000);
        fs::write(folder.join("memory.current"), "5500\n").unwrap();
        assert_eq!(usage.bytes().unwrap(), 2500);
        assert!(Usage::of(&limit(Version::One)).is_none());
        fs::remove_dir_all(&folder).unwrap();
    }
}
