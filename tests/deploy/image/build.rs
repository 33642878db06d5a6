//! Builds the image and unpacks it.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use super::super::read;

/// Builds the last stage of `deploy/Dockerfile.minimal` from `binary`, and unpacks what
/// came of it. Returns the root file system.
///
/// The stage before it, which compiles, needs an image of another registry: what it puts
/// into `/image` is put there here.
pub fn image(place: &Path, binary: &Path) -> PathBuf {
    let first = place.join("first");
    let programs = first.join("image/usr/local/bin");
    fs::create_dir_all(&programs).expect("a folder");
    fs::copy(binary, programs.join("tripod")).expect("copying the binary");
    symlink("tripod", programs.join("kube-proxy")).expect("a link");
    let whole = read("Dockerfile.minimal");
    let last = whole.rfind("\nFROM ").expect("two stages");
    assert!(
        whole[last..].contains("COPY --from=build /image/ /"),
        "{whole}"
    );
    fs::write(place.join("Dockerfile"), &whole[last + 1..]).expect("a file");
    let layout = place.join("layout");
    let show = |path: &Path| path.display().to_string();
    let done = Command::new("buildah")
        .args([
            "--storage-driver=vfs",
            "--root",
            &show(&place.join("store")),
        ])
        .args(["--runroot", &show(&place.join("runroot"))])
        .args(["bud", "--isolation=chroot", "--format=oci"])
        .arg(format!("--build-context=build={}", first.display()))
        .args(["-f", &show(&place.join("Dockerfile"))])
        .args(["-t", &format!("oci:{}:tripod", layout.display())])
        .arg(show(&first))
        .output()
        .expect("running buildah");
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{errors}");
    unpacked(place, &layout)
}

/// Unpacks an image layout (OCI image specification 1.1) of one image.
fn unpacked(place: &Path, layout: &Path) -> PathBuf {
    let blob = |descriptor: &Value| {
        let digest = descriptor["digest"].as_str().expect("a digest");
        layout.join("blobs").join(digest.replace(':', "/"))
    };
    let json = |path: PathBuf| -> Value {
        let text = fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        serde_json::from_slice(&text).expect("JSON")
    };
    let index = json(layout.join("index.json"));
    let manifest = json(blob(&index["manifests"][0]));
    let config = json(blob(&manifest["config"]));
    assert_eq!(
        config["config"]["Entrypoint"],
        serde_json::json!(["/usr/local/bin/tripod"])
    );
    let root = place.join("root");
    fs::create_dir_all(&root).expect("a folder");
    for layer in manifest["layers"].as_array().expect("layers") {
        let done = Command::new("tar")
            .arg("-xf")
            .arg(blob(layer))
            .arg("-C")
            .arg(&root)
            .status();
        assert!(done.expect("tar(1)").success());
    }
    root
}
