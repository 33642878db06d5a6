//! The programs that write rules fail: functions that do not need them continue.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use serde_json::json;

use super::node;
use crate::lab::{
    BACKEND_PORT, Capture, Lab, ProgramFault, Programs, Service, Tripod, ask, eventually, figure,
    get, run,
};

/// Time limit for functions that wait for no program, in a slow guest: less than the ten seconds
/// for which Tripod waits for one (`LONGEST_WAIT`).
const SOON: Duration = Duration::from_secs(8);
/// Time limit for functions that are retried with pauses.
const LATER: Duration = Duration::from_secs(40);

fn start(lab: &Lab, programs: &Programs) -> Tripod {
    // No periodic full sync, which would repair the effects of a failure.
    let mut command = node::command(lab, &["--ipvs-sync-period=1h"]);
    programs.come_first(&mut command);
    Tripod::start_on(&lab.node, command)
}

/// Waits until the Service at `at` has exactly these real servers.
fn follows(lab: &Lab, what: &str, at: SocketAddr, endpoints: &[&str]) {
    let began = Instant::now();
    eventually(what, SOON, || {
        let mut found = node::reals(&lab.node, at);
        found.retain(|real| !real.ends_with(" 0"));
        let expected = endpoints.iter().map(|name| {
            let backend = lab.backends.iter().find(|b| b.name() == *name);
            let of = usize::from(at.is_ipv6());
            let ip = backend.expect("a backend").host().addresses[of];
            format!("{} 1", SocketAddr::new(ip, BACKEND_PORT))
        });
        if found == expected.collect::<Vec<_>>() {
            Ok(())
        } else {
            Err(format!("{found:?}"))
        }
    });
    figure(what, format!("{:.1?}", began.elapsed()));
}

fn is_open(lab: &Lab, at: SocketAddr) -> bool {
    let address = format!("-A -t {at} ");
    lab.node.show("ipvsadm -Sn").contains(&address)
}

/// Returns whether the rule for source ranges exists, for each family.
fn firewall(lab: &Lab) -> [bool; 2] {
    ["iptables-save", "ip6tables-save"].map(|save| {
        let rules = lab.node.show(&format!("{save} -t filter"));
        rules.contains("LOAD-BALANCER-FW dst,dst -j KUBE-SOURCE-RANGES-FIREWALL")
    })
}

const NONE: [bool; 2] = [false; 2];
const BOTH: [bool; 2] = [true; 2];

fn guarded(number: u8) -> Service {
    let ranges = json!(["192.0.2.20/32", "2001:db8::20/128"]);
    Service::new("guarded", number)
        .with_load_balancer()
        .spec("loadBalancerSourceRanges", ranges)
}

/// Checks that there are neither virtual servers nor addresses for its load-balancer IPs.
fn is_closed(lab: &Lab, guarded: &Service, fault: ProgramFault) {
    for at in guarded.ingress() {
        assert!(!is_open(lab, at), "{fault:?}: {at} is open");
        let addresses = lab.node.show("ip -o addr show dev kube-ipvs0");
        let address = format!(" {}/", at.ip());
        assert!(!addresses.contains(&address), "{fault:?}: {addresses}");
    }
}

/// Publishes and withdraws a Service whose rules are already in the kernel.
fn plain_service_comes_and_goes(lab: &Lab, tripod: &Tripod, number: u8, fault: ProgramFault) {
    let plain = Service::new("plain", number).with_load_balancer();
    lab.publish(&plain, &["c"]);
    for (from, at) in [
        (&lab.node, plain.cluster()[0]),
        (&lab.outside, plain.ingress()[0]),
    ] {
        let what = format!("{fault:?}: a Service that needs no other rule");
        eventually(&what, SOON, || {
            if is_open(lab, at) {
                Ok(())
            } else {
                Err(tripod.log())
            }
        });
        eventually(&what, LATER, || {
            ask(from, at).map_err(|error| format!("{at}: {error}"))
        });
    }
    lab.withdraw(&plain);
    eventually("it goes", SOON, || {
        if is_open(lab, plain.cluster()[0]) {
            Err(tripod.log())
        } else {
            Ok(())
        }
    });
}

#[test]
#[ignore = "for a guest kernel with IPVS"]
fn what_needs_no_rule_goes_on_when_programs_fail() {
    run(|| {
        let mut lab = Lab::new(Capture::Redirect);
        lab.three_backends();
        let web = Service::new("web", 1).with_load_balancer();
        lab.publish(&web, &["a", "b"]);
        let mut programs = Programs::new();
        let tripod = start(&lab, &programs);
        let faults = [
            ProgramFault::Locked,
            ProgramFault::SaveFails,
            ProgramFault::RestoreFails,
            ProgramFault::Hang,
            ProgramFault::Missing,
        ];
        for (number, fault) in (2..).step_by(2).zip(faults) {
            assert_eq!(firewall(&lab), NONE, "{fault:?}: left of the case before");
            programs.break_with(fault);
            let guarded = guarded(number);
            lab.publish(&guarded, &["a"]);
            let cluster = guarded.cluster()[0];
            eventually("its cluster IP", SOON, || {
                if is_open(&lab, cluster) {
                    Ok(())
                } else {
                    Err(tripod.log())
                }
            });
            // One endpoint is added and one removed, now and while rules are retried.
            for endpoints in [["b", "c"], ["a", "b"]] {
                lab.publish(&web, &endpoints);
                for at in [web.cluster()[1], web.ingress()[0]] {
                    follows(&lab, &format!("{fault:?}, {at}"), at, &endpoints);
                }
            }
            plain_service_comes_and_goes(&lab, &tripod, number + 1, fault);
            let livez = (lab.node.addresses[0], 10256).into();
            let answer = get(&lab.node, livez, "/livez").expect("an answer");
            assert!(answer.starts_with("HTTP/1.1 200"), "{fault:?}: {answer}");

            // Callers that must be excluded find nothing there before the rule is applied.
            assert_eq!(firewall(&lab), NONE, "{fault:?}: no fault");
            is_closed(&lab, &guarded, fault);
            programs.repair();
            let began = Instant::now();
            eventually("it is open when the rule is in", LATER, || {
                let open = guarded.ingress().map(|at| is_open(&lab, at));
                let rules = firewall(&lab);
                let early = (0..2).any(|family| open[family] && !rules[family]);
                assert!(
                    !early,
                    "{fault:?}: {open:?} are open, with the rules {rules:?}"
                );
                if open == BOTH {
                    Ok(())
                } else {
                    Err(tripod.log())
                }
            });
            figure(
                &format!("{fault:?}, repaired"),
                format!("{:.1?}", began.elapsed()),
            );
            eventually("who may call is answered", SOON, || {
                let at = guarded.ingress()[0];
                ask(&lab.outside, at).map_err(|error| error.to_string())
            });
            lab.withdraw(&guarded);
            eventually("the rules go", LATER, || match firewall(&lab) {
                NONE => Ok(()),
                _ => Err(tripod.log()),
            });
        }
        assert_eq!(tripod.logged(&["repaired"]), 0, "{}", tripod.log());
        assert_eq!(tripod.logged(&["sync failed"]), 0, "{}", tripod.log());
    });
}

#[test]
#[ignore = "for a guest kernel with IPVS"]
fn what_was_open_before_the_start_follows_when_programs_fail() {
    run(|| {
        let mut lab = Lab::new(Capture::Redirect);
        lab.three_backends();
        let web = Service::new("web", 1);
        let guarded = guarded(2);
        lab.publish(&web, &["a", "b"]);
        lab.publish(&guarded, &["a"]);
        let mut programs = Programs::new();
        drop(start(&lab, &programs));
        let at = guarded.ingress()[0];
        assert!(is_open(&lab, at) && firewall(&lab) == BOTH);
        // A rule is missing, and it is unknown which others exist.
        lab.node.show("iptables -F KUBE-PROXY-FIREWALL");
        programs.break_with(ProgramFault::Locked);
        lab.publish(&web, &["b", "c"]);
        let mut command = node::command(&lab, &["--ipvs-sync-period=1h"]);
        programs.come_first(&mut command);
        let tripod = Tripod::spawn(command);
        eventually("it follows", Duration::from_secs(20), || {
            let found = node::reals(&lab.node, web.cluster()[0]);
            let c = lab.backends[2].direct().to_string();
            if found.iter().any(|real| real.starts_with(&c)) {
                Ok(())
            } else {
                Err(tripod.log())
            }
        });
        assert_eq!(firewall(&lab), [false, true], "no fault");
        eventually("the lock is named", LATER, || {
            match tripod.logged(&["ERROR", "IPv4 rules", "lock"]) {
                0 => Err(tripod.log()),
                _ => Ok(()),
            }
        });
        lab.publish(&guarded, &["b"]);
        for endpoints in [["a", "c"], ["a", "b"]] {
            lab.publish(&web, &endpoints);
            follows(&lab, "after a start", web.cluster()[0], &endpoints);
        }
        follows(&lab, "what is guarded", at, &["b"]);
        // Nothing new is opened: it is unknown what guards it.
        let new = Service::new("new", 3);
        lab.publish(&new, &["a"]);
        eventually("it waits, and is named", LATER, || {
            match tripod.logged(&["not open yet", "default/new"]) {
                0 => Err(tripod.log()),
                _ => Ok(()),
            }
        });
        assert!(!is_open(&lab, new.cluster()[0]));
        programs.repair();
        eventually("all is applied", LATER, || {
            if firewall(&lab) == BOTH && is_open(&lab, new.cluster()[0]) {
                Ok(())
            } else {
                Err(tripod.log())
            }
        });
    });
}
