//! A kernel without the match for SCTP.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::json;

use super::probe::kernel;
use crate::lab::{Capture, Lab, Service, Tripod, ask, eventually, run, tripod_binary};

const SOON: Duration = Duration::from_secs(60);

/// The program that loads modules in a guest, for the kernel and for programs.
const LOADER: &str = "/mnt/bin/modprobe";

/// While this lives, the module cannot be loaded.
struct Hidden(String);

impl Hidden {
    fn new(lab: &Lab) -> Hidden {
        let loader = std::fs::read_to_string(LOADER).expect("a guest has one");
        let refusing = "case \"$*\" in *sctp*) exit 1 ;; esac\n";
        let with_refusal = loader.replacen('\n', &format!("\n{refusing}"), 1);
        std::fs::write(LOADER, with_refusal).expect("changing it");
        eventually("the module is unloaded", SOON, || {
            let loaded = std::fs::read_to_string("/proc/modules").unwrap_or_default();
            if !loaded.contains("xt_sctp ") {
                return Ok(());
            }
            let _ = lab.node.command("rmmod").arg("xt_sctp").status();
            Err("it is loaded".to_owned())
        });
        Hidden(loader)
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        let _ = std::fs::write(LOADER, &self.0);
    }
}

#[test]
fn one_sctp_service_is_named_and_the_others_are_served() {
    run(|| {
        // It is a module only in that kernel.
        if kernel() != "full" {
            return;
        }
        let mut lab = Lab::new(Capture::Redirect);
        let _hidden = Hidden::new(&lab);
        let web = Service::new("web", 10).with_node_port();
        lab.three_backends().publish_all(&web);
        let signal = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "signal", "namespace": "default"},
            "spec": {
                "clusterIP": "10.96.0.99", "clusterIPs": ["10.96.0.99"],
                "ports": [{"name": "m3ua", "protocol": "SCTP", "port": 2905}],
            },
        });
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": "signal-1", "namespace": "default",
                "labels": {"kubernetes.io/service-name": "signal"},
            },
            "addressType": "IPv4",
            "ports": [{"name": "m3ua", "protocol": "SCTP", "port": 2905}],
            "endpoints": [{"addresses": ["10.244.0.11"], "conditions": {"ready": true}}],
        });
        lab.write("signal.json", &signal.to_string());
        lab.write("signal-slice.json", &slice.to_string());

        let mut command = lab.node.command(tripod_binary());
        command
            .args(["--proxy-mode=iptables", "--strict-proxy-mode", "--v=2"])
            .arg("--manifests")
            .arg(lab.manifests())
            .args(["--hostname-override=node", "--cluster-cidr=10.244.0.0/24"]);
        let tripod = Tripod::start_on(&lab.node, command);
        let to = SocketAddr::new(lab.node.addresses[0], web.node_port());
        eventually("the other Service is served", SOON, || {
            let asked = ask(&lab.outside, to);
            asked.map(drop).map_err(|error| error.to_string())
        });
        assert_eq!(
            tripod.logged(&["WARN", "runs without IPv4 -m sctp", "modprobe xt_sctp"]),
            1
        );
        let named = [
            "WARN",
            "Service default/signal",
            "SCTP",
            "-m sctp",
            "modprobe xt_sctp",
        ];
        tripod.logs_once(&named);
        let saved = lab.node.show("iptables-save");
        assert!(!saved.contains("sctp"), "{saved}");
        assert_eq!(tripod.logged(&["ERROR"]), 0, "{}", tripod.log());
    });
}
