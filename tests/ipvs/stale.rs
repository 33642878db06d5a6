//! The kernel has the state that a killed process left, or none of it.

use std::time::Duration;

use super::{kernel, node, recorded::State};
use crate::lab::{Capture, Lab, Service, ask, eventually, run};

#[test]
#[ignore = "for a guest kernel with IPVS"]
fn what_a_killed_trial_left_goes() {
    run(|| {
        let mut lab = Lab::new(Capture::Redirect);
        lab.add_backends(&["a"]);
        lab.publish_all(&Service::new("web", 1).annotated("tripod.proxy/scheduler", "wrr"));
        let left = || lab.node.show("ipvsadm -Sn").contains("192.0.2.1:1");
        let leave = || lab.node.show("ipvsadm -A -t 192.0.2.1:1 -s wlc");
        leave();
        let tripod = node::start(&lab, &["--ipvs-sync-period=2s"]);
        assert!(!left(), "it hinders the first sync");
        leave();
        eventually("it goes", Duration::from_secs(20), || {
            if left() { Err(tripod.log()) } else { Ok(()) }
        });
        assert_eq!(tripod.logged(&["sync failed"]), 0, "{}", tripod.log());
    });
}

#[test]
#[ignore = "for a guest kernel with IPVS"]
fn a_module_that_is_loaded_anew_gets_all_back() {
    run(|| {
        let mut lab = Lab::new(Capture::Redirect);
        lab.add_backends(&["a"]);
        let service = Service::new("web", 1);
        lab.publish_all(&service);
        let flags = ["--ipvs-sync-period=2s", "--ipvs-udp-timeout=77s"];
        let tripod = node::start(&lab, &flags);
        let expected = State::of(&lab.node);
        let timeouts = lab.node.show("ipvsadm -l --timeout");
        assert!(timeouts.contains(" 77"), "{timeouts}");
        tripod.freeze();
        lab.node.show("ipvsadm -C");
        kernel::unload();
        lab.node.show("modprobe ip_vs");
        tripod.thaw();
        eventually("all is back", Duration::from_secs(30), || {
            match expected.differences(&State::of(&lab.node)) {
                found if !found.is_empty() => Err(found.join("\n")),
                _ => Ok(()),
            }
        });
        assert_eq!(lab.node.show("ipvsadm -l --timeout"), timeouts);
        let setting = lab.node.show("cat /proc/sys/net/ipv4/vs/conntrack");
        assert_eq!(setting.trim(), "1");
        assert_eq!(ask(&lab.node, service.cluster()[0]).expect("one"), "a");
    });
}
