//! How far the process confines itself, depending on its job.

use std::path::Path;

use super::{probe::Chosen, programs::Programs, takeover};
use crate::{
    api_client::{credential_files, names_program},
    cli::{Job, Settings},
    config::ModeName,
    confine::{self, Confinement, Files, Serving, Task},
    kernel::{probe::Kernel, socket::unix},
    lifecycle,
    modes::userspace::{
        Rings,
        capture::{self, Method},
    },
};

/// The lock of the legacy iptables (`iptables(8)`).
const XTABLES_LOCK: &str = "/run/xtables.lock";

/// Confines the process at its start, while it has one thread, as far as its needs are known by
/// then.
pub fn confine(settings: &Settings) {
    let task = match settings.job {
        Job::Serve => Task::Start,
        Job::Hold(_) => Task::Hold,
        _ => return,
    };
    for refused in to(settings, task) {
        tracing::warn!("{refused}");
    }
}

/// Confines the process to what it needs to serve in the `chosen` mode. Existing threads keep their
/// rights: the threads that examined the kernel must have ended, and no lasting one may exist yet.
/// Returns whether programs may be started. Requested confinement that this kernel refuses is added
/// to `chosen.lost`.
pub(super) fn to_serve(settings: &Settings, chosen: &mut Chosen, rings: &Rings) -> Programs {
    let why = programs_for(settings, chosen.mode, &chosen.kernel);
    let serving = Serving {
        programs: why.is_some(),
        rings: !rings.is_empty(),
        watches_files: settings.own.manifests.is_some() || settings.file.is_some(),
    };
    chosen.lost.extend(to(settings, Task::Serve(serving)));
    if !settings.own.confinement.is_of_calls() {
        return Programs::default();
    }
    match why {
        Some(why) => {
            tracing::info!("programs may be started: {why}");
            Programs::default()
        }
        None => {
            tracing::info!("programs: none can be started from now on");
            Programs::forbidden()
        }
    }
}

/// Why a process that serves in `mode` may have to start programs; `None` if it starts none.
fn programs_for(settings: &Settings, mode: ModeName, kernel: &Kernel) -> Option<&'static str> {
    if writes_with_iptables(settings, mode, kernel) {
        return Some("the rules of this mode are written with iptables");
    }
    let kubeconfig = settings.effective.kubeconfig.as_deref();
    if settings.own.manifests.is_none() && names_program(kubeconfig) {
        return Some("the kubeconfig names a credential plugin");
    }
    takeover::rules_of_programs_may_be_there().then_some(
        "rules of another mode or of kube-proxy, which iptables wrote, may have to be removed",
    )
}

fn writes_with_iptables(settings: &Settings, mode: ModeName, kernel: &Kernel) -> bool {
    match mode {
        ModeName::Ipvs | ModeName::Iptables => true,
        ModeName::Nftables => false,
        ModeName::Userspace => {
            let own = &settings.own;
            let redirects = capture::choose(own.capture, kernel).is_ok_and(|choice| {
                let mut methods = choice.methods.iter();
                methods.any(|(_, method)| *method == Method::Redirect)
            });
            redirects || own.transparent
        }
    }
}

fn to(settings: &Settings, task: Task) -> Vec<String> {
    let confinement = match &settings.job {
        Job::Hold(hold) => hold.confinement,
        _ => settings.own.confinement,
    };
    if confinement == Confinement::Files && task != Task::Start {
        make_folders(&sockets(settings));
    }
    confine::confine(confinement, task, &files(settings))
}

/// Creates the folders of `sockets`. A socket without a folder of its own would require the right
/// to create and remove any socket in the folder above, which is `/run`.
fn make_folders(sockets: &[(&Path, u32)]) {
    for (socket, mode) in sockets {
        // An error is reported when the socket is opened.
        let _ = unix::make_folder(socket, *mode);
    }
}

/// The unix sockets on which the process listens, with the modes of their folders. A proxy does not
/// listen on the holder's socket: it only connects to it.
fn sockets(settings: &Settings) -> Vec<(&Path, u32)> {
    if let Job::Hold(hold) = &settings.job {
        return vec![(&hold.socket, unix::PRIVATE)];
    }
    let status = settings.own.status_socket.as_deref();
    let status = status.map(|path| (path, unix::READABLE));
    let successors = (Path::new(lifecycle::FIRST), unix::PRIVATE);
    status.into_iter().chain([successors]).collect()
}

fn files(settings: &Settings) -> Files<'_> {
    let sockets = sockets(settings).into_iter().map(|(path, _)| path);
    let sockets = sockets.collect();
    if let Job::Hold(_) = settings.job {
        return Files {
            sockets,
            ..Files::default()
        };
    }
    let own = &settings.own;
    let kubeconfig = settings.effective.kubeconfig.as_deref();
    let read = [
        own.manifests.as_deref(),
        kubeconfig,
        settings.file.as_ref().map(|file| file.path.as_path()),
        own.tls_cert_file.as_deref(),
        own.tls_private_key_file.as_deref(),
    ];
    let read = read.into_iter().flatten().map(Path::to_owned);
    Files {
        read: read.chain(credential_files(kubeconfig)).collect(),
        written: vec![Path::new(XTABLES_LOCK)],
        sockets,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use testing::{in_namespace, sh};

    use super::*;
    use crate::{cli, kernel::probe::Examination};

    fn settings(arguments: &[&str]) -> Settings {
        let words = ["tripod"].iter().chain(arguments);
        let read = cli::read(words.map(Into::into), |_| unreachable!("no file"));
        read.expect("good flags")
    }

    #[test]
    fn a_proxy_makes_no_socket_of_the_holder_and_the_holder_nothing_else() {
        let proxy = settings(&["--manifests=/nowhere"]);
        let default = Path::new(crate::hold::SOCKET);
        assert_eq!(proxy.own.holder_socket.as_deref(), Some(default));
        let of_proxy = files(&proxy);
        let expected: [&Path; 2] = [
            Path::new("/run/tripod/tripod.sock"),
            Path::new(lifecycle::FIRST),
        ];
        assert_eq!(of_proxy.sockets, expected);
        assert_eq!(of_proxy.written, [Path::new(XTABLES_LOCK)]);
        let holder = settings(&["hold"]);
        let of_holder = files(&holder);
        assert_eq!(of_holder.sockets, [default]);
        assert!(of_holder.written.is_empty() && of_holder.read.is_empty());
    }

    #[test]
    fn sockets_have_folders_of_their_own_before_files_are_out_of_reach() {
        let folder = std::env::temp_dir().join(format!("tripod-folders-{}", std::process::id()));
        let paths = ["run/status/socket", "run/status/inner/socket"].map(|path| folder.join(path));
        make_folders(&[(&paths[0], unix::READABLE), (&paths[1], unix::PRIVATE)]);
        let modes = paths.map(|path| {
            let folder = path.parent().expect("a folder").to_owned();
            let metadata = std::fs::metadata(folder).expect("it is there");
            metadata.permissions().mode() & 0o777
        });
        assert_eq!(modes, [0o755, 0o700]);
        std::fs::remove_dir_all(&folder).expect("removed");
    }

    /// Each mode with its settings and the node's state, and whether it may have to start programs.
    #[test]
    fn programs_are_started_by_modes_with_iptables_and_where_it_left_rules() {
        use ModeName::{Iptables, Ipvs, Nftables, Userspace};
        let folder = std::env::temp_dir().join(format!("tripod-plugin-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let kubeconfig = |name: &str, user: &str| {
            let path = folder.join(name);
            let users = format!("users: [{{name: a, user: {user}}}]");
            std::fs::write(&path, format!("apiVersion: v1\nkind: Config\n{users}\n")).expect(name);
            format!("--kubeconfig={}", path.display())
        };
        let plugin = "{exec: {apiVersion: client.authentication.k8s.io/v1, command: get}}";
        let (plugin, token) = (
            kubeconfig("plugin", plugin),
            kubeconfig("token", "{token: x}"),
        );
        let absent = format!("--kubeconfig={}", folder.join("absent").display());
        let (local, transparent) = ("--userspace-capture=local", "--userspace-transparent");
        let manifests = "--manifests=/nowhere";
        let (nothing, chains) = ("true", "iptables-nft -t nat -N KUBE-SERVICES");
        let cases: [(ModeName, Vec<&str>, &'static str, bool); 14] = [
            (Ipvs, vec![manifests], nothing, true),
            (Iptables, vec![manifests], nothing, true),
            (Userspace, vec![manifests], nothing, true),
            (Userspace, vec![manifests, local], nothing, false),
            (
                Userspace,
                vec![manifests, local, transparent],
                nothing,
                true,
            ),
            (Userspace, vec![manifests, local], chains, true),
            (Nftables, vec![manifests], nothing, false),
            (Nftables, vec![manifests], chains, true),
            (
                Nftables,
                vec![manifests],
                "ip6tables-legacy -w -t filter -L",
                true,
            ),
            (Nftables, vec![&token], nothing, false),
            (Nftables, vec![&plugin], nothing, true),
            (Nftables, vec![&plugin, manifests], nothing, false),
            // The content of the file is not known.
            (Nftables, vec![&absent], nothing, true),
            // The token of the pod's service account.
            (Nftables, vec![], nothing, false),
        ];
        let kernel = Kernel::examine(&Examination::default());
        for (mode, flags, script, expected) in cases {
            let settings = settings(&flags);
            let case = format!("{mode} {flags:?} {script}");
            let kernel = kernel.clone();
            in_namespace(move || {
                sh(script);
                let found = programs_for(&settings, mode, &kernel);
                assert_eq!(found.is_some(), expected, "{case}: {found:?}");
            });
        }
        std::fs::remove_dir_all(&folder).expect("removed");
    }
}
