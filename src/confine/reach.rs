//! Limits the files that this process and the programs that it starts can reach, by Landlock
//! (`landlock(7)`, `Documentation/userspace-api/landlock.rst`): an attacker who controls the
//! process can neither read secrets of the node and of its pods nor write files that others run.
//!
//! A rule applies to a file or folder as it is now, not to its name. So a file that is replaced by
//! another one of the same name, as the kubelet replaces files mounted in a pod, is reached through
//! its folder.

use std::{
    collections::BTreeSet,
    env, fs, io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use landlock::{
    ABI, Access, AccessFs, BitFlags, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreated,
    RulesetCreatedAttr, RulesetError, RulesetStatus,
};

use super::Files;

/// The version of Landlock that is used; an older kernel applies as much of it as it has. Later
/// versions limit unix sockets by path, through which other programs of the node are reached.
const VERSION: ABI = ABI::V5;

/// Programs, and the files that they load and read when they start.
const PROGRAMS: &[&str] = &[
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32",
];

/// The files in `/etc` that the C library and the programs of netfilter read: neither passwords nor
/// files of Kubernetes.
const SETTINGS: &[&str] = &[
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/crypto-policies",
    "/etc/ethertypes",
    "/etc/gai.conf",
    "/etc/group",
    "/etc/host.conf",
    "/etc/hosts",
    "/etc/iproute2",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/ld.so.preload",
    "/etc/localtime",
    "/etc/modprobe.d",
    "/etc/netconfig",
    "/etc/nsswitch.conf",
    "/etc/passwd",
    "/etc/pki",
    "/etc/protocols",
    "/etc/resolv.conf",
    "/etc/services",
    "/etc/ssl",
    "/etc/xtables",
];

/// A link to a file that programs of others replace in its folder (systemd-resolved).
const RESOLVER: &str = "/etc/resolv.conf";

/// Where the state of the kernel is read.
const KERNEL: &[&str] = &["/proc", "/sys"];

/// Settings of the kernel that are written: its networking, and the size of conntrack's table.
const SET: &[&str] = &[
    "/proc/sys/net",
    "/sys/module/nf_conntrack/parameters/hashsize",
    "/dev/null",
];

/// Devices that are read.
const DEVICES: &[&str] = &["/dev/urandom", "/dev/random", "/dev/zero"];

/// Confines this thread, and the threads and programs that it starts, to the files that serving
/// needs and to `files`.
///
/// # Errors
/// When this kernel has no Landlock, or it is switched off; the error has the remedy.
pub(super) fn restrict(files: &Files<'_>) -> Result<(), String> {
    for lock in &files.written {
        make(lock).unwrap_or_else(|error| tracing::info!("{}: {error}", lock.display()));
    }
    let status = rules(files).and_then(RulesetCreated::restrict_self);
    let status = status.map_err(|error| format!("{error}; run another kernel"))?;
    match status.ruleset {
        // A refusal by the filter of a container runtime looks the same.
        RulesetStatus::NotEnforced => Err(
            "no Landlock here; run Linux 5.13 or later with landlock in the kernel's parameter \
             lsm=, use a seccomp profile that allows the calls landlock_create_ruleset, \
             landlock_add_rule and landlock_restrict_self"
                .to_owned(),
        ),
        RulesetStatus::PartiallyEnforced | RulesetStatus::FullyEnforced => Ok(()),
    }
}

/// Creates an empty file if there is none: later, no file can be created in its folder.
fn make(path: &Path) -> io::Result<()> {
    let mut open = fs::OpenOptions::new();
    open.append(true).create(true).mode(0o600);
    open.open(path).map(drop)
}

fn rules(files: &Files<'_>) -> Result<RulesetCreated, RulesetError> {
    let reads = AccessFs::ReadFile | AccessFs::ReadDir;
    let runs = reads | AccessFs::Execute;
    let writes = reads | AccessFs::WriteFile | AccessFs::Truncate;
    let sockets = AccessFs::MakeSock | AccessFs::RemoveFile | AccessFs::MakeDir;
    let mut rules = Ruleset::default()
        .handle_access(AccessFs::from_all(VERSION))?
        .create()?;
    let programs = PROGRAMS.iter().map(PathBuf::from);
    for folder in programs.chain(folders_of_programs()) {
        rules = allow(rules, &folder, runs)?;
    }
    for path in [SETTINGS, KERNEL, DEVICES].concat() {
        rules = allow(rules, Path::new(path), reads)?;
    }
    for path in read(files) {
        rules = allow(rules, &path, reads)?;
    }
    let written = files.written.iter().copied();
    for path in written.chain(SET.iter().map(Path::new)) {
        rules = allow(rules, path, writes)?;
    }
    for socket in &files.sockets {
        rules = allow(rules, existing_folder(socket), sockets)?;
    }
    Ok(rules)
}

/// Returns `PATH`'s folders.
fn folders_of_programs() -> Vec<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&path);
    // "." among them would allow running everything in the working folder.
    folders.filter(|folder| folder.is_absolute()).collect()
}

/// Returns the paths that may be read because the settings name them: folders themselves, and for
/// files the folders that they are in, both that of a link and that of its target.
fn read(files: &Files<'_>) -> BTreeSet<PathBuf> {
    let resolver = Path::new(RESOLVER);
    let named = files.read.iter().map(PathBuf::as_path);
    let mut all = BTreeSet::new();
    if let Ok(link) = fs::read_link(resolver) {
        all.insert(with_siblings(&Path::new("/etc").join(link)));
    }
    for path in named {
        all.insert(with_siblings(path));
        all.extend(fs::canonicalize(path).map(|path| with_siblings(&path)));
    }
    all
}

/// Returns `path` if it is a folder, else the folder that it is in. For a file in the root of the
/// file system, whose folder would allow everything, returns `path` alone.
fn with_siblings(path: &Path) -> PathBuf {
    let folder = match path.parent() {
        _ if path.is_dir() => path,
        Some(folder) if folder.as_os_str().is_empty() => Path::new("."),
        Some(folder) => folder,
        None => path,
    };
    let is_root = fs::canonicalize(folder).is_ok_and(|folder| folder == Path::new("/"));
    if is_root { path } else { folder }.to_owned()
}

/// Finds the folder of `path`, or the lowest existing one above it: the missing folders are
/// created.
fn existing_folder(path: &Path) -> &Path {
    let mut above = path.ancestors().skip(1);
    above.find(|folder| folder.is_dir()).unwrap_or(path)
}

/// Allows `access` to `path` and everything below it, if it exists.
fn allow(
    rules: RulesetCreated,
    path: &Path,
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, RulesetError> {
    let Ok(opened) = PathFd::new(path) else {
        return Ok(rules);
    };
    let access = if path.is_dir() {
        access
    } else {
        access & AccessFs::from_file(VERSION)
    };
    let rules = rules.add_rule(PathBeneath::new(&opened, access))?;
    // Below /proc a name refers to another inode, which has no rule, as soon as the kernel has
    // forgotten the name (`proc_sys_make_inode` in `fs/proc/proc_sysctl.c`): it does not forget the
    // name of an open file.
    if path.starts_with("/proc/") {
        std::mem::forget(opened);
    }
    Ok(rules)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use testing::skip;

    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let folder = env::temp_dir().join(format!("tripod-reach-{name}-{}", std::process::id()));
        fs::create_dir_all(folder.join("named")).expect("a folder");
        fs::create_dir_all(folder.join("other")).expect("a folder");
        for file in ["named/file", "named/beside", "other/file"] {
            fs::write(folder.join(file), file).expect("a file");
        }
        folder
    }

    /// Runs `body` in a thread that has confined itself; other threads are unchanged.
    fn confined(files: &Files<'_>, body: impl FnOnce() + Send) {
        thread::scope(|scope| {
            let confined = scope.spawn(|| restrict(files).map(|()| body()));
            if let Err(error) = confined.join().expect("a confined thread") {
                skip(format!("files cannot be restricted here: {error}"));
            }
        });
    }

    #[test]
    fn what_the_settings_name_is_reached_and_nothing_beside() {
        let folder = scratch("files");
        let at = |path: &str| folder.join(path);
        let (lock, socket) = (at("other/lock"), at("other/sockets/socket"));
        let files = Files {
            read: vec![at("named/file")],
            written: vec![&lock],
            sockets: vec![&socket],
        };
        confined(&files, || {
            let kind = |error: io::Error| error.kind();
            let refused = Err(io::ErrorKind::PermissionDenied);
            let read = |path: &Path| fs::read(path).map(drop).map_err(kind);
            // A file that replaces another one is also readable.
            assert_eq!(read(&at("named/beside")), Ok(()));
            assert_eq!(read(&at("other/file")), refused);
            assert_eq!(read(Path::new("/etc/shadow")), refused);
            assert_eq!(read(Path::new("/proc/self/status")), Ok(()));
            let write = |path: &Path| fs::write(path, "x").map_err(kind);
            assert_eq!(write(&lock), Ok(()));
            assert_eq!(write(&at("named/file")), refused);
            assert_eq!(write(&at("other/new")), refused);
            assert_eq!(write(Path::new("/proc/sys/kernel/core_pattern")), refused);
            let opened = crate::kernel::socket::unix::listen(&socket, socket2::Type::STREAM, 0o755);
            assert!(opened.is_ok(), "{opened:?}");
            let run = std::process::Command::new("true").status();
            assert!(run.is_ok_and(|status| status.success()));
        });
        assert!(fs::write(at("other/new"), "x").is_ok(), "other threads");
        fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn a_file_at_the_root_does_not_open_all() {
        assert_eq!(with_siblings(Path::new("/vmlinuz")), Path::new("/vmlinuz"));
        assert_eq!(with_siblings(Path::new("/proc/uptime")), Path::new("/proc"));
        assert_eq!(with_siblings(Path::new("/proc")), Path::new("/proc"));
        assert_eq!(with_siblings(Path::new("none")), Path::new("."));
        let socket = existing_folder(Path::new("/proc/none/here/socket"));
        assert_eq!(socket, Path::new("/proc"));
    }
}
