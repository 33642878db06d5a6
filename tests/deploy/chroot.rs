//! The static binary needs nothing beside itself: it serves from a root
//! directory in which there is the binary and a folder of manifests, no
//! library, no /proc, no iptables.

use std::{fs, path::PathBuf, process::Command};

use crate::lab::{Capture, Lab, Service, Share, Tripod, ask, eventually, run, skip, udp_ask};

/// `make test` builds one and names it here.
const STATIC: &str = "TRIPOD_STATIC";

#[test]
fn the_static_binary_serves_alone() {
    let Some(binary) = std::env::var_os(STATIC).map(PathBuf::from) else {
        return skip(format!(
            "{STATIC} names no static binary; make test builds one"
        ));
    };
    run(Share::Beside, || {
        let mut lab = Lab::new(Capture::Local);
        lab.add_backends(&["a"]);
        let service = Service::new("hello", 7).with_node_port();
        lab.publish_all(&service);

        let root = PathBuf::from("/run/alone");
        fs::create_dir(&root).expect("a root directory");
        fs::copy(&binary, root.join("tripod")).expect("copying the binary");
        // Under the path that the laboratory gives to Tripod.
        let inside = root.join(lab.manifests().strip_prefix("/").expect("absolute"));
        fs::create_dir_all(&inside).expect("a folder for manifests");
        let mount = Command::new("mount")
            .arg("--bind")
            .args([lab.manifests(), &inside])
            .status();
        assert!(mount.expect("mount(8)").success());

        let in_root = || {
            let mut command = lab.node.command("chroot");
            command.arg(&root).arg("/tripod");
            command
        };
        let mut tripod = Tripod::start_as(&lab, in_root());
        for address in service.cluster() {
            for host in lab.cluster_clients() {
                assert_eq!(ask(host, address).expect("a call"), "a", "{address}");
            }
            assert_eq!(udp_ask(&lab.client, address).expect("a call"), "a");
        }
        // It follows the folder from in there, too.
        let later = Service::new("later", 8);
        lab.publish_all(&later);
        eventually("a new Service is served", super::SOON, || {
            ask(&lab.client, later.cluster()[0]).map_err(|error| error.to_string())
        });
        assert!(tripod.terminate().success());

        let clean = in_root().arg("cleanup").output().expect("running cleanup");
        assert!(clean.status.success(), "{clean:?}");
        assert!(ask(&lab.client, service.cluster()[0]).is_err());
    });
}
