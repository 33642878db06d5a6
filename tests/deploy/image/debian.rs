//! The image of `deploy/Dockerfile`, which contains packages of Debian. They come over the network,
//! so it is built once, outside of the sandbox. The layer with the packages is kept in
//! `target/image` for later runs, until its steps or the base image change.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
    time::SystemTime,
};

use super::build::{Layout, build, buildah, last_stage, said};
use crate::lab::is_inside;

/// The step that copies the program from the previous stage.
pub const COPY: &str = "COPY --from=build /src/target/static/tripod ";

/// The name that keeps the layer with the packages from being removed.
const PACKAGES: &str = "packages";

fn target() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("target")
}

/// Builds the image with `binary`. Returns its layout, or why it cannot be built here.
pub fn layout(binary: &Path) -> Result<Layout, String> {
    static BUILT: OnceLock<Result<(), String>> = OnceLock::new();
    let place = target().join("image");
    if !is_inside() {
        BUILT.get_or_init(|| built_in(&place, binary)).clone()?;
    }
    Ok(Layout::of(&place))
}

fn built_in(place: &Path, binary: &Path) -> Result<(), String> {
    if !nix::unistd::geteuid().is_root() {
        return Err("only root can build the image of deploy/Dockerfile".to_owned());
    }
    let base = target().join("tools/base-image.tar");
    if !base.is_file() {
        return Err(
            "there is no base image: make test-all INSTALL=yes makes it, as root".to_owned(),
        );
    }
    // Other tests wait in the meantime.
    fs::create_dir_all(place).expect("a folder");
    let lock = File::create(place.join("lock")).expect("a file");
    lock.lock().expect("a lock");
    let steps = last_stage("Dockerfile");
    let (packages, _) = steps.split_once(COPY).expect(COPY);
    let name = steps.lines().next().and_then(|l| l.strip_prefix("FROM "));
    import(place, &base, name.expect("a base image"));
    let first = place.join("first");
    let program = first.join("src/target/static");
    fs::create_dir_all(&program).expect("a folder");
    fs::copy(binary, program.join("tripod")).expect("copying the binary");
    // The package sources are those of this machine. The settings of the registry's image keep no
    // files that apt fetches or makes: here they stay outside.
    let cache = place.join("cache");
    fs::create_dir_all(&cache).expect("a folder");
    let cache = format!("--volume={}:/var/cache/apt", cache.display());
    let options = ["--layers", "--volume=/etc/apt:/etc/apt:ro", &cache];
    let done = build(place, packages, &first, PACKAGES, &options).expect("running buildah");
    if !done.status.success() {
        let said = said(&done);
        let missed = said.lines().find(|line| line.contains("Failed to fetch"));
        let missed = missed.unwrap_or_else(|| panic!("{said}"));
        return Err(format!("Debian's packages cannot be fetched: {missed}"));
    }
    let layout = Layout::of(place);
    let _ = fs::remove_dir_all(layout.folder());
    let done = build(place, &steps, &first, &layout.tag(), &options).expect("running buildah");
    assert!(done.status.success(), "{}", said(&done));
    // The layers with the program, which is another one each time.
    succeeded(buildah(place).args(["rmi", "--prune"]));
    Ok(())
}

/// Imports the archive `base` as the image `name`, unless that was done already.
fn import(place: &Path, base: &Path, name: &str) {
    let made = |path: &Path| -> Option<SystemTime> { path.metadata().ok()?.modified().ok() };
    let imported = place.join("store/imported");
    if made(&imported) >= made(base) {
        return;
    }
    let container = succeeded(buildah(place).args(["from", "scratch"]));
    let container = container.trim();
    succeeded(
        buildah(place)
            .args(["add", "--quiet", container])
            .arg(base)
            .arg("/"),
    );
    let name = format!("docker.io/library/{name}");
    succeeded(buildah(place).args(["commit", "--quiet", "--rm", container, &name]));
    fs::write(imported, "").expect("a file");
}

fn succeeded(command: &mut Command) -> String {
    let done = command.output().expect("running buildah");
    assert!(done.status.success(), "{command:?}: {}", said(&done));
    String::from_utf8_lossy(&done.stdout).into_owned()
}
