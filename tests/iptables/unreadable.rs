//! While the rules cannot be read, changes are written all the same.

use std::time::Duration;

use crate::lab::{Lab, ProgramFault, Programs, Service, Tripod, ask, eventually, tripod_binary};

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

        programs.mend();
        for program in ["iptables", "ip6tables"] {
            lab.node.show(&format!("{program}-legacy -t nat -F"));
        }
        answers("what another program removed comes back", &web, "b");
        answers("what another program removed comes back", &late, "c");
    });
}
