//! Builds images and unpacks them.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::Value;

use super::super::read;

/// Returns buildah with a separate store in `place`, which needs no support of the kernel.
pub fn buildah(place: &Path) -> Command {
    let shown = |name: &str| place.join(name).display().to_string();
    let mut command = Command::new("buildah");
    command.arg("--storage-driver=vfs");
    command.args(["--root", &shown("store"), "--runroot", &shown("runroot")]);
    command
}

/// Reads the last stage of a Dockerfile.
///
/// The previous stage, which compiles, needs an image from a registry: tests put its result into a
/// folder that represents it.
pub fn last_stage(file: &str) -> String {
    let whole = read(file);
    let last = whole.rfind("\nFROM ").expect("two stages");
    whole[last + 1..].to_owned()
}

/// Makes buildah follow the steps of `text`, where the folder `first` represents the stage `build`,
/// and name the result `tag`.
pub fn build(
    place: &Path,
    text: &str,
    first: &Path,
    tag: &str,
    options: &[&str],
) -> std::io::Result<Output> {
    let steps = place.join("Dockerfile");
    fs::write(&steps, text).expect("a file");
    buildah(place)
        .args(["bud", "--isolation=chroot", "--format=oci", "--pull=never"])
        .args(options)
        .arg(format!("--build-context=build={}", first.display()))
        .arg("-f")
        .arg(&steps)
        .args(["-t", tag])
        .arg(first)
        .output()
}

/// Returns all output of a command.
pub fn said(done: &Output) -> String {
    let [output, errors] = [&done.stdout, &done.stderr].map(|text| String::from_utf8_lossy(text));
    format!("{output}{errors}")
}

/// Builds the image of `deploy/Dockerfile.minimal` from `binary`. Returns its layout.
pub fn minimal(place: &Path, binary: &Path) -> Layout {
    let first = place.join("first");
    let programs = first.join("image/usr/local/bin");
    fs::create_dir_all(&programs).expect("a folder");
    fs::copy(binary, programs.join("tripod")).expect("copying the binary");
    symlink("tripod", programs.join("kube-proxy")).expect("a link");
    let steps = last_stage("Dockerfile.minimal");
    assert!(steps.contains("COPY --from=build /image/ /"), "{steps}");
    let layout = Layout::of(place);
    let done = build(place, &steps, &first, &layout.tag(), &[]).expect("running buildah");
    assert!(done.status.success(), "{}", said(&done));
    layout
}

/// An image layout (OCI image specification 1.1) of one image.
pub struct Layout(PathBuf);

impl Layout {
    /// Returns the layout in `place`.
    pub fn of(place: &Path) -> Layout {
        Layout(place.join("layout"))
    }

    pub fn folder(&self) -> &Path {
        &self.0
    }

    /// Returns the name by which buildah writes it.
    pub fn tag(&self) -> String {
        format!("oci:{}:tripod", self.0.display())
    }

    fn blob(&self, descriptor: &Value) -> PathBuf {
        let digest = descriptor["digest"].as_str().expect("a digest");
        self.0.join("blobs").join(digest.replace(':', "/"))
    }

    fn manifest(&self) -> Value {
        let index = json(&self.0.join("index.json"));
        json(&self.blob(&index["manifests"][0]))
    }

    /// The archives of the layers, the lowest first.
    pub fn layers(&self) -> Vec<PathBuf> {
        let manifest = self.manifest();
        let layers = manifest["layers"].as_array().expect("layers").iter();
        layers.map(|layer| self.blob(layer)).collect()
    }

    /// Returns the image's settings of the process to start.
    pub fn settings(&self) -> Value {
        json(&self.blob(&self.manifest()["config"]))["config"].clone()
    }

    /// Unpacks it in `place`. Returns the root file system.
    pub fn unpack(&self, place: &Path) -> PathBuf {
        let root = place.join("root");
        fs::create_dir_all(&root).expect("a folder");
        for layer in self.layers() {
            let mut tar = Command::new("tar");
            let done = tar.arg("-xf").arg(layer).arg("-C").arg(&root).status();
            assert!(done.expect("tar(1)").success());
        }
        root
    }
}

fn json(path: &Path) -> Value {
    let text = fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_slice(&text).expect("JSON")
}

/// Tests do not run the first stage, whose image is in a registry. It has the compiler that
/// Cargo.toml requires, on the same release of Debian as the last stage, and the program is where
/// the last stage expects it.
#[test]
fn the_stage_that_compiles_has_the_compiler_that_is_asked_for() {
    let of_repository = |file: &str| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
        fs::read_to_string(path).expect(file)
    };
    let cargo = of_repository("Cargo.toml");
    let version = cargo
        .lines()
        .find_map(|line| line.strip_prefix("rust-version = "));
    let version = version.expect("a version").trim_matches('"');
    let debian = last_stage("Dockerfile");
    let (release, _) = debian.split_once("-slim\n").expect("Debian without extras");
    let release = release.strip_prefix("FROM debian:").expect("Debian");
    let expected = format!(
        "FROM rust:{version}-{release} AS build\nWORKDIR /src\nCOPY . .\nRUN make static\n"
    );
    for file in ["Dockerfile", "Dockerfile.minimal"] {
        assert!(read(file).contains(&expected), "{file}: {expected}");
    }
    let tests = of_repository("tests/container/Dockerfile");
    let base = format!("\nARG BASE=docker.io/library/rust:{version}-{release}\n");
    assert!(tests.contains(&base), "{base}: {tests}");
    assert!(of_repository("Makefile").contains("\nSTATIC := $(TARGET)/static\n"));
    assert!(debian.contains(super::debian::COPY), "{debian}");
}
