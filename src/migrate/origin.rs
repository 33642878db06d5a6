//! Reads kube-proxy's configuration, from the running process or from a file.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs,
    io::{self, Read},
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

use nix::unistd::geteuid;
use serde::Deserialize;

use crate::{
    cli::{self, Settings, Stop},
    config::{ModeName, decode},
    listing::all_of,
};

/// The name of the program and of its ConfigMap.
const KUBE_PROXY: &str = "kube-proxy";
/// The name of this program's file; in images `kube-proxy` is a link to it.
const TRIPOD: &str = "tripod";
/// Keys of the configuration in the data of a ConfigMap, as kubeadm and EKS name them.
const KEYS: [&str; 2] = ["config.conf", "config"];

/// kube-proxy's configuration, with its origin and Tripod's interpretation.
#[derive(Clone, Debug)]
pub struct Given {
    /// A description of its origin.
    pub origin: String,
    /// Tripod's settings for it.
    pub settings: Settings,
    /// The mode that it names; empty if it names none.
    pub mode: String,
    /// Fields of the file that kube-proxy 1.36 does not know: one line for each,
    /// beginning with the field's path.
    pub ignored: Vec<String>,
}

impl Given {
    /// The mode that kube-proxy runs with it: iptables if none is named (`getProxyMode` of
    /// `cmd/kube-proxy/app/server_linux.go`).
    pub fn kube_proxy_mode(&self) -> ModeName {
        ModeName::named(&self.mode).unwrap_or(ModeName::Iptables)
    }

    fn new(origin: String, settings: Settings) -> Given {
        let file = settings.file.as_ref();
        let decoded = file.and_then(|file| decode::decode(&file.text).ok());
        let (mode, ignored) = match decoded {
            Some(decoded) => (decoded.configuration.mode, decoded.ignored),
            None => {
                let flags = settings.flags.iter();
                let mut modes = flags.filter(|(name, _)| *name == "proxy-mode");
                let mode = modes.next().map(|(_, mode)| mode.clone());
                (mode.unwrap_or_default(), Vec::new())
            }
        };
        Given {
            origin,
            settings,
            mode,
            ignored,
        }
    }
}

/// Reads the configuration from the file `config`, a configuration or a manifest with the ConfigMap
/// that holds one, or from standard input (`-`); without it, that of the process `pid`, or of the one
/// that runs in this network namespace.
///
/// # Errors
/// When there is none, it cannot be read, or Tripod refuses it; the error is readable.
pub fn read(config: Option<&str>, pid: Option<u32>) -> Result<Given, String> {
    let proc = Path::new("/proc");
    match (config, pid) {
        (Some("-"), _) => {
            let mut text = String::new();
            let read = io::stdin().read_to_string(&mut text);
            read.map_err(|e| format!("cannot read standard input: {e}"))?;
            of_text(&text, "standard input".to_owned())
        }
        (Some(path), _) => {
            let read = fs::read_to_string(path);
            of_text(
                &read.map_err(|e| format!("cannot read {path}: {e}"))?,
                path.to_owned(),
            )
        }
        (None, Some(pid)) if is_tripod(proc, &pid.to_string()) => Err(not_kube_proxy(&[pid])),
        (None, Some(pid)) => of_process(proc, pid),
        (None, None) => of_process(proc, running(proc)?),
    }
}

/// Finds the PID of the kube-proxy that runs in this network namespace: those in others, such as
/// those of clusters in containers, have rules of their own.
fn running(proc: &Path) -> Result<u32, String> {
    let namespace = |process: &str| fs::read_link(proc.join(process).join("ns/net")).ok();
    let here = namespace("self");
    let listed = fs::read_dir(proc).map_err(|e| format!("cannot list processes: {e}"))?;
    let names = listed.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let (mut found, mut of_tripod) = (Vec::new(), Vec::new());
    for process in names.filter(|process| namespace(process) == here) {
        let Ok(pid) = process.parse::<u32>() else {
            continue;
        };
        // Any user can give a process this name, and arguments that name files for root to read.
        if !is_of_root(proc, &process) {
            continue;
        }
        let words = arguments(proc, &process).unwrap_or_default();
        let program = words.first().map(PathBuf::from).unwrap_or_default();
        let is_called_so = program.file_name().is_some_and(|name| name == KUBE_PROXY);
        // The name does not matter: in Tripod's images a link is named kube-proxy.
        if is_tripod(proc, &process) {
            let is_proxy = words.get(1).is_none_or(|word| {
                let word = word.as_encoded_bytes();
                word.is_empty() || word.starts_with(b"-")
            });
            of_tripod.extend(is_proxy.then_some(pid));
        } else if is_called_so {
            found.push(pid);
        }
    }
    found.sort_unstable();
    of_tripod.sort_unstable();
    match found.as_slice() {
        [pid] => Ok(*pid),
        [] if !of_tripod.is_empty() => Err(not_kube_proxy(&of_tripod)),
        [] => Err(
            "no process called kube-proxy runs in this network namespace: give its configuration \
             with --config, as a file or as the manifest of its ConfigMap. k3s runs kube-proxy \
             within its own process, whose flags --kube-proxy-arg can be put into such a file"
                .to_owned(),
        ),
        several => {
            let pids = all_of(several);
            Err(format!(
                "several processes are called kube-proxy: choose one with --pid: {pids}"
            ))
        }
    }
}

/// Returns whether a process belongs to root or to this user, who also started it: if a program
/// gets the rights of root from its file, its caller chose the name and arguments.
fn is_of_root(proc: &Path, process: &str) -> bool {
    // The kernel escapes line breaks in the program's name, which anyone can choose.
    let status = fs::read_to_string(proc.join(process).join("status")).unwrap_or_default();
    let mut lines = status.lines();
    let users = lines.find_map(|line| line.strip_prefix("Uid:"));
    let own = geteuid().as_raw();
    users.is_some_and(|users| {
        let mut users = users.split_whitespace().map(str::parse);
        users.all(|uid| uid == Ok(0) || uid == Ok(own))
    })
}

/// Returns whether a process runs this program, or another version of it.
fn is_tripod(proc: &Path, process: &str) -> bool {
    let Ok(program) = fs::read_link(proc.join(process).join("exe")) else {
        return false;
    };
    // The kernel appends this after an upgrade (`d_path` of fs/d_path.c).
    let path = program.to_string_lossy();
    let path = path.strip_suffix(" (deleted)").unwrap_or(&path);
    Path::new(path)
        .file_name()
        .is_some_and(|name| name == TRIPOD)
}

/// Explains why processes of Tripod are not read.
fn not_kube_proxy(pids: &[u32]) -> String {
    let pids = all_of(pids);
    format!(
        "the proxy that runs here is Tripod (process {pids}), not kube-proxy: give kube-proxy's \
         ConfigMap with --config, as in kubectl -n kube-system get configmap kube-proxy -o yaml | \
         tripod migrate --check --config=-"
    )
}

fn arguments(proc: &Path, process: &str) -> io::Result<Vec<OsString>> {
    let text = fs::read(proc.join(process).join("cmdline"))?;
    let words = text.strip_suffix(&[0]).unwrap_or(&text).split(|b| *b == 0);
    Ok(words
        .map(|word| OsString::from_vec(word.to_vec()))
        .collect())
}

/// Reads the command line of a process, and its files as the process sees them.
fn of_process(proc: &Path, pid: u32) -> Result<Given, String> {
    let process = pid.to_string();
    let words = arguments(proc, &process);
    let words = words.map_err(|e| format!("cannot read the command line of process {pid}: {e}"))?;
    let root = proc.join(&process).join("root");
    let folder = fs::read_link(proc.join(&process).join("cwd")).unwrap_or_else(|_| "/".into());
    let seen = |path: &Path| {
        let path = folder.join(path);
        fs::read_to_string(root.join(path.strip_prefix("/").unwrap_or(&path)))
    };
    let settings = cli::read(words, seen);
    let settings = settings.map_err(|stop| refused(&stop, &format!("process {pid}")))?;
    let origin = match &settings.file {
        Some(file) => format!("process {pid}, --config {}", file.path.display()),
        None => format!("process {pid}, its flags"),
    };
    Ok(Given::new(origin, settings))
}

/// Reads the text of a configuration file, or of a ConfigMap that holds one.
fn of_text(text: &str, origin: String) -> Result<Given, String> {
    // A configuration is read more leniently than a manifest, as by kube-proxy: fields may be given
    // twice, and other documents may follow.
    let (text, origin) = match decode::decode(text) {
        Ok(_) => (text.to_owned(), origin),
        Err(_) => of_manifest(text, origin)?,
    };
    let words = [KUBE_PROXY, "--config", &origin].map(OsString::from);
    let settings = cli::read(words, |_| Ok(text.clone()));
    let settings = settings.map_err(|stop| refused(&stop, &origin))?;
    Ok(Given::new(origin, settings))
}

/// Returns the configuration in a manifest, or the manifest itself if it is one, with its origin.
fn of_manifest(text: &str, origin: String) -> Result<(String, String), String> {
    let document: Document = serde_saphyr::from_str(text)
        .map_err(|e| format!("{origin} is neither YAML nor JSON of one document: {e}"))?;
    if document.kind == decode::KIND {
        return Ok((text.to_owned(), origin));
    }
    let (key, text) = held(document).ok_or_else(|| {
        format!(
            "{origin} holds neither a {} nor a ConfigMap with one: try kubectl -n kube-system get \
             configmap kube-proxy -o yaml",
            decode::KIND
        )
    })?;
    Ok((text, format!("{origin}, {key} of its ConfigMap")))
}

fn refused(stop: &Stop, origin: &str) -> String {
    match stop {
        Stop::Answer(_) => format!("{origin} asks for help or a version, not for a proxy"),
        Stop::Refusal(why) => {
            let why = why.strip_prefix("error: ").unwrap_or(why);
            format!("Tripod does not accept the configuration of {origin}: {why}")
        }
    }
}

/// The parts of a manifest that are read.
#[derive(Debug, Default, Deserialize)]
struct Document {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    data: Option<BTreeMap<String, String>>,
    /// The objects of a List.
    #[serde(default)]
    items: Vec<Document>,
}

/// Returns the configuration in a ConfigMap of `document`, with its origin.
fn held(document: Document) -> Option<(String, String)> {
    let is_one = |text: &String| decode::decode(text).is_ok();
    let mut data = document.data.filter(|_| document.kind == "ConfigMap");
    if let Some(data) = &mut data {
        let usual = KEYS.into_iter().find(|key| data.contains_key(*key));
        let key = match usual {
            Some(key) => Some(key.to_owned()),
            None => data
                .iter()
                .find(|(_, text)| is_one(text))
                .map(|(key, _)| key.clone()),
        };
        if let Some(found) = key.and_then(|key| data.remove_entry(&key)) {
            return Some(found);
        }
    }
    document.items.into_iter().find_map(held)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a folder that looks like /proc with one process.
    fn processes(command: &[&str], root: &[(&str, &str)]) -> PathBuf {
        let name = format!("tripod-migrate-{}-{}", std::process::id(), command.len());
        let proc = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&proc);
        let process = proc.join("42");
        for (path, text) in root {
            let path = process.join("root").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        for process in ["42", "self"] {
            let namespaces = proc.join(process).join("ns");
            fs::create_dir_all(&namespaces).unwrap();
            std::os::unix::fs::symlink("net:[1]", namespaces.join("net")).unwrap();
        }
        fs::write(process.join("cmdline"), command.join("\0") + "\0").unwrap();
        of_users(&proc, [0; 4]);
        proc
    }

    fn of_users(proc: &Path, users: [u32; 4]) {
        let [real, effective, saved, files] = users;
        let status = format!("Name:\ta\\nUid:\nUid:\t{real}\t{effective}\t{saved}\t{files}\n");
        fs::write(proc.join("42/status"), status).unwrap();
    }

    #[test]
    fn a_process_that_another_user_started_is_not_read() {
        let proc = processes(&["kube-proxy", "--config=/etc/shadow"], &[]);
        assert_eq!(running(&proc), Ok(42));
        let other = geteuid().as_raw().max(1) + 1;
        for users in [[other; 4], [other, 0, 0, 0]] {
            of_users(&proc, users);
            let why = running(&proc).unwrap_err();
            assert!(why.contains("no process called kube-proxy"), "{why}");
        }
        fs::remove_dir_all(proc).unwrap();
    }

    #[test]
    fn a_process_is_read_as_it_sees_its_files() {
        let config = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\n\
                      kind: KubeProxyConfiguration\nmode: nftables\n";
        let command = [
            "/usr/local/bin/kube-proxy",
            "--config=/var/lib/kube-proxy/config.conf",
            "--hostname-override=node-1",
        ];
        let proc = processes(&command, &[("var/lib/kube-proxy/config.conf", config)]);
        let pid = running(&proc).unwrap();
        let given = of_process(&proc, pid).unwrap();
        assert_eq!(
            given.origin,
            "process 42, --config /var/lib/kube-proxy/config.conf"
        );
        assert_eq!(given.kube_proxy_mode(), ModeName::Nftables);
        assert_eq!(given.settings.configuration.hostname_override, "node-1");
        fs::remove_dir_all(proc).unwrap();
    }

    /// As RKE2 starts it, with an empty argument of the kind that templates leave behind.
    #[test]
    fn flags_alone_are_read() {
        let command = [
            "kube-proxy",
            "--cluster-cidr=10.42.0.0/16",
            "--conntrack-max-per-core=0",
            "--conntrack-tcp-timeout-close-wait=0s",
            "--conntrack-tcp-timeout-established=0s",
            "--healthz-bind-address=127.0.0.1",
            "--hostname-override=server-1",
            "--kubeconfig=/var/lib/rancher/rke2/agent/kubeproxy.kubeconfig",
            "--proxy-mode=ipvs",
            "--ipvs-scheduler=lc",
            "",
        ];
        let proc = processes(&command, &[]);
        let given = of_process(&proc, 42).unwrap();
        assert_eq!(given.origin, "process 42, its flags");
        assert_eq!(given.kube_proxy_mode(), ModeName::Ipvs);
        assert_eq!(given.settings.configuration.ipvs.scheduler, "lc");
        fs::remove_dir_all(proc).unwrap();
    }

    /// In the image a link named kube-proxy starts Tripod.
    #[test]
    fn tripod_is_not_taken_for_kube_proxy() {
        let kube_proxy = ["/usr/local/bin/kube-proxy", "--config=/c", "--v=2", "a"];
        let own = ["tripod", "--proxy-mode=ipvs", "--v=1", "--v=2", "--v=3"];
        let asking = ["tripod", "services", "-w", "-o", "wide", "default"];
        for (command, exe, expected) in [
            (
                &kube_proxy[..],
                "/usr/local/bin/tripod",
                "is Tripod (process 42)",
            ),
            (&own, "/usr/sbin/tripod (deleted)", "is Tripod (process 42)"),
            (
                &asking,
                "/usr/sbin/tripod",
                "no process called kube-proxy runs",
            ),
        ] {
            let proc = processes(command, &[("a", "")]);
            std::os::unix::fs::symlink(exe, proc.join("42/exe")).unwrap();
            let why = running(&proc).unwrap_err();
            assert!(why.contains(expected), "{command:?}: {why}");
            fs::remove_dir_all(proc).unwrap();
        }
        let proc = processes(&kube_proxy, &[("a", "")]);
        std::os::unix::fs::symlink("/usr/local/bin/kube-proxy", proc.join("42/exe")).unwrap();
        assert_eq!(running(&proc), Ok(42));
        fs::remove_dir_all(proc).unwrap();
    }

    /// kube-proxy accepts it, and so does Tripod when it serves.
    #[test]
    fn a_file_with_fields_given_twice_and_more_documents_is_read() {
        let text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\n\
                    kind: KubeProxyConfiguration\nmode: ipvs\nmode: nftables\n---\nkind: Other\n";
        let given = of_text(text, "it".to_owned()).unwrap();
        assert_eq!(given.origin, "it");
        assert_eq!(given.kube_proxy_mode(), ModeName::Nftables);
        let json = r#"{"apiVersion": "v1", "kind": "ConfigMap", "data": {"config.conf": "X"}}"#;
        let text = text.replace('\n', "\\n");
        let given = of_text(&json.replace('X', &text), "it".to_owned()).unwrap();
        assert_eq!(given.origin, "it, config.conf of its ConfigMap");
        assert_eq!(given.kube_proxy_mode(), ModeName::Nftables);
    }

    #[test]
    fn what_is_no_configuration_is_named() {
        for (text, expected) in [
            ("kind: Secret", "holds neither"),
            ("a: [", "neither YAML nor JSON"),
            ("kind: ConfigMap\ndata: {x: y}", "holds neither"),
            (
                "kind: KubeProxyConfiguration\napiVersion: x/v1",
                "its apiVersion is",
            ),
            (
                "kind: KubeProxyConfiguration\napiVersion: kubeproxy.config.k8s.io/v1alpha1\n\
                 mode: ipsv",
                "invalid value \"ipsv\"",
            ),
        ] {
            let error = of_text(text, "it".to_owned()).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let nobody = processes(&["kubelet"], &[]);
        assert!(running(&nobody).unwrap_err().contains("--config"));
        fs::remove_dir_all(nobody).unwrap();
    }
}
