//! The packages for nodes without a cluster: made by cargo-deb and rpmbuild from the binary
//! under test. That for Debian is unpacked, and run as its unit runs it.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
};

use serde_json::Value;
use tripod::cli::{self, Job};

use crate::{
    docs::{links, parts},
    lab::{Tripod, is_inside, is_installed, path_with_tools, run, skip, tripod_binary},
    modes::probe::node,
};

const MANIFEST: &str = env!("CARGO_MANIFEST_DIR");

/// Runs a program of the repository's folder and returns its output.
fn output(program: &str, arguments: &[&str]) -> String {
    let done = Command::new(program)
        .args(arguments)
        .current_dir(MANIFEST)
        // Variables of the test itself, which name another package's sources.
        .env_remove("RUSTC")
        .env("FAST", "yes")
        .env("PATH", path_with_tools())
        .output()
        .unwrap_or_else(|e| panic!("{program}: {e}"));
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{program} {arguments:?}: {errors}");
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// The unpacked package; `None` if it cannot be made here.
struct Package {
    file: PathBuf,
    root: PathBuf,
}

impl Package {
    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    fn read(&self, path: &str) -> String {
        let path = self.at(path);
        fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }

    /// The value of `name=` in the unit `tripod`.
    fn unit(&self, name: &str) -> String {
        self.unit_of("tripod", name)
    }

    fn unit_of(&self, unit: &str, name: &str) -> String {
        let unit = self.read(&format!("usr/lib/systemd/system/{unit}.service"));
        let mut lines = unit.lines();
        let found = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        found
            .unwrap_or_else(|| panic!("no {name} in {unit}"))
            .to_owned()
    }
}

fn package() -> Option<&'static Package> {
    static PACKAGE: OnceLock<Option<Package>> = OnceLock::new();
    let package = PACKAGE.get_or_init(|| {
        let needed = [
            "cargo-deb",
            "cargo-cyclonedx",
            "dpkg-deb",
            "dpkg",
            "rpmbuild",
        ];
        if !needed.iter().all(|program| is_installed(program)) {
            return None;
        }
        let root = Path::new(MANIFEST).join("target/package/root");
        let file = root.with_file_name("tripod.deb");
        if is_inside() {
            // It was made outside.
            return Some(Package { file, root });
        }
        let program = tripod_binary();
        let program = program.to_str().expect("a path");
        output("deploy/dist/package.sh", &[program]);
        let folder = root.parent().expect("a folder");
        let make = |script, kind, from: &str| {
            let made = folder.join(kind);
            let _ = fs::remove_dir_all(&made);
            fs::create_dir_all(&made).expect("a folder");
            let architecture = format!("{}={from}", std::env::consts::ARCH);
            output(script, &[made.to_str().expect("a path"), &architecture]);
            let made: Vec<_> = fs::read_dir(&made).expect("a folder").collect();
            let [made] = <[_; 1]>::try_from(made).expect("one package");
            let file = folder.join("tripod").with_extension(kind);
            fs::rename(made.expect("an entry").path(), file).expect("renaming");
        };
        let [file_name, root_name] = [&file, &root].map(|path| path.to_str().expect("a path"));
        make("deploy/dist/deb.sh", "deb", program);
        make("deploy/dist/rpm.sh", "rpm", file_name);
        output("dpkg", &["-x", file_name, root_name]);
        Some(Package { file, root })
    });
    if package.is_none() {
        skip(
            "cargo-deb, cargo-cyclonedx, dpkg and rpmbuild make the packages: make test-all INSTALL=yes installs them",
        );
    }
    package.as_ref()
}

#[test]
fn it_says_what_it_is_and_keeps_the_operators_files() {
    let Some(package) = package() else { return };
    let file = package.file.to_str().expect("a path");
    let control = output("dpkg-deb", &["-f", file]);
    for line in [
        "Package: tripod",
        "Section: net",
        "Recommends: iptables, kmod",
    ] {
        assert!(
            control.lines().any(|found| found == line),
            "{line}: {control}"
        );
    }
    // The program of a release is static.
    let needs = control
        .lines()
        .find_map(|line| line.strip_prefix("Depends:"));
    assert_eq!(needs.unwrap_or_default().trim(), "", "{control}");
    let kept = output("dpkg-deb", &["-I", file, "conffiles"]);
    let kept: Vec<&str> = kept.split_whitespace().collect();
    assert_eq!(
        kept,
        ["/etc/tripod/config.yaml", "/etc/tripod/manifests/README"]
    );
}

#[test]
fn pages_completion_and_licences_are_in_it() {
    let Some(package) = package() else { return };
    for command in ["", "-probe", "-status", "-migrate", "-render"] {
        let page = format!("usr/share/man/man8/tripod{command}.8.gz");
        assert!(package.at(&page).is_file(), "{page}");
    }
    for (path, part) in [
        ("bash-completion/completions/tripod", "--proxy-mode"),
        ("fish/vendor_completions.d/tripod.fish", "proxy-mode"),
        ("zsh/vendor-completions/_tripod", "--proxy-mode"),
        ("doc/tripod/copyright", "Apache-2.0"),
        ("doc/tripod/migrating.md", "tripod migrate --manifests"),
    ] {
        let text = package.read(&format!("usr/share/{path}"));
        assert!(text.contains(part), "{path}");
    }
    let parts = package.read("usr/share/doc/tripod/tripod.cdx.json");
    let parts: Value = serde_json::from_str(&parts).expect("JSON");
    assert_eq!(parts["bomFormat"], "CycloneDX");
    let parts = parts["components"].as_array().expect("a list");
    let named = |name| parts.iter().any(|part| part["name"] == name);
    assert!(named("tokio") && named("rustls"), "{parts:?}");
    for part in parts {
        assert!(part["licenses"].is_array(), "{part}");
    }
}

/// Pictures and link targets of the pages are included.
#[test]
fn pictures_and_links_of_the_pages_are_in_it() {
    let Some(package) = package() else { return };
    let folder = package.at("usr/share/doc/tripod");
    let (mut broken, mut pictures) = (Vec::new(), 0);
    for entry in fs::read_dir(&folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|kind| kind != "md") {
            continue;
        }
        let text = parts(&fs::read_to_string(&path).expect("a page")).text;
        for link in links(&text) {
            let (file, _) = link.split_once('#').unwrap_or((&link, ""));
            pictures += usize::from(file.ends_with(".svg"));
            if !link.contains("://") && !file.is_empty() && !folder.join(file).is_file() {
                broken.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
    assert!(pictures > 8, "{pictures} pictures");
}

#[test]
fn the_units_are_valid() {
    let Some(package) = package() else { return };
    if !is_installed("systemd-analyze") {
        return skip("systemd-analyze is not installed");
    }
    let program = package.at("usr/bin/tripod").display().to_string();
    let copies = ["tripod.service", "tripod-holder.service"].map(|name| {
        let unit = package.read(&format!("usr/lib/systemd/system/{name}"));
        let copy = package.root.with_file_name(name);
        fs::write(&copy, unit.replace("/usr/bin/tripod", &program)).expect("a copy");
        copy
    });
    let done = Command::new("systemd-analyze")
        .args(["verify", "--man=no"])
        .args(&copies)
        .output()
        .expect("systemd-analyze");
    let errors = String::from_utf8_lossy(&done.stderr);
    // It also complains about other units of the machine.
    let ours: Vec<&str> = errors
        .lines()
        .filter(|line| line.contains("tripod"))
        .collect();
    assert!(ours.is_empty(), "{errors}");
}

/// The program, the configuration and the capabilities are those of the unit.
#[test]
fn it_serves_with_the_capabilities_of_its_unit() {
    let Some(package) = package() else { return };
    let start = package.unit("ExecStart");
    let bounding = package.unit("CapabilityBoundingSet").to_lowercase();
    let bounding: Vec<String> = (bounding.split(' '))
        .map(|capability| format!("+{}", capability.trim_start_matches("cap_")))
        .collect();
    let words = start.split(' ').map(|word| match word.split_once('=') {
        Some((flag, path)) => format!("{flag}={}", package.at(&path[1..]).display()),
        None => package.at(&word[1..]).display().to_string(),
    });
    let words: Vec<String> = words.collect();
    run(|| {
        let node = node();
        let address = format!("addr add {}/32 dev lo", node.addresses[0]);
        node.ip(&["link set lo up", &address]);
        let mut command = node.command("setpriv");
        command
            .arg(format!("--bounding-set=-all,{}", bounding.join(",")))
            .args(["--no-new-privs", "--"])
            .args(&words)
            .args(["--hostname-override=node", "--status-socket="]);
        command.stdin(Stdio::null());
        let mut tripod = Tripod::start_on(&node, command);
        let log = tripod.log();
        assert!(!log.contains("WARN") || log.contains("mode"), "{log}");
        assert!(tripod.terminate().success());
    });
}

/// Both find each other, neither is started by the package, and the holder is not touched while
/// another package is installed.
#[test]
fn the_holder_is_where_the_unit_looks_for_it_and_outlives_an_upgrade() {
    let Some(package) = package() else { return };
    let read = |command: &str| {
        let words = command.split(' ').map(Into::into);
        cli::read(words, |_| Ok(String::new())).expect("it is taken")
    };
    let Job::Hold(at_holder) = read(&package.unit_of("tripod-holder", "ExecStart")).job else {
        panic!("not hold");
    };
    let at_proxy = read("tripod").own.holder_socket;
    assert_eq!(at_proxy.as_ref(), Some(&at_holder.socket));
    let folder = package.unit_of("tripod-holder", "RuntimeDirectory");
    assert_eq!(
        at_holder.socket.parent(),
        Some(&*Path::new("/run").join(folder))
    );
    assert_eq!(
        package.unit_of("tripod-holder", "CapabilityBoundingSet"),
        ""
    );
    let file = package.file.to_str().expect("a path");
    let lines = |script: &str, word: &str| {
        let text = output("dpkg-deb", &["-I", file, script]);
        let lines = text.lines().filter(|line| line.contains(word));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    // Restarted at the same time as the proxy, it would lose the sockets that it must keep.
    let acts = lines("postinst", "deb-systemd-invoke").join("\n");
    assert!(!acts.contains("tripod-holder"), "{acts}");
    // An upgrade calls prerm with another word than removal.
    let stops = lines("prerm", "deb-systemd-invoke stop").len();
    assert_eq!(lines("prerm", "[ \"$1\" = remove ]").len(), stops);
}

/// A `dpkg` without its database: runs the package's scripts with programs of systemd that
/// only record their calls.
struct Scripts {
    folder: PathBuf,
}

impl Scripts {
    fn unpack(package: &Package) -> Scripts {
        let folder = PathBuf::from("/run/scripts");
        let file = package.file.to_str().expect("a path");
        output("dpkg-deb", &["-e", file, "/run/scripts"]);
        // The scripts call it only if systemd is running (sd_booted(3)).
        fs::create_dir_all("/run/systemd/system").expect("a folder");
        let fakes = folder.join("bin");
        fs::create_dir_all(&fakes).expect("a folder");
        let record = "#!/bin/sh\necho \"${0##*/} $*\" >>/run/scripts/calls\n";
        for program in ["systemctl", "deb-systemd-helper", "deb-systemd-invoke"] {
            let path = fakes.join(program);
            fs::write(&path, record).expect("a script");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a mode");
        }
        Scripts { folder }
    }

    /// Returns the calls of a script that change something, in order.
    fn calls(&self, script: &str, arguments: &[&str]) -> Vec<String> {
        let record = self.folder.join("calls");
        fs::write(&record, "").expect("a file");
        let path = format!(
            "{}:/usr/sbin:/usr/bin:/sbin:/bin",
            self.folder.join("bin").display()
        );
        let mut command = Command::new(self.folder.join(script));
        let done = command.args(arguments).env("PATH", path).status();
        assert!(done.expect(script).success(), "{script} {arguments:?}");
        let calls = fs::read_to_string(record).expect("a file");
        let asks = |call: &&str| call.contains("debian-installed") || call.contains("was-enabled");
        let calls = calls.lines().filter(|call| !asks(call));
        calls.map(str::to_owned).collect()
    }
}

/// An installation starts nothing, an upgrade restarts only the proxy and does not touch the
/// holder, a removal stops both, and a purge leaves no state of systemd behind.
#[test]
fn its_scripts_start_restart_and_stop_what_they_should() {
    let Some(package) = package() else { return };
    run(|| {
        let scripts = Scripts::unpack(package);
        let invoked = |calls: &[String]| {
            let invoked = calls
                .iter()
                .filter_map(|call| call.strip_prefix("deb-systemd-invoke "));
            invoked.map(str::to_owned).collect::<Vec<_>>()
        };
        let nothing: [&str; 0] = [];
        let installed = scripts.calls("postinst", &["configure", ""]);
        assert_eq!(invoked(&installed), nothing, "{installed:?}");
        assert!(installed.contains(&"systemctl --system daemon-reload".to_owned()));

        let leaving = scripts.calls("prerm", &["upgrade", "0.2.0"]);
        assert_eq!(leaving, nothing);
        let upgraded = scripts.calls("postinst", &["configure", "0.0.9"]);
        assert_eq!(invoked(&upgraded), ["try-restart tripod.service"]);

        let mut stopped = invoked(&scripts.calls("prerm", &["remove"]));
        stopped.sort_unstable();
        assert_eq!(
            stopped,
            ["stop tripod-holder.service", "stop tripod.service"]
        );
        let purged = scripts.calls("postrm", &["purge"]);
        for unit in ["tripod", "tripod-holder"] {
            let call = format!("deb-systemd-helper purge {unit}.service");
            assert!(purged.contains(&call), "{purged:?}");
        }
    });
}

/// The same for the RPM package, whose scripts get the number of remaining versions.
#[test]
fn the_scripts_of_the_rpm_do_the_same() {
    let Some(package) = package() else { return };
    run(|| {
        let scripts = Scripts::unpack(package);
        let rpm = package.file.with_extension("rpm");
        let reload = "systemctl --system daemon-reload";
        let stop = "systemctl --no-reload disable --now tripod.service tripod-holder.service";
        for (script, remaining, expected) in [
            ("POSTIN", "1", &[reload][..]),
            ("POSTIN", "2", &[reload]),
            ("PREUN", "1", &[]),
            (
                "POSTUN",
                "1",
                &[reload, "systemctl try-restart tripod.service"],
            ),
            ("PREUN", "0", &[stop]),
            ("POSTUN", "0", &[reload]),
        ] {
            let format = format!("#!/bin/sh\n%{{{script}}}\n");
            let file = rpm.to_str().expect("a path");
            let text = output("rpm", &["-qp", "--queryformat", &format, file]);
            let path = scripts.folder.join(script);
            fs::write(&path, text).expect("a script");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a mode");
            assert_eq!(
                scripts.calls(script, &[remaining]),
                expected,
                "{script} {remaining}"
            );
        }
    });
}
