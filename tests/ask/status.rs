//! `tripod status`.

use std::net::TcpListener;

use serde_json::{Value, json};

use super::{Printed, SOON, started, started_in, started_in_with, status, tripod};
use crate::lab::{
    Capture, Lab, ProgramFault, Programs, Service, Tripod, eventually, get, run, tripod_binary,
};

/// Waits until `tripod status` exits with `code`.
fn comes_to_exit(lab: &Lab, code: i32) -> Printed {
    eventually(&format!("it exits with {code}"), SOON, || {
        match tripod(&lab.node, &["status"]) {
            printed if printed.status == Some(code) => Ok(printed),
            printed => Err(format!("{printed:?}")),
        }
    })
}

/// A Service with health-check node port 30600.
fn balanced() -> Service {
    Service::new("balanced", 2)
        .spec("type", json!("LoadBalancer"))
        .spec("externalTrafficPolicy", json!("Local"))
        .spec("healthCheckNodePort", json!(30600))
}

#[test]
fn a_node_that_falls_back_to_userspace_mode_warns_of_network_policies() {
    run(|| {
        let mut lab = Lab::new(Capture::Local);
        let web = Service::new("web", 1);
        lab.add_backends(&["a"]).publish(&web, &["a"]);
        let words = "NetworkPolicies are not enforced for calls through Services on this node";
        let says = |mode: &str, without: &[&str], times: usize| {
            let flags = [without, &["--userspace-drain-timeout=1s"]].concat();
            let mut running = started_in_with(&lab, mode, &flags);
            if times == 1 {
                running.logs_once(&["WARN", words]);
            }
            let printed = tripod(&lab.node, &["status"]);
            let lost = status(&lab)["mode"]["lost"].to_string();
            running.terminate();
            assert_eq!(
                running.logged(&["WARN", words]),
                times,
                "{mode} {without:?}"
            );
            assert_eq!(lost.contains(words), times == 1, "{lost}");
            assert_eq!(printed.text.contains(words), times == 1, "{printed:?}");
            assert_eq!(printed.status, Some(0), "{printed:?}");
        };
        says("nftables", &["--without=nft,nat"], 1);
        // This is iptables mode.
        says("nftables", &["--without=nft"], 0);
        // This mode was requested.
        says("userspace", &[], 0);
    });
}

#[test]
fn a_healthy_proxy_says_what_it_is() {
    Lab::run(|lab| {
        let web = Service::new("web", 1);
        lab.publish_all(&web);
        let running = started(lab, &[]);
        let printed = tripod(&lab.node, &["status"]);
        assert_eq!(printed.status, Some(0), "{printed:?}");
        let pid = running.pid();
        for words in [
            "Tripod 0.1.0 on node node is healthy",
            "mode           userspace",
            "objects        manifests in /run/manifests",
            "last sync      IPv4 ",
            "               IPv6 ",
            "serving        1 Service, 4 ServicePorts, 12 of 12 endpoints in use",
        ] {
            assert!(printed.text.contains(words), "no {words:?} in {printed:?}");
        }
        for absent in ["why  ", "failing", "unsupported", "conflicts", "\x1b["] {
            assert!(!printed.text.contains(absent), "{absent:?} in {printed:?}");
        }

        let answer = status(lab);
        let counts = json!({
            "services": 1, "servicePorts": 4, "endpoints": 12, "endpointsInUse": 12,
        });
        assert_eq!(answer["counts"], counts);
        assert_eq!(answer["healthy"], true);
        assert_eq!(answer["pid"], pid);
        let kinds = json!([
            {"name": "manifests", "complete": true, "required": true, "trouble": null, "faults": []},
        ]);
        assert_eq!(answer["objects"]["kinds"], kinds);
        for sync in answer["syncs"].as_array().expect("a list") {
            assert!(sync["last"]["seconds"].as_f64().is_some(), "{sync}");
            assert_eq!(
                (&sync["trouble"], &sync["overdue"]),
                (&Value::Null, &json!(false))
            );
        }
        // The other forms have the same content.
        let yaml = tripod(&lab.node, &["status", "--output", "yaml"]);
        let yaml: Value = serde_saphyr::from_str(&yaml.text).expect("YAML");
        assert_eq!(yaml["counts"], counts);
        let wide = tripod(&lab.node, &["status", "-o", "wide"]);
        assert!(wide.text.contains("manifests: known"), "{wide:?}");
    });
}

/// Services that cannot all be served: `first` has the only local port, `late` gets none. `odd`
/// requests a feature that userspace mode lacks, and an address of `first`.
#[test]
fn what_is_not_in_force_has_its_reason() {
    run(|| {
        let mut lab = Lab::new(Capture::Redirect);
        lab.add_backends(&["a"]);
        let [first, late] = [Service::new("first", 1), Service::new("late", 2)];
        let first = first.with_external_ip();
        lab.publish_all(&first);
        let mut programs = Programs::new();
        let mut command = lab.node.command(tripod_binary());
        programs.come_first(&mut command);
        command
            .args([
                "--proxy-port-range=20000-20000",
                "--iptables-sync-period=10m",
            ])
            .arg("--conntrack-max-per-core=0");
        let running = Tripod::start_as(&lab, command);
        assert_eq!(status(&lab)["healthy"], true);

        lab.publish_all(&late.annotated("tripod.proxy/forwarding", "dr"));
        let external = first.external().map(|address| address.ip().to_string());
        let odd = Service::new("odd", 3).spec("externalIPs", json!(external));
        lab.publish_all(&odd);
        let answer = eventually("Services fail", SOON, || {
            let answer = status(&lab);
            match answer["failing"]["total"].as_u64() {
                Some(8) => Ok(answer),
                _ => Err(format!("{answer:#}\n{}", running.log())),
            }
        });
        assert_eq!(answer["healthy"], false);
        let failing = &answer["failing"]["items"][0];
        assert_eq!(failing["servicePort"], "default/late:tcp", "{answer:#}");
        let why = failing["why"].as_str().expect("a reason");
        assert!(why.contains("--proxy-port-range"), "{why}");
        let unsupported = &answer["unsupported"]["items"][0];
        assert_eq!(unsupported["service"], "default/late");
        assert_eq!(unsupported["what"], "tripod.proxy/forwarding");
        let conflict = &answer["conflicts"]["items"][0];
        assert_eq!(conflict["servicePort"], "default/odd:tcp");
        assert_eq!(conflict["owner"], "default/first:tcp");

        let printed = tripod(&lab.node, &["status"]);
        assert_eq!(printed.status, Some(1), "{printed:?}");
        for words in [
            "is not healthy",
            "8 things are not applied",
            "failing        default/late:tcp TCP IPv4: ",
            "unsupported    default/late tripod.proxy/forwarding: ",
            "conflicts      default/odd:tcp TCP: external IP 198.51.100.1:80 ",
        ] {
            assert!(printed.text.contains(words), "no {words:?} in {printed:?}");
        }
        let of_service = tripod(&lab.node, &["services", "default/late"]);
        assert!(of_service.text.contains("not applied: "), "{of_service:?}");

        programs.break_with(ProgramFault::RestoreFails);
        lab.withdraw(&first);
        eventually("the failed sync shows", SOON, || {
            let printed = tripod(&lab.node, &["status"]);
            let words = ["the last sync of IPv4 failed: ", "; failing since "];
            let missing = words.iter().find(|words| !printed.text.contains(**words));
            missing.map_or(Ok(()), |_| Err(printed.text.clone()))
        });
        programs.repair();
        lab.withdraw(&odd);
        eventually("it recovers", 3 * SOON, || match status(&lab) {
            answer if answer["healthy"] == true => Ok(()),
            answer => Err(format!("{answer:#}")),
        });
    });
}

/// Node ports at primary addresses would silently not be served: the node may have another
/// name.
#[test]
fn a_node_object_that_is_missing_makes_it_unhealthy_where_something_depends_on_it() {
    run(|| {
        let mut lab = Lab::new(Capture::Redirect);
        let web = Service::new("web", 1).with_node_port();
        lab.add_backends(&["a"]).publish(&web, &["a"]);
        let running = started_in(&lab, "nftables");
        let node = |name: &str| {
            let (v4, v6) = (lab.node.addresses[0], lab.node.addresses[1]);
            let addresses = [v4, v6].map(|ip| json!({"type": "InternalIP", "address": ip}));
            let object = json!({
                "apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
                "status": {"addresses": addresses},
            });
            lab.write("node.yaml", &object.to_string());
        };
        node("another");
        let missing = "this node's Node object node is not known: node ports and health-check";
        let text = comes_to_exit(&lab, 1).text;
        assert!(
            text.contains(missing) && text.contains("--hostname-override"),
            "{text}"
        );
        for probe in ["--probe=readiness", "--probe=liveness"] {
            let printed = tripod(&lab.node, &["status", probe]);
            assert_eq!(printed.status, Some(0), "{printed:?}");
        }
        running.logs_once(&[missing]);
        node("node");
        comes_to_exit(&lab, 0);
        running.logs(&["this node's Node object node now has everything that is needed"]);
    });
}

#[test]
fn an_address_of_its_own_that_cannot_be_bound_makes_it_unhealthy() {
    run(|| {
        let mut lab = Lab::new(Capture::Redirect);
        lab.add_backends(&["a"]);
        let taken = lab.node.enter(|| TcpListener::bind("127.0.0.1:10249"));
        let taken = taken.expect("the port is free");
        let running = started(&lab, &[]);
        let printed = tripod(&lab.node, &["status"]);
        assert_eq!(printed.status, Some(1), "{printed:?}\n{}", running.log());
        let words = "cannot serve /metrics on 127.0.0.1:10249: Address already in use";
        assert!(printed.text.contains(words), "{printed:?}");
        let printed = tripod(&lab.node, &["status", "--probe=readiness"]);
        assert_eq!(printed.status, Some(0), "{printed:?}");
        drop(taken);
        comes_to_exit(&lab, 0);
    });
}

#[test]
fn a_health_check_that_cannot_be_served_makes_it_unhealthy() {
    run(|| {
        let mut lab = Lab::new(Capture::Redirect);
        lab.add_backends(&["a"]);
        let taken = lab.node.enter(|| TcpListener::bind("0.0.0.0:30600"));
        let taken = taken.expect("the port is free");
        lab.publish_all(&Service::new("web", 1));
        lab.publish_all(&balanced());
        let running = started(&lab, &[]);
        let printed = comes_to_exit(&lab, 1);
        for words in [
            "1 health-check node port cannot be served",
            "health checks  default/balanced on [::]:30600, since ",
        ] {
            assert!(printed.text.contains(words), "no {words:?} in {printed:?}");
        }
        let failing = &status(&lab)["healthChecksFailing"];
        assert_eq!(failing["total"], 1, "{failing}");
        assert_eq!(failing["items"][0]["service"], "default/balanced");
        let remark = "health-check node port not served on [::]:30600: Address already in use";
        let of = |service| tripod(&lab.node, &["services", service]).text;
        assert!(of("default/balanced").contains(remark));
        assert!(!of("default/web").contains("health-check"));
        let metrics = || {
            let at = ([127, 0, 0, 1], 10249).into();
            get(&lab.node, at, "/metrics").expect("metrics")
        };
        assert!(metrics().contains("tripod_health_check_node_ports_failed 1\n"));
        // Load balancers of other Services depend on it.
        let healthz = get(&lab.node, (lab.node.addresses[0], 10256).into(), "/healthz");
        assert!(healthz.is_ok_and(|answer| answer.contains("\"healthy\":true")));

        drop(taken);
        comes_to_exit(&lab, 0);
        assert!(metrics().contains("tripod_health_check_node_ports_failed 0\n"));
        running.logs(&["health-check node port served now"]);
    });
}

#[test]
fn a_health_check_that_cannot_be_served_at_several_addresses_is_one_port() {
    run(|| {
        let mut lab = Lab::new(Capture::Redirect);
        lab.add_backends(&["a"]);
        let taken = lab.node.enter(|| TcpListener::bind("[::]:30600"));
        let _taken = taken.expect("the port is free");
        lab.publish_all(&balanced());
        let networks = "--nodeport-addresses=0.0.0.0/1,128.0.0.0/1,::/1,8000::/1";
        let running = started(&lab, &[networks]);
        eventually(
            "all are named",
            SOON,
            || match status(&lab)["healthChecksFailing"]["total"].as_u64() {
                Some(2..) => Ok(()),
                total => Err(format!("{total:?}\n{}", running.log())),
            },
        );
        let printed = tripod(&lab.node, &["status"]);
        let words = "1 health-check node port cannot be served";
        assert!(printed.text.contains(words), "{printed:?}");
    });
}

#[test]
fn a_faulty_document_is_named_and_the_rest_is_followed() {
    Lab::run(|lab| {
        lab.publish_all(&Service::new("web", 1));
        let _running = started(lab, &[]);
        for (text, reason) in [
            (
                "kind: Service\napiVersion: v1\nspec: [",
                "document 1, line ",
            ),
            (
                "kind: Servcie\napiVersion: v1\nmetadata: {name: x}\n",
                "document 1: Service default/x: unknown kind \"Servcie\", did you mean Service?",
            ),
        ] {
            lab.write("broken.yaml", text);
            let printed = comes_to_exit(lab, 1);
            let words = format!("manifests: broken.yaml: {reason}");
            assert!(printed.text.contains(&words), "{printed:?}");
            assert!(!printed.text.contains("followed"), "{printed:?}");
            let faults = &status(lab)["objects"]["kinds"][0]["faults"];
            assert_eq!(faults.as_array().map(Vec::len), Some(1), "{faults}");
            // The alert that no object is followed does not fire.
            let at = "127.0.0.1:10249".parse().expect("an address");
            let metrics = get(&lab.node, at, "/metrics").expect("metrics");
            let followed = "tripod_objects_followed{kind=\"manifests\",required=\"true\"} 1";
            assert!(metrics.contains(followed), "{metrics}");
            lab.write("broken.yaml", "");
            comes_to_exit(lab, 0);
        }
    });
}

/// It would look as if everything were removed, but the proxy writes it again.
#[test]
fn cleanup_is_refused_while_a_proxy_runs() {
    Lab::run(|lab| {
        let why = "nothing was removed: Tripod runs on this node (socket /run/tripod/tripod.sock) ";
        let is_refused = || {
            let printed = tripod(&lab.node, &["cleanup"]);
            let is_refused = printed.error.contains(why);
            assert_eq!(printed.status, Some(i32::from(is_refused)), "{printed:?}");
            assert_ne!(
                is_refused,
                printed.error.contains("are left on this node"),
                "{printed:?}"
            );
            is_refused
        };
        assert!(!is_refused());
        let web = Service::new("web", 1);
        lab.publish_all(&web);
        let running = started(lab, &[]);
        let before = lab.node.show("ip rule") + &lab.node.show("iptables-save");
        assert!(is_refused());
        running.freeze();
        assert!(is_refused());
        running.thaw();
        let after = lab.node.show("ip rule") + &lab.node.show("iptables-save");
        let rules = |text: &str| text.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(rules(&before), rules(&after), "{after}");
    });
}

#[test]
fn without_a_proxy_it_says_what_to_do() {
    run(|| {
        let lab = Lab::new(Capture::Redirect);
        for (arguments, words) in [
            (
                &["status"][..],
                &[
                    "no Tripod answers at /run/tripod/tripod.sock",
                    "is Tripod running",
                ][..],
            ),
            (
                &[
                    "services",
                    "--status-socket=/run/elsewhere",
                    "--output=json",
                ],
                &["no Tripod answers at /run/elsewhere"],
            ),
            (
                &["status", "--output=xml"],
                &["xml", "table, wide, json, yaml"],
            ),
            (&["services", "a/b/c"], &["a/b/c", "it must be a namespace"]),
            (&["status", "--proxy-mode=ipvs"], &["--proxy-mode"]),
        ] {
            let printed = tripod(&lab.node, arguments);
            assert_eq!(printed.status, Some(2), "{arguments:?}: {printed:?}");
            assert_eq!(printed.text, "", "{arguments:?}");
            for words in words {
                assert!(printed.error.contains(words), "no {words:?} in {printed:?}");
            }
        }
    });
}
