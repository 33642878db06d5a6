//! A release: all results of `make dist` exist and are the same for both architectures; published
//! files can be verified with the commands of `docs/verifying.md`, without any others.

mod publish;
mod registry;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::{aarch64, chart::tool, chroot, image::said};
use crate::lab::{is_installed, path_with_tools, skip};

const MANIFEST: &str = env!("CARGO_MANIFEST_DIR");
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The architectures, under the names of programs, Debian and images.
const ARCHITECTURES: [(&str, &str); 2] = [("x86_64", "amd64"), ("aarch64", "arm64")];

/// Runs a command, which must succeed, and returns its output.
fn done(command: &mut Command) -> String {
    let output = command.output().expect("running it");
    assert!(output.status.success(), "{command:?}: {}", said(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns a `PATH` with the programs that `make test-all` installed.
fn path() -> String {
    format!("{MANIFEST}/target/tools/helm:{}", path_with_tools())
}

/// Returns a script of `deploy/dist`.
fn script(name: &str) -> Command {
    let mut command = Command::new(Path::new(MANIFEST).join("deploy/dist").join(name));
    // RUSTC is that of the test, for another package.
    command.env_remove("RUSTC").env("PATH", path());
    command
}

/// Copies the static programs of both architectures to `place`, without symbols, which would take
/// most of the time; `None` if a release cannot be made here.
fn programs(place: &Path) -> Option<[PathBuf; 2]> {
    let needed = [
        "cargo-deb",
        "cargo-cyclonedx",
        "rpmbuild",
        "buildah",
        "skopeo",
        "jq",
        "openssl",
        "strip",
        "aarch64-linux-gnu-strip",
    ];
    if let Some(missing) = needed.iter().find(|program| !is_installed(program)) {
        skip(format!(
            "{missing} is not here: make test-all INSTALL=yes installs it"
        ));
        return None;
    }
    let binaries = [chroot::static_binary()?, aarch64::binary()?];
    fs::create_dir_all(place).expect("a folder");
    let strip = |binary: &Path, program: &str, architecture: &str| {
        let to = place.join(architecture);
        done(Command::new(program).arg("-o").arg(&to).arg(binary));
        to
    };
    Some([
        strip(&binaries[0], "strip", "x86_64"),
        strip(&binaries[1], "aarch64-linux-gnu-strip", "aarch64"),
    ])
}

fn sum(path: &Path) -> String {
    let printed = done(Command::new("sha256sum").arg("--").arg(path));
    printed.split(' ').next().expect("a sum").to_owned()
}

/// Computes the sums of the files of a folder and below, by their relative paths.
fn sums(folder: &Path) -> BTreeMap<String, String> {
    let mut command = Command::new("find");
    command.args([".", "-type", "f", "-exec", "sha256sum", "--", "{}", "+"]);
    let lines = done(command.current_dir(folder));
    let sums = lines.lines().map(|line| {
        let (sum, path) = line.split_once("  .").expect("a sum and a path");
        (path.to_owned(), sum.to_owned())
    });
    sums.collect()
}

/// The files of an RPM package are those of the Debian package, under the names that
/// distributions with RPM use.
fn check_packages(dist: &Path, place: &Path, [program, debian]: [&str; 2]) {
    let deb = dist.join(format!("tripod_{VERSION}-1_{debian}.deb"));
    let rpm = dist.join(format!("tripod-{VERSION}-1.{program}.rpm"));
    let field = |name| done(Command::new("dpkg-deb").arg("--field").arg(&deb).arg(name));
    assert_eq!(field("Architecture").trim(), debian);
    let root = place.join(debian);
    done(
        Command::new("dpkg-deb")
            .arg("--extract")
            .args([&deb, &root]),
    );
    let mut expected = sums(&root);
    assert_eq!(
        expected["/usr/bin/tripod"],
        sum(&dist.join(format!("tripod-{program}")))
    );
    let completion = expected.remove("/usr/share/zsh/vendor-completions/_tripod");
    expected.insert(
        "/usr/share/zsh/site-functions/_tripod".to_owned(),
        completion.expect("a completion script"),
    );
    expected.remove("/usr/share/doc/tripod/copyright");
    let licence = sum(&Path::new(MANIFEST).join("LICENSE"));
    expected.insert("/usr/share/licenses/tripod/LICENSE".to_owned(), licence);

    let query = |format: &str| {
        let mut command = Command::new("rpm");
        done(command.args(["-qp", "--queryformat", format]).arg(&rpm))
    };
    assert_eq!(query("%{ARCH} %{OS}"), format!("{program} linux"));
    // Folders have no digest.
    let files = query("[%{FILEDIGESTS} %{FILENAMES}\n]");
    let files = files.lines().filter_map(|line| line.split_once(' '));
    let files = files.filter(|(digest, _)| !digest.is_empty());
    let files = files.map(|(digest, path)| (path.to_owned(), digest.to_owned()));
    assert_eq!(files.collect::<BTreeMap<_, _>>(), expected);
    let kept = done(Command::new("rpm").arg("-qpc").arg(&rpm));
    assert_eq!(
        kept.lines().collect::<Vec<_>>(),
        ["/etc/tripod/config.yaml", "/etc/tripod/manifests/README"]
    );
}

#[test]
fn a_release_has_the_same_for_both_architectures() {
    let place = Path::new(MANIFEST).join("target/release-test");
    let Some([x86_64, aarch64]) = programs(&place) else {
        return;
    };
    if tool("helm/helm").is_none() {
        return;
    }
    let dist = place.join("dist");
    let made = script("release.sh")
        .arg(&dist)
        .args([&x86_64, &aarch64])
        .env("IMAGES", "minimal")
        .env("FAST", "yes")
        .env_remove("TRIPOD_SIGNING_KEY")
        .output()
        .expect("running release.sh");
    assert!(made.status.success(), "{}", said(&made));
    assert!(
        said(&made).contains("SHA256SUMS is not signed"),
        "{}",
        said(&made)
    );

    let mut files: Vec<String> = sums(&dist).into_keys().collect();
    files.retain(|file| file != "/SHA256SUMS");
    let mut expected = vec![
        "/tripod.cdx.json".to_owned(),
        "/tripod.krew.yaml".to_owned(),
        format!("/tripod-{VERSION}.tgz"),
        format!("/tripod-{VERSION}-image-minimal.tar"),
    ];
    for (program, debian) in ARCHITECTURES {
        expected.push(format!("/tripod-{program}"));
        expected.push(format!("/tripod_{VERSION}-1_{debian}.deb"));
        expected.push(format!("/tripod-{VERSION}-1.{program}.rpm"));
        let plugin = format!("/kubectl-tripod-{VERSION}-linux-{debian}.tar.gz");
        let krew = fs::read_to_string(dist.join("tripod.krew.yaml")).expect("the manifest");
        let entry = format!("{plugin}\n    sha256: {}\n", sum(&dist.join(&plugin[1..])));
        assert!(krew.contains(&entry), "{entry}: {krew}");
        expected.push(plugin);
        check_packages(&dist, &place, [program, debian]);
    }
    expected.sort();
    assert_eq!(files, expected);
    let listed = fs::read_to_string(dist.join("SHA256SUMS")).expect("the checksums");
    let listed = listed.lines().filter_map(|line| line.split_once("  "));
    let mut listed: Vec<String> = listed.map(|(_, file)| format!("/{file}")).collect();
    listed.sort();
    assert_eq!(listed, expected);
    done(
        Command::new("sha256sum")
            .args(["--check", "--strict", "SHA256SUMS"])
            .current_dir(&dist),
    );
    fs::remove_dir_all(place).expect("removing what was made");
}

/// All missing files are named, before anything is built.
#[test]
fn an_image_that_cannot_be_built_says_what_is_missing() {
    let empty = Path::new(MANIFEST).join("target/release-without-bases");
    fs::create_dir_all(&empty).expect("a folder");
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let output = script("image.sh")
        .args(["full", "image.tar", "amd64=/bin/true"])
        .arg(format!("arm64={program}"))
        .arg("riscv64=/nowhere")
        .env("TRIPOD_BASE_IMAGES", &empty)
        .current_dir(&empty)
        .output()
        .expect("running image.sh");
    assert!(!output.status.success());
    let said = said(&output);
    for (architecture, problem) in [
        ("amd64", "there is no base image"),
        ("arm64", "there is no base image"),
        ("arm64", "this machine does not run its programs"),
        ("riscv64", "there is no program /nowhere"),
    ] {
        let of = format!("the full image for {architecture} cannot be built: {problem}");
        assert!(said.contains(&of), "{of}: {said}");
    }
    assert_eq!(fs::read_dir(&empty).expect("a folder").count(), 0);
}
