//! The images of `deploy/Dockerfile` and `deploy/Dockerfile.minimal`, built by buildah and
//! started by runc, and by containerd, as the DaemonSet requests.

mod build;
mod bundle;
mod containerd;
mod debian;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::json;

use super::{chroot, config_map, daemon_set};
use crate::lab::{
    Capture, Lab, Service, Tripod, ask, eventually, figure, is_installed, run, skip, udp_ask,
};

pub use self::build::{Layout, said};
use self::{
    bundle::{Bundle, Confinement},
    containerd::Containerd,
};

/// In the sandbox's own `/run`.
const PLACE: &str = "/run/image";

/// Maximum size of Debian's packages in the image of `deploy/Dockerfile`: half as much again as
/// when this was written.
const PACKAGES_AT_MOST: u64 = 15_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Image {
    /// The image of `deploy/Dockerfile.minimal`: only the program.
    Minimal,
    /// The image of `deploy/Dockerfile`: with packages of Debian.
    Debian,
}

impl Image {
    /// Returns the `mode` of the ConfigMap that the containers get, and the mode that results.
    fn mode(self) -> [&'static str; 2] {
        match self {
            Image::Minimal => ["", "nftables"],
            Image::Debian => ["iptables", "iptables"],
        }
    }
}

/// An image in a folder, and its root file system.
struct Unpacked<'a> {
    image: Image,
    place: &'a Path,
    layout: Layout,
    root: PathBuf,
}

impl<'a> Unpacked<'a> {
    /// Unpacks it in `place`, built with `binary`.
    fn new(image: Image, place: &'a Path, binary: &Path) -> Unpacked<'a> {
        let layout = match image {
            Image::Minimal => build::minimal(place, binary),
            Image::Debian => debian::layout(binary).expect("it was built outside of the sandbox"),
        };
        let root = layout.unpack(place);
        Unpacked {
            image,
            place,
            layout,
            root,
        }
    }

    /// Bundles of the DaemonSet's containers, with `root` as their root file system.
    fn bundles(&self, root: &Path) -> [Bundle; 2] {
        let pod = daemon_set().spec.unwrap().template.spec.unwrap();
        let init = &pod.init_containers.as_ref().unwrap()[0];
        let main = &pod.containers[0];
        [
            Bundle::new(self.place, "init", init, root, Confinement::Privileged),
            Bundle::new(self.place, "kube-proxy", main, root, Confinement::OfPod),
        ]
    }

    /// Creates the content of the pod's volumes.
    fn mount(&self) {
        for folder in ["config", "findings", "modules", "succession"] {
            fs::create_dir_all(self.place.join(folder)).expect("a folder");
        }
        fs::write(self.place.join("xtables.lock"), "").expect("a file");
        let [mode, _] = self.image.mode();
        let unset = "mode: \"\"";
        for (file, text) in config_map().data.unwrap() {
            assert!(file != "config.conf" || text.contains(unset), "{text}");
            let text = text.replace(unset, &format!("mode: {mode:?}"));
            fs::write(self.place.join("config").join(file), text).expect("a file");
        }
    }

    /// Asserts that the image has the program under both names, that it starts the first one, and
    /// that it has nothing unnecessary.
    fn check_content(&self) {
        let entrypoint = json!(["/usr/local/bin/tripod"]);
        assert_eq!(self.layout.settings()["Entrypoint"], entrypoint);
        let link = fs::read_link(self.root.join("usr/local/bin/kube-proxy"));
        assert_eq!(link.expect("a link"), Path::new("tripod"));
        let layers = self.layout.layers();
        let size = |layer: &PathBuf| layer.metadata().expect("a layer").len();
        let below = match self.image {
            Image::Minimal => 0,
            Image::Debian => {
                let lists = fs::read_dir(self.root.join("var/lib/apt/lists"));
                assert_eq!(lists.expect("a folder of apt's").count(), 0);
                assert!(size(&layers[1]) < PACKAGES_AT_MOST, "{}", size(&layers[1]));
                2
            }
        };
        let files: BTreeSet<String> = layers[below..].iter().flat_map(|l| files(l)).collect();
        let expected = ["kube-proxy", "tripod"].map(|name| format!("usr/local/bin/{name}"));
        assert_eq!(files, BTreeSet::from(expected));
        let megabytes = |layer| format!("{:.1}", size(layer) as f64 / 1e6);
        let sizes: Vec<String> = layers.iter().map(megabytes).collect();
        figure(
            &format!("MB of each layer, {:?}", self.image),
            sizes.join(" + "),
        );
    }
}

/// Lists the files, without folders, in the archive of a layer.
fn files(layer: &Path) -> Vec<String> {
    let done = Command::new("tar").arg("-tf").arg(layer).output();
    let done = done.expect("tar(1)");
    assert!(done.status.success(), "{done:?}");
    let names = String::from_utf8_lossy(&done.stdout);
    let files = names.lines().filter(|name| !name.ends_with('/'));
    files.map(str::to_owned).collect()
}

/// Ends the container in any case: its processes are not children of the test.
struct Container<'a> {
    lab: &'a Lab,
    bundle: &'a Bundle,
}

impl Container<'_> {
    /// Runs a command in the container, which must succeed, and returns its output.
    fn exec(&self, words: &[&str]) -> String {
        let mut command = self.bundle.runc(self.lab);
        let command = command.args(["exec", &self.bundle.name]).args(words);
        let done = command.output().expect("running runc");
        assert!(done.status.success(), "{words:?}: {done:?}");
        String::from_utf8_lossy(&done.stdout).into_owned()
    }
}

impl Drop for Container<'_> {
    fn drop(&mut self) {
        let mut command = self.bundle.runc(self.lab);
        let _ = command
            .args(["delete", "--force", &self.bundle.name])
            .status();
    }
}

/// Passes a lab with a Service and the unpacked image to `body`.
fn with_image(image: Image, body: impl FnOnce(&Lab, &Service, &Unpacked)) {
    let Some(binary) = chroot::static_binary() else {
        return;
    };
    if !is_installed("buildah") || !is_installed("runc") {
        return skip("buildah and runc are not installed: apt-get install buildah runc");
    }
    if image == Image::Debian
        && let Err(reason) = debian::layout(&binary)
    {
        return skip(reason);
    }
    run(|| {
        let mut lab = Lab::new(Capture::Local);
        lab.add_backends(&["a"]);
        let service = Service::new("hello", 7).with_node_port();
        lab.publish_all(&service);
        let place = Path::new(PLACE);
        fs::create_dir_all(place).expect("a folder");
        let unpacked = Unpacked::new(image, place, &binary);
        unpacked.check_content();
        unpacked.mount();
        Bundle::publish(place, &lab);
        body(&lab, &service, &unpacked);
    });
}

/// `status` queries the status within the container.
fn serves(lab: &Lab, service: &Service, image: Image, status: impl FnOnce() -> String) {
    for address in service.cluster() {
        for host in lab.cluster_clients() {
            assert_eq!(ask(host, address).expect("a call"), "a", "{address}");
        }
        assert_eq!(udp_ask(&lab.client, address).expect("a call"), "a");
    }
    let later = Service::new("later", 8);
    lab.publish_all(&later);
    eventually("a new Service is served", super::SOON, || {
        ask(&lab.client, later.cluster()[0]).map_err(|error| error.to_string())
    });
    let words = status();
    // Neither the runtime nor the image forbids the calls that --confine=files takes.
    assert!(!words.contains("not confined"), "{words}");
    let [_, mode] = image.mode();
    let runs = |line: &str| line.split_whitespace().eq(["mode", mode]);
    assert!(
        words.contains("healthy") && words.lines().any(runs),
        "{words}"
    );
}

/// Starts the containers by runc, one after the other, and passes the running one to `body`.
fn serves_in_runc(
    lab: &Lab,
    service: &Service,
    unpacked: &Unpacked,
    body: impl FnOnce(&Container),
) {
    let [init, main] = unpacked.bundles(&unpacked.root);
    let done = init.run(lab).output().expect("running runc");
    assert!(done.status.success(), "{done:?}");
    assert!(fs::exists(unpacked.place.join("findings/kernel.json")).unwrap());
    let container = Container { lab, bundle: &main };
    let mut tripod = Tripod::start_on(&lab.node, main.run(lab));
    serves(lab, service, unpacked.image, || {
        container.exec(&["/usr/local/bin/tripod", "status"])
    });
    body(&container);
    assert!(tripod.terminate().success());
}

#[test]
fn it_serves_as_the_daemon_set_starts_it() {
    with_image(Image::Minimal, |lab, service, unpacked| {
        serves_in_runc(lab, service, unpacked, |_| ());
    });
}

fn serves_in_containerd(image: Image) {
    if !containerd::is_there() {
        return skip("containerd is not here: make test-all INSTALL=yes unpacks it");
    }
    with_image(image, |lab, service, unpacked| {
        let containerd = Containerd::start(lab, unpacked.place);
        let root = containerd.import(unpacked.layout.folder());
        let [init, main] = unpacked.bundles(root);
        let done = containerd.run(&init).output().expect("running ctr");
        assert!(done.status.success(), "{done:?}");
        assert!(fs::exists(unpacked.place.join("findings/kernel.json")).unwrap());
        let mut tripod = Tripod::start_on(&lab.node, containerd.run(&main));
        serves(lab, service, unpacked.image, || {
            containerd.exec(&main, &["/usr/local/bin/tripod", "status"])
        });
        assert!(tripod.terminate().success());
    });
}

#[test]
fn it_serves_in_containerd() {
    serves_in_containerd(Image::Minimal);
}

#[test]
fn with_iptables_it_serves_in_containerd() {
    serves_in_containerd(Image::Debian);
}

/// Asserts that rules for Services are written with `engine`, by the image's own programs.
fn serves_with_iptables(engine: &str, prepare: impl FnOnce(&Lab)) {
    with_image(Image::Debian, |lab, service, unpacked| {
        prepare(lab);
        serves_in_runc(lab, service, unpacked, |container| {
            for program in ["iptables", "ip6tables"] {
                for kind in ["nft", "legacy"] {
                    let rules = container.exec(&[&format!("{program}-{kind}-save")]);
                    let has = rules.contains("-A KUBE-SVC-");
                    assert_eq!(has, kind == engine, "{program}-{kind}: {rules}");
                }
            }
        });
    });
}

#[test]
fn with_iptables_it_serves_as_the_daemon_set_starts_it() {
    serves_with_iptables("nft", |_| ());
}

#[test]
fn with_iptables_it_serves_in_the_legacy_engine() {
    serves_with_iptables("legacy", |lab| {
        // By this the kubelet shows which engine the node has.
        for program in ["iptables", "ip6tables"] {
            let chain = "-w 5 -t mangle -N KUBE-IPTABLES-HINT";
            lab.node.show(&format!("{program}-legacy {chain}"));
        }
    });
}
