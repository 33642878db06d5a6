//! The image of `deploy/Dockerfile.minimal`, built by buildah and started by runc, and by
//! containerd, as the DaemonSet asks for.

mod build;
mod bundle;
mod containerd;

use std::{fs, path::Path};

use super::{chroot, config_map, daemon_set};
use crate::lab::{
    Capture, Lab, Service, Share, Tripod, ask, eventually, is_installed, run, skip, udp_ask,
};

use self::{
    bundle::{Bundle, Confinement},
    containerd::Containerd,
};

/// In the sandbox's own `/run`.
const PLACE: &str = "/run/image";

/// Ends the container, however the test ends: its processes are not the test's.
struct Container<'a>(&'a Bundle);

impl Drop for Container<'_> {
    fn drop(&mut self) {
        let _ = self
            .0
            .runc()
            .args(["delete", "--force", &self.0.name])
            .status();
    }
}

/// The containers of the DaemonSet with the image's root.
fn bundles(place: &Path, root: &Path) -> [Bundle; 2] {
    let pod = daemon_set().spec.unwrap().template.spec.unwrap();
    let init = &pod.init_containers.as_ref().unwrap()[0];
    [
        Bundle::new(place, "init", init, root, Confinement::Privileged),
        Bundle::new(
            place,
            "kube-proxy",
            &pod.containers[0],
            root,
            Confinement::OfPod,
        ),
    ]
}

/// Hands a lab with a Service, a folder and the unpacked image to `body`.
fn with_image(body: impl FnOnce(&Lab, &Service, &Path, &Path)) {
    let Some(binary) = chroot::static_binary() else {
        return;
    };
    if !is_installed("buildah") || !is_installed("runc") {
        return skip("buildah and runc are not installed: apt-get install buildah runc");
    }
    run(Share::Beside, || {
        let mut lab = Lab::new(Capture::Local);
        lab.add_backends(&["a"]);
        let service = Service::new("hello", 7).with_node_port();
        lab.publish_all(&service);
        let place = Path::new(PLACE);
        let root = build::image(place, &binary);
        mounted(place);
        Bundle::publish(place, &lab);
        body(&lab, &service, place, &root);
    });
}

/// `status` asks within the container.
fn serves(lab: &Lab, service: &Service, status: impl FnOnce() -> String) {
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
    assert!(
        words.contains("healthy") && words.contains("nftables"),
        "{words}"
    );
}

#[test]
fn it_serves_as_the_daemon_set_starts_it() {
    with_image(|lab, service, place, root| {
        let [init, main] = bundles(place, root);
        let done = init.run(lab).output().expect("running runc");
        assert!(done.status.success(), "{done:?}");
        assert!(fs::exists(place.join("findings/kernel.json")).unwrap());
        let container = Container(&main);
        let mut tripod = Tripod::start_on(&lab.node, main.run(lab));
        serves(lab, service, || {
            let asked = main
                .runc()
                .args(["exec", &main.name, "/usr/local/bin/tripod", "status"])
                .output();
            let asked = asked.expect("running runc");
            String::from_utf8_lossy(&asked.stdout).into_owned()
        });
        assert!(tripod.terminate().success());
        drop(container);
    });
}

#[test]
fn it_serves_in_containerd() {
    if !containerd::is_there() {
        return skip("containerd is not here: make test unpacks it");
    }
    with_image(|lab, service, place, _| {
        let containerd = Containerd::start(lab, place);
        let root = containerd.import(&place.join("layout"));
        let [init, main] = bundles(place, root);
        let done = containerd.run(&init).output().expect("running ctr");
        assert!(done.status.success(), "{done:?}");
        assert!(fs::exists(place.join("findings/kernel.json")).unwrap());
        let mut tripod = Tripod::start_on(&lab.node, containerd.run(&main));
        serves(lab, service, || {
            containerd.exec(&main, &["/usr/local/bin/tripod", "status"])
        });
        assert!(tripod.terminate().success());
    });
}

/// Makes what the pod's volumes bring.
fn mounted(place: &Path) {
    for folder in ["config", "findings", "modules", "succession"] {
        fs::create_dir_all(place.join(folder)).expect("a folder");
    }
    fs::write(place.join("xtables.lock"), "").expect("a file");
    for (file, text) in config_map().data.unwrap() {
        fs::write(place.join("config").join(file), text).expect("a file");
    }
}
