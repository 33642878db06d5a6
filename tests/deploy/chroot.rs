//! The static binary needs no other file: it serves from a root directory with only the binary and
//! a folder of manifests, without libraries, /proc and iptables.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::lab::{Capture, Lab, Service, Tripod, ask, eventually, run, skip, udp_ask};

/// `make test-all` builds one and names it here.
const STATIC: &str = "TRIPOD_STATIC";

const ROOT: &str = "/run/alone";

pub fn static_binary() -> Option<PathBuf> {
    let binary = std::env::var_os(STATIC).map(PathBuf::from);
    if binary.is_none() {
        skip(format!(
            "{STATIC} names no static binary; make test-all builds one"
        ));
    }
    binary
}

/// Makes a root directory with the binary and the laboratory's manifests, under the path that the
/// laboratory gives to Tripod.
fn make_root(lab: &Lab, binary: &Path) {
    let root = Path::new(ROOT);
    fs::create_dir(root).expect("a root directory");
    fs::copy(binary, root.join("tripod")).expect("copying the binary");
    let inside = root.join(lab.manifests().strip_prefix("/").expect("absolute"));
    fs::create_dir_all(&inside).expect("a folder for manifests");
    let mount = Command::new("mount")
        .arg("--bind")
        .args([lab.manifests(), &inside])
        .status();
    assert!(mount.expect("mount(8)").success());
}

/// Returns a command that runs the binary in that root directory.
fn in_root(lab: &Lab) -> Command {
    let mut command = lab.node.command("chroot");
    command.arg(ROOT).arg("/tripod");
    command
}

/// Runs `body` with the binary in a separate root directory and a Service, which a cleanup from
/// inside removes.
fn alone(body: impl FnOnce(&mut Lab, &Service)) {
    let Some(binary) = static_binary() else {
        return;
    };
    run(|| {
        let mut lab = Lab::new(Capture::Local);
        lab.add_backends(&["a"]);
        let service = Service::new("hello", 7).with_node_port();
        lab.publish_all(&service);
        make_root(&lab, &binary);
        body(&mut lab, &service);

        let clean = in_root(&lab).arg("cleanup").output();
        let clean = clean.expect("running cleanup");
        assert!(clean.status.success(), "{clean:?}");
        assert!(ask(&lab.client, service.cluster()[0]).is_err());
    });
}

fn serves(lab: &Lab, service: &Service) {
    for address in service.cluster() {
        for host in lab.cluster_clients() {
            assert_eq!(ask(host, address).expect("a call"), "a", "{address}");
        }
        assert_eq!(udp_ask(&lab.client, address).expect("a call"), "a");
    }
}

#[test]
fn the_static_binary_serves_alone() {
    alone(|lab, service| {
        let mut tripod = Tripod::start_as(lab, in_root(lab));
        serves(lab, service);
        // It also follows the folder from inside.
        let later = Service::new("later", 8);
        lab.publish_all(&later);
        eventually("a new Service is served", super::SOON, || {
            ask(&lab.client, later.cluster()[0]).map_err(|error| error.to_string())
        });
        assert!(tripod.terminate().success());
    });
}

/// `deploy/Dockerfile.minimal` has only the binary; a container runtime adds /proc.
#[test]
fn the_static_binary_serves_alone_in_nftables_mode() {
    alone(|lab, service| {
        let proc = Path::new(ROOT).join("proc");
        fs::create_dir(&proc).expect("a folder for /proc");
        let mount = Command::new("mount")
            .args(["-t", "proc", "proc"])
            .arg(&proc)
            .status();
        assert!(mount.expect("mount(8)").success());

        let mut command = in_root(lab);
        command
            .args(["--proxy-mode=nftables", "--strict-proxy-mode"])
            .args([
                "--hostname-override=node",
                "--cluster-cidr=10.244.0.0/16,fd00:244::/64",
            ])
            // The default is the addresses of the Node object, and there is none.
            .arg("--nodeport-addresses=0.0.0.0/0,::/0")
            .arg("--manifests")
            .arg(lab.manifests());
        let mut tripod = Tripod::start_on(&lab.node, command);
        serves(lab, service);
        assert_eq!(tripod.logged(&["WARN"]), 0, "{}", tripod.log());
        assert!(tripod.terminate().success());
    });
}
