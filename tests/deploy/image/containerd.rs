//! containerd with separate folders, which imports the image, unpacks it, and has its shim start
//! the containers.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::Duration,
};

use super::bundle::Bundle;
use crate::lab::{Group, Lab, die_with_parent, eventually};

/// The namespace of the images and containers of a kubelet.
const NAMESPACE: &str = "k8s.io";
const IMAGE: &str = "registry.example/tripod:test";
/// The snapshotter that needs no support of the kernel.
const SNAPSHOTTER: &str = "--snapshotter=native";

/// Returns a program that `make test-all` unpacked.
fn tool(name: &str) -> PathBuf {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/usr/bin");
    tools.join(name)
}

/// Whether containerd can run here.
pub fn is_there() -> bool {
    tool("containerd").is_file()
}

/// Ends with the test.
pub struct Containerd {
    socket: PathBuf,
    mounted: PathBuf,
    _process: Group,
}

impl Containerd {
    /// Starts it on the lab's node, whose network its containers have.
    pub fn start(lab: &Lab, place: &Path) -> Containerd {
        let folder = place.join("containerd");
        fs::create_dir_all(&folder).expect("a folder");
        let socket = folder.join("socket");
        let shown = |name: &str| folder.join(name).display().to_string();
        let settings = format!(
            "version = 2\nroot = {:?}\nstate = {:?}\n\
             disabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n\
             [grpc]\naddress = {:?}\n[ttrpc]\naddress = {:?}\n",
            shown("root"),
            shown("state"),
            shown("socket"),
            shown("ttrpc"),
        );
        fs::write(folder.join("config.toml"), settings).expect("a file");
        let path = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}:{path}", tool("").display());
        let log = fs::File::create(folder.join("log")).expect("a file");
        let mut command = die_with_parent("nsenter");
        command
            .arg(format!("--net=/run/netns/{}", lab.node.name()))
            .arg(tool("containerd"))
            .args(["--config", &shown("config.toml")])
            // Its shim is next to it.
            .env("PATH", path)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let process = Group::spawn(&mut command).expect("starting containerd");
        let containerd = Containerd {
            socket,
            mounted: place.join("mounted"),
            _process: process,
        };
        eventually("containerd answers", Duration::from_secs(30), || {
            let done = containerd.ctr().arg("version").output();
            let done = done.expect("running ctr");
            let log = || fs::read_to_string(folder.join("log")).unwrap_or_default();
            done.status.success().then_some(()).ok_or_else(log)
        });
        containerd
    }

    pub fn ctr(&self) -> Command {
        let mut command = die_with_parent(tool("ctr"));
        command
            .arg(format!("--address={}", self.socket.display()))
            .arg(format!("--namespace={NAMESPACE}"));
        command
    }

    /// Imports the image in the folder `layout` and returns where its root is mounted: writable, so
    /// that runc can create mount points.
    pub fn import(&self, layout: &Path) -> &Path {
        let archive = layout.with_extension("tar");
        let mut tar = Command::new("tar");
        let packed = tar.arg("-C").arg(layout).arg("-cf").arg(&archive).arg(".");
        assert!(packed.status().expect("tar(1)").success());
        let mut import = self.ctr();
        import.args(["images", "import", SNAPSHOTTER, "--index-name", IMAGE]);
        succeeded(import.arg(&archive).output());
        fs::create_dir_all(&self.mounted).expect("a folder");
        let mut mount = self.ctr();
        mount.args(["images", "mount", "--rw", SNAPSHOTTER, IMAGE]);
        succeeded(mount.arg(&self.mounted).output());
        &self.mounted
    }

    /// Returns a command that runs the container of `bundle` by a shim.
    pub fn run(&self, bundle: &Bundle) -> Command {
        let mut command = self.ctr();
        command
            .args(["run", "--rm", "--fifo-dir"])
            .arg(self.socket.with_file_name("fifo"))
            .arg("--config")
            .arg(bundle.config())
            .arg(&bundle.name)
            .stdin(Stdio::null());
        command
    }

    /// Runs a command in the container of `bundle`, and returns its output.
    pub fn exec(&self, bundle: &Bundle, words: &[&str]) -> String {
        let mut command = self.ctr();
        command.args(["tasks", "exec", "--exec-id=asked", "--fifo-dir"]);
        command.arg(self.socket.with_file_name("fifo"));
        succeeded(command.arg(&bundle.name).args(words).output())
    }
}

fn succeeded(done: std::io::Result<Output>) -> String {
    let done = done.expect("running ctr");
    assert!(done.status.success(), "{done:?}");
    String::from_utf8_lossy(&done.stdout).into_owned()
}
