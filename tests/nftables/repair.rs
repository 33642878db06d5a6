//! Changes by others are repaired within a second, and no connection breaks.

use std::time::Duration;

use super::{start, start_with};
use crate::lab::{Lab, Service, ask, eventually, say, tcp, tripod_binary};

/// The requirement is one second; the machine may be busy.
const SOON: Duration = Duration::from_secs(15);

#[test]
fn flushed_tables_come_back_and_connections_live_on() {
    Lab::run(|lab| {
        let service = Service::new("web", 1);
        lab.publish_all(&service);
        // A periodic full sync must not repair damage that went unnoticed.
        let _tripod = start_with(lab, &["--iptables-sync-period=1h"]);
        let to = service.cluster()[0];
        let serves = |what: &str| {
            eventually(what, SOON, || {
                ask(&lab.client, to).map_err(|e| e.to_string())
            });
        };
        serves("the Service is applied");
        let mut open = tcp(&lab.client, to).expect("a connection");
        say(&mut open, "name").expect("an answer");
        let whole = lab.node.show("nft list table ip tripod");
        for breakage in [
            "flush ruleset",
            "delete table ip tripod",
            "flush chain ip tripod services",
            "flush map ip tripod endpoints",
            "insert rule ip tripod prerouting ip daddr 10.96.0.0/16 drop",
        ] {
            lab.node.show(&format!("nft {breakage}"));
            eventually(breakage, SOON, || {
                let tables = lab.node.show("nft list tables");
                if !tables.contains("table ip tripod") {
                    return Err(tables);
                }
                let now = lab.node.show("nft list table ip tripod");
                let same = now.lines().count() == whole.lines().count();
                same.then_some(()).ok_or(now)
            });
            serves(breakage);
            say(&mut open, "name").expect("the connection lives on");
        }
    });
}

#[test]
fn foreign_tables_stay_and_cleanup_leaves_them_alone() {
    Lab::run(|lab| {
        for foreign in [
            "table ip mine",
            "chain ip mine c",
            "rule ip mine c accept",
            "table inet tripod",
            "chain inet tripod c",
        ] {
            lab.node.show(&format!("nft add {foreign}"));
        }
        let service = Service::new("web", 1);
        lab.publish_all(&service);
        let tripod = start(lab);
        let to = service.cluster()[0];
        ask(&lab.client, to).expect("it is served");
        drop(tripod);
        ask(&lab.client, to).expect("it is served without the process");
        let binary = tripod_binary();
        lab.node.show(&format!("{} --cleanup", binary.display()));
        let left = lab.node.show("nft list ruleset");
        for (table, stays) in [
            ("table ip mine {", true),
            ("table inet tripod {", true),
            ("table ip tripod {", false),
            ("table ip6 tripod {", false),
        ] {
            assert_eq!(left.contains(table), stays, "{table} in {left}");
        }
    });
}
