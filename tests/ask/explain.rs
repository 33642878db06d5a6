//! `tripod explain`. That it is true is tested by the cases of `tests/conformance`.

use serde_json::{Value, json};

use super::{SOON, started, tripod};
use crate::lab::{Lab, Service, eventually};

fn explained(lab: &Lab, arguments: &[&str]) -> Value {
    let arguments = [&["explain", "--output=json"], arguments].concat();
    tripod(&lab.node, &arguments).json()
}

#[test]
fn a_packet_is_followed_to_its_endpoints() {
    Lab::run(|lab| {
        let web = Service::new("web", 1).with_external_ip();
        lab.publish(&web, &["a", "b"]);
        let _running = started(lab, &[]);
        let to = web.cluster()[0].to_string();
        let printed = tripod(&lab.node, &["explain", "--to", &to, "--from", "10.244.0.9"]);
        assert_eq!(printed.status, Some(0), "{printed:?}");
        for words in [
            &*format!("{to}/TCP from 10.244.0.9, in userspace mode:\n"),
            "1. the caller is a pod of the cluster\n",
            "2. it is the cluster IP of default/web:tcp (TCP)\n",
            "2 endpoints take connections",
            "It is sent to one of:\n",
            "50.0 %",
            "for default/web:tcp there is to be:\n  present  ",
        ] {
            assert!(printed.text.contains(words), "no {words:?} in {printed:?}");
        }
        for absent in ["missing", "not sent to", "not as it is to be", "\x1b["] {
            assert!(!printed.text.contains(absent), "{absent:?} in {printed:?}");
        }
        let answer = explained(lab, &["--to", &to]);
        let shares = answer["candidates"].as_array().expect("a list").iter();
        let shares = shares.map(|candidate| candidate["share"].clone());
        assert_eq!(shares.collect::<Vec<_>>(), [json!(0.5), json!(0.5)]);
        assert_eq!(answer["servicePort"], "default/web:tcp");
        assert_eq!(answer["role"], "clusterIP");
    });
}

#[test]
fn who_gets_no_packets_is_named_with_the_reason() {
    Lab::run(|lab| {
        let web = Service::new("web", 1);
        lab.publish(&web, &["a"]);
        let _running = started(lab, &[]);
        let to = web.cluster()[0];
        let other = |port: u16| format!("{}:{port}", to.ip());
        for (destination, verdict, last) in [
            (
                other(to.port()),
                "forwarded",
                "1 endpoint takes connections",
            ),
            (other(99), "notServed", "it is routed as usual"),
            (
                "10.99.0.1:80".to_owned(),
                "notServed",
                "no Service has this address",
            ),
        ] {
            let answer = explained(lab, &["--to", &destination]);
            assert_eq!(answer["verdict"], verdict, "{answer:#}");
            let steps = answer["steps"].as_array().expect("a list");
            let step = steps.last().and_then(Value::as_str).unwrap_or_default();
            assert!(step.contains(last), "{answer:#}");
        }
        lab.publish(&web, &[]);
        let refused = eventually("it is refused", SOON, || {
            let answer = explained(lab, &["--to", &to.to_string()]);
            match answer["verdict"].as_str() {
                Some("refused") => Ok(answer),
                _ => Err(format!("{answer:#}")),
            }
        });
        assert_eq!(refused["candidates"], json!([]));
    });
}

#[test]
fn a_wrong_question_says_what_is_wrong() {
    Lab::run(|lab| {
        lab.publish_all(&Service::new("web", 1));
        let _running = started(lab, &[]);
        for (arguments, status, words) in [
            (&["--to", "10.96.0.1"][..], 2, "10.96.0.10:53/udp"),
            (&["--to", "10.96.0.1:80/icmp"], 2, "10.96.0.10:53/udp"),
            (
                &["--to", "10.96.0.1:80", "--from", "web"],
                2,
                "pod, node or outside",
            ),
            (
                &["--to", "10.96.0.1:80", "--from", "::1"],
                1,
                "different IP families",
            ),
        ] {
            let arguments = [&["explain"], arguments].concat();
            let printed = tripod(&lab.node, &arguments);
            assert_eq!(printed.status, Some(status), "{printed:?}");
            assert!(printed.error.contains(words), "{printed:?}");
        }
    });
}
