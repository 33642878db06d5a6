//! A node without one of the IP families.

use serde_json::Value;

use super::SOON;
use crate::lab::{Host, Lab, Service, ask, eventually, tripod_binary};

on_local_capture!(a_node_without_ipv6_serves_ipv4);

fn set_ipv6(node: &Host, is_off: bool) {
    let value = if is_off { "1" } else { "0" };
    let written = node.enter(|| std::fs::write("/proc/sys/net/ipv6/conf/lo/disable_ipv6", value));
    written.expect("a setting");
}

fn status(lab: &Lab) -> (Value, String) {
    let output = |format: &str| {
        let mut command = lab.node.command(tripod_binary());
        let output = command.args(["status", "-o", format]).output();
        String::from_utf8_lossy(&output.expect("running tripod").stdout).into_owned()
    };
    let json = serde_json::from_str(&output("json"));
    (json.unwrap_or_default(), output("table"))
}

fn a_node_without_ipv6_serves_ipv4(lab: &mut Lab) {
    set_ipv6(&lab.node, true);
    let web = Service::new("web", 1).with_node_port().with_external_ip();
    lab.add_backends(&["a"]).publish_all(&web);
    let tripod = lab.tripod();
    let [v4, v6] = web.cluster();
    assert_eq!(ask(&lab.client, v4).expect("an answer"), "a");
    let (json, table) = status(lab);
    assert_eq!(json["healthy"], true, "{json:#}");
    let why = "IPv6 is off on link lo, to which they are routed (net.ipv6.conf.lo.disable_ipv6=1)";
    let not_served = [0, 1].map(|at| json["syncs"][at]["notServed"].clone());
    assert_eq!(not_served, [Value::Null, why.into()], "{json:#}");
    assert!(
        table.contains(&format!("its Services are not served: {why}")),
        "{table}"
    );
    // A change is no reason to report it again, either.
    lab.publish(&web, &[]);
    eventually("the change is applied", SOON, || {
        match ask(&lab.client, v4) {
            Err(_) => Ok(()),
            Ok(name) => Err(name),
        }
    });
    lab.publish_all(&web);
    assert_eq!(tripod.logged(&["IPv6 Services are not served: ", why]), 1);
    assert_eq!(tripod.logged(&["not applied"]), 0, "{}", tripod.log());

    set_ipv6(&lab.node, false);
    eventually("IPv6 is served where it is on", SOON, || {
        ask(&lab.client, v6).map_err(|error| error.to_string())
    });
    assert_eq!(status(lab).0["syncs"][1]["notServed"], Value::Null);
}
