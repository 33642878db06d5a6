//! The module of IPVS is unloaded and loaded again.

use ipvs::{Change, VirtualServer};

use super::{ipvs, masqueraded, show, tcp};
use crate::lab::run;

#[test]
#[ignore = "for a guest kernel with IPVS"]
fn ipvs_is_found_again_when_its_module_was_loaded_again() {
    run(|| {
        let mut ipvs = ipvs();
        let id = tcp("10.96.0.1:80");
        let server = VirtualServer::new(id, "wrr");
        let real = masqueraded("10.244.0.1:80", 1);
        // Each begins with a number that IPVS no longer has: a dump, a single request, a batch of
        // changes.
        for first in 0..3 {
            ipvs.add(&server).expect("adding");
            ipvs.delete(&id).expect("deleting");
            unload();
            // If nothing else loads the module, the first request does.
            if first > 0 {
                show("modprobe ip_vs");
            }
            match first {
                0 => assert!(ipvs.list().expect("listing").is_empty()),
                1 => ipvs.check().expect("an answer"),
                _ => {
                    let changes = [Change::Add(server.clone()), Change::AddReal(id, real)];
                    for outcome in ipvs.apply(&changes).expect("the socket") {
                        outcome.expect("it is made");
                    }
                }
            }
        }
        assert_eq!(
            show("ipvsadm -Sn"),
            "-A -t 10.96.0.1:80 -s wrr\n-a -t 10.96.0.1:80 -r 10.244.0.1:80 -m -w 1\n"
        );
        let mut shown = Vec::new();
        let each = ipvs.each(|id, reals| shown.push((id, reals.len())));
        each.expect("the file of the module that is there now");
        assert_eq!(shown, [(id, 1)]);
    });
}

/// Unloads IPVS with its schedulers: nothing uses them.
pub fn unload() {
    let text = std::fs::read_to_string("/proc/modules").expect("modules");
    let names = text.lines().filter_map(|line| line.split(' ').next());
    let (core, schedulers): (Vec<&str>, Vec<&str>) = names
        .filter(|name| name.starts_with("ip_vs"))
        .partition(|name| *name == "ip_vs");
    assert_eq!(core, ["ip_vs"]);
    for name in schedulers.into_iter().chain(core) {
        show(&format!("modprobe -r {name}"));
    }
    let text = std::fs::read_to_string("/proc/modules").expect("modules");
    assert!(!text.contains("ip_vs"), "{text}");
}
