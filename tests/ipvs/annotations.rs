//! The annotations of a Service affect only that Service.

use std::time::Duration;

use super::node;
use crate::lab::{Capture, Lab, Service, ask, eventually, run};

/// One byte more than the kernel accepts (`IP_VS_SCHEDNAME_MAXLEN` of `linux/ip_vs.h`
/// includes the NUL).
const TOO_LONG: &str = "sixteen-bytes-xx";

#[test]
#[ignore = "for a guest kernel with IPVS"]
fn a_malformed_annotation_concerns_its_service_alone() {
    run(|| {
        let mut lab = Lab::new(Capture::Redirect);
        lab.add_backends(&["a"]);
        let scheduler = "tripod.proxy/scheduler";
        let kube_router = "kube-router.io/service.scheduler";
        let odd = [
            ("long", scheduler, "this-is-a-long-scheduler-name"),
            ("byte", scheduler, TOO_LONG),
            ("empty", scheduler, ""),
            ("path", scheduler, "../../x"),
            ("router", kube_router, TOO_LONG),
            ("none", scheduler, "no-such-one"),
            ("forwarding", "tripod.proxy/forwarding", "NAT"),
            ("drain", "tripod.proxy/drain-timeout", "30"),
        ];
        let services = odd.iter().zip(1..).map(|((name, key, value), number)| {
            (*key, Service::new(name, number).annotated(key, value))
        });
        let services: Vec<(&str, Service)> = services.collect();
        let plain = Service::new("plain", 100);
        for (_, service) in &services {
            lab.publish_all(service);
        }
        lab.publish_all(&plain);
        let tripod = node::start(&lab, &[]);
        for service in services.iter().map(|(_, service)| service).chain([&plain]) {
            for at in service.cluster() {
                assert_eq!(ask(&lab.node, at).expect(&service.name), "a");
            }
        }
        for (key, service) in &services {
            let is = match &*service.name {
                // A name that a kernel might know, but this one does not.
                "none" => "is not supported",
                _ => "cannot be read",
            };
            let of = format!("default/{}: {key} {is}", service.name);
            tripod.logs_once(&[&of]);
        }
        // The same for a Service that is added later, and for its neighbours.
        let late = Service::new("late", 101).annotated(scheduler, TOO_LONG);
        let beside = Service::new("beside", 102);
        for service in [&late, &beside] {
            lab.publish_all(service);
        }
        for at in [late.cluster(), beside.cluster()].concat() {
            eventually("they are served", Duration::from_secs(20), || {
                match ask(&lab.node, at) {
                    Ok(answer) if answer == "a" => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            });
        }
        tripod.logs_once(&["default/late: tripod.proxy/scheduler cannot be read"]);
    });
}
