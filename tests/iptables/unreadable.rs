//! Changes are written even while the rules cannot be read.

use std::time::Duration;

use crate::lab::{
    Lab, ProgramFault, Programs, Service, Tripod, ask, eventually, get, skip, tripod_binary,
};

const SOON: Duration = Duration::from_secs(10);

#[test]
fn changes_are_in_force_while_rules_cannot_be_read() {
    Lab::run(|lab| {
        let mut programs = Programs::legacy();
        let mut command = lab.node.command(tripod_binary());
        programs.come_first(&mut command);
        command
            .args(["--proxy-mode=iptables", "--strict-proxy-mode"])
            .args([
                "--iptables-sync-period=1s",
                "--iptables-min-sync-period=10ms",
            ])
            .args(["--cluster-cidr=10.244.0.0/24,fd00:244::/64"])
            .args(["--hostname-override=node", "--manifests"])
            .arg(lab.manifests());
        let [web, gone, late] =
            [("web", 1), ("gone", 2), ("late", 3)].map(|(name, number)| Service::new(name, number));
        lab.publish(&web, &["a"]);
        lab.publish(&gone, &["a"]);
        let tripod = Tripod::start_on(&lab.node, command);
        let answers = |what: &str, service: &Service, name: &str| {
            for to in service.cluster() {
                eventually(what, SOON, || match ask(&lab.client, to) {
                    Ok(answer) if answer == name => Ok(()),
                    other => Err(format!("{to}: {other:?}")),
                });
            }
        };
        answers("at first", &web, "a");
        answers("at first", &gone, "a");

        programs.break_with(ProgramFault::SaveFails);
        eventually("it is logged", SOON, || {
            match tripod.logged(&["rules are not compared"]) {
                0 => Err(tripod.log()),
                _ => Ok(()),
            }
        });
        lab.publish(&web, &["b"]);
        answers("another endpoint", &web, "b");
        lab.publish(&late, &["c"]);
        answers("a new Service", &late, "c");
        lab.withdraw(&gone);
        for to in gone.cluster() {
            eventually("a Service that went", SOON, || match ask(&lab.client, to) {
                Ok(answer) => Err(format!("{to}: {answer}")),
                Err(_) => Ok(()),
            });
        }

        programs.repair();
        for program in ["iptables", "ip6tables"] {
            lab.node.show(&format!("{program}-legacy -t nat -F"));
        }
        answers("what another program removed comes back", &web, "b");
        answers("what another program removed comes back", &late, "c");
    });
}

/// Flushes `chain` of table nat while table mangle, on which no Service depends, has rules of nft's
/// own. When Services are served again, `then` gets the program.
fn mangle_stops_no_comparison(flags: &[&str], chain: &str, then: fn(&Tripod)) {
    Lab::run(|lab| {
        let uses_nft = lab.node.show("iptables --version").contains("nf_tables");
        if !uses_nft {
            return skip("iptables is not iptables-nft here");
        }
        let web = Service::new("web", 1);
        lab.publish(&web, &["a"]);
        let mut command = lab.node.command(tripod_binary());
        command
            .args(["--strict-proxy-mode", "--iptables-sync-period=1s"])
            .args(flags)
            .arg("--hostname-override=node")
            .args(["--cluster-cidr=10.244.0.0/24,fd00:244::/64", "--manifests"])
            .arg(lab.manifests());
        let tripod = Tripod::start_on(&lab.node, command);
        let answers = |what: &str| {
            for to in web.cluster() {
                eventually(what, SOON, || match ask(&lab.client, to) {
                    Ok(answer) if answer == "a" => Ok(()),
                    other => Err(format!("{to}: {other:?}")),
                });
            }
        };
        answers("at first");
        for family in ["ip", "ip6"] {
            for command in [
                "table FAMILY mangle",
                "chain FAMILY mangle PREROUTING { type filter hook prerouting priority -150 ; }",
                "rule FAMILY mangle PREROUTING meta mark set numgen inc mod 2",
            ] {
                let command = command.replace("FAMILY", family);
                lab.node.show(&format!("nft add {command}"));
            }
        }
        let saved = lab.node.show("iptables-save");
        assert!(
            saved.contains("# Table `mangle' is incompatible"),
            "{saved}"
        );
        for program in ["iptables", "ip6tables"] {
            lab.node.show(&format!("{program} -t nat -F {chain}"));
        }
        answers("what another program removed comes back");
        let diff = get(&lab.node, ([127, 0, 0, 1], 10249).into(), "/v1/diff").expect("an answer");
        assert!(
            diff.starts_with("HTTP/1.1 200") && !diff.contains("incompatible"),
            "{diff}"
        );
        then(&tripod);
    });
}

#[test]
fn a_mangle_table_that_cannot_be_read_stops_no_comparison() {
    mangle_stops_no_comparison(&["--proxy-mode=iptables"], "KUBE-SERVICES", |tripod| {
        let unread = ["table mangle holds rules of nft's own", "are compared"];
        assert_eq!(tripod.logged(&unread), 2, "once a family: {}", tripod.log());
    });
}

/// Redirect capture has nothing in table mangle.
#[test]
fn a_mangle_table_that_cannot_be_read_stops_no_redirect() {
    let flags = ["--proxy-mode=userspace", "--userspace-capture=redirect"];
    mangle_stops_no_comparison(&flags, "TRIPOD-USERSPACE", |tripod| {
        assert_eq!(tripod.logged(&["ERROR"]), 0, "{}", tripod.log());
    });
}
