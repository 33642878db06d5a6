//! A Service without endpoints refuses calls to its own addresses alone.

use std::{net::SocketAddr, time::Duration};

use serde_json::json;

use super::hostile::modes;
use crate::lab::{
    Capture, EndpointChoice, Lab, Service, Tripod, ask, eventually, run, tripod_binary,
};

const SOON: Duration = Duration::from_secs(10);

/// The addresses of endpoints may be claimed as external IPs.
#[test]
fn what_was_translated_is_not_refused() {
    run(|| {
        for (mode, capture) in modes() {
            let mut lab = Lab::new(*capture);
            lab.add_backends(&["a"]);
            let web = Service::new("web", 10);
            lab.publish_endpoints(&web, &[EndpointChoice::ready("a")]);
            let port = lab.backend("a").direct().port();
            let pods = lab.backends[0].host().addresses.map(|ip| ip.to_string());
            let port = json!([{
                "name": "tcp", "protocol": "TCP", "port": port, "targetPort": 8080,
            }]);
            let stranger = Service::new("stranger", 11)
                .spec("externalIPs", json!(pods))
                .spec("ports", port);
            lab.publish_endpoints(&stranger, &[]);
            let _tripod = start(&lab, mode);
            // With local capture, Tripod cannot call an endpoint that has the address of a Service
            // over IPv4 (docs/userspace.md).
            let served = |to: &SocketAddr| {
                (*mode, *capture) != ("userspace", Capture::Local) || to.is_ipv6()
            };
            for to in web.cluster().into_iter().filter(served) {
                let answer = || ask(&lab.client, to).map_err(|error| error.to_string());
                let what = format!("an answer of {to} in {mode} mode");
                let answer = eventually(&what, SOON, answer);
                assert_eq!(answer, "a", "{mode} {to}");
            }
        }
    });
}

/// Calls of pods are not masqueraded: iptables mode accepts what is before it refuses anything.
fn start(lab: &Lab, mode: &str) -> Tripod {
    let mut command = lab.node.command(tripod_binary());
    command
        .args([&format!("--proxy-mode={mode}"), "--strict-proxy-mode"])
        .arg(format!("--userspace-capture={}", lab.capture.flag()))
        .args(["--hostname-override=node", "--conntrack-max-per-core=0"])
        .arg("--cluster-cidr=10.244.0.0/16,fd00:244::/64")
        .arg("--manifests")
        .arg(lab.manifests());
    Tripod::start_on(&lab.node, command)
}
