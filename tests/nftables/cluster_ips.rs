//! Cluster IPs that no Service has.

use std::io::ErrorKind;
use std::time::Duration;

use super::start;
use crate::lab::{self, Capture, Lab, Service, ask, eventually, tcp};

const SOON: Duration = Duration::from_secs(5);
const SERVICE_CIDR: &str = "apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\n\
                            metadata: {name: kubernetes}\n\
                            spec: {cidrs: [10.96.0.0/16, 'fd00:96::/112']}\n";

#[test]
fn unallocated_cluster_ips_are_dropped_while_a_service_cidr_names_them() {
    lab::run(|| {
        let mut lab = Lab::new(Capture::Redirect);
        lab.three_backends();
        let service = Service::new("web", 1);
        lab.publish_all(&service);
        let _tripod = start(&lab);
        let [v4, v6] = [service.cluster()[0], service.cluster()[1]];
        let serves = || ask(&lab.client, v4).map_err(|e| e.to_string());
        eventually("the Service is applied", SOON, serves);
        let nobodys = "10.96.255.254:80".parse().expect("an address");
        let outcome = || tcp(&lab.client, nobodys).map(drop).map_err(|e| e.kind());
        let before = outcome().expect_err("no Service has it");
        assert_ne!(before, ErrorKind::TimedOut, "the router answers");

        let manifest = lab.manifests().join("service-cidr.yaml");
        std::fs::write(&manifest, SERVICE_CIDR).expect("writing it");
        let dropped = || match outcome() {
            Err(ErrorKind::TimedOut) => Ok(()),
            other => Err(format!("{other:?}")),
        };
        eventually("what no Service has is dropped", SOON, dropped);
        for to in [v4, v6] {
            ask(&lab.client, to).expect("the Service is served");
        }
        let table = lab.node.show("nft list table ip tripod");
        assert!(table.contains("ip daddr @service-cidrs drop"), "{table}");

        std::fs::remove_file(&manifest).expect("removing it");
        let as_before = || match outcome() {
            Err(kind) if kind == before => Ok(()),
            other => Err(format!("{other:?}")),
        };
        eventually("nothing is dropped any more", SOON, as_before);
    });
}
