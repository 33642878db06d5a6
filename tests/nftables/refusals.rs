//! A Service without endpoints refuses calls to its own addresses alone.

use serde_json::json;

use super::start_with;
use crate::lab::{EndpointChoice, Lab, Service, ask, tcp};

/// The addresses of endpoints may be claimed as external IPs, and their ports as node ports.
#[test]
fn what_was_translated_is_not_refused() {
    Lab::run(|lab| {
        let web = Service::new("web", 10);
        lab.publish_endpoints(&web, &[EndpointChoice::ready("a")]);
        let endpoint = lab.backend("a").direct();
        let pods = lab.backends[0].host().addresses.map(|ip| ip.to_string());
        let port = json!([{
            "name": "tcp", "protocol": "TCP", "port": endpoint.port(), "targetPort": 8080,
        }]);
        let stranger = Service::new("stranger", 11)
            .spec("externalIPs", json!(pods))
            .spec("ports", port);
        lab.publish_endpoints(&stranger, &[]);
        let _tripod = start_with(lab, &[]);
        for to in web.cluster() {
            assert_eq!(ask(&lab.client, to).expect("an answer"), "a", "{to}");
        }
        // A direct call is one to the stranger's external IP.
        let error = tcp(&lab.client, endpoint).expect_err("it has no endpoint");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    });
}
