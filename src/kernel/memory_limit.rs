//! How much memory this process and what the kernel keeps for it may take: the limit of
//! its cgroup and of those above it.

use std::{fs, path::Path};

/// Where the hierarchies of cgroups are mounted.
const MOUNTED: &str = "/sys/fs/cgroup";

/// Version 1 has such a number where there is no limit: the largest one, in whole pages.
const NO_LIMIT: u64 = 1 << 60;

/// Returns the limit in bytes; `None`: there is none that can be seen.
pub fn of_this_process() -> Option<u64> {
    let cgroups = fs::read_to_string("/proc/self/cgroup").ok()?;
    lowest(&cgroups, |file| fs::read_to_string(file).ok())
}

/// Returns the lowest limit of the `cgroups` that `/proc/<pid>/cgroup` names
/// (`cgroups(7)`), and of those above them; `read` returns what is in a file.
fn lowest(cgroups: &str, read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let limits = cgroups.lines().flat_map(|line| {
        let (controllers, path) = named(line).unzip();
        let (root, file) = match controllers {
            Some("") => (MOUNTED.to_owned(), "memory.max"),
            Some(_) => (format!("{MOUNTED}/memory"), "memory.limit_in_bytes"),
            None => Default::default(),
        };
        // In a container the path may be one of the host, where the container's own
        // cgroup is mounted at the root.
        let above = path.map(Path::new).into_iter().flat_map(Path::ancestors);
        let inside = above.map(|path| path.strip_prefix("/").unwrap_or(path));
        let files = inside.map(|path| Path::new(&root).join(path).join(file));
        let limits = files.filter_map(|file| read(&file)?.trim().parse::<u64>().ok());
        limits.collect::<Vec<_>>()
    });
    limits.filter(|limit| *limit < NO_LIMIT).min()
}

/// Returns the controllers and the path of a line, if it has the memory controller or
/// is that of version 2, whose controllers are not named.
fn named(line: &str) -> Option<(&str, &str)> {
    let (_number, rest) = line.split_once(':')?;
    let (controllers, path) = rest.split_once(':')?;
    let memory = controllers.split(',').any(|name| name == "memory");
    (memory || controllers.is_empty()).then_some((controllers, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(cgroups: &str, files: &[(&str, &str)]) -> Option<u64> {
        lowest(cgroups, |file| {
            let found = files.iter().find(|(name, _)| Path::new(name) == file);
            found.map(|(_, text)| format!("{text}\n"))
        })
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
}
