use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::{log::lines, services::Kind, watch::api::followed};

const LINES: [&str; 6] = [
    r#"{"type":"ADDED","object":{"metadata":{"name":"a","namespace":"b","resourceVersion":"7",
        "annotations":{"tripod.proxy/weight":"3"}},"spec":{"type":"LoadBalancer",
        "clusterIPs":["10.0.0.1","fd00::1"],"ports":[{"name":"x","port":80,"nodePort":30080}],
        "externalIPs":["192.0.2.1"],"sessionAffinity":"ClientIP",
        "loadBalancerSourceRanges":["10.0.0.0/8"]},
        "status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.2","ipMode":"VIP"}]}}}}"#,
    r#"{"type":"MODIFIED","object":{"metadata":{"name":"a-1","namespace":"b","resourceVersion":
        "8","labels":{"kubernetes.io/service-name":"a"}},"addressType":"IPv4","ports":[{"name":
        "x","port":8080,"protocol":"TCP"}],"endpoints":[{"addresses":["10.1.0.1"],"conditions":
        {"ready":true},"hints":{"forZones":[{"name":"z"}]},"nodeName":"n"}]}}"#,
    r#"{"type":"ADDED","object":{"metadata":{"name":"n","resourceVersion":"8","labels":{
        "topology.kubernetes.io/zone":"z"},"annotations":{"tripod.proxy/weight":"3"}},"spec":{
        "podCIDRs":["10.244.0.0/24","fd00:244::/64"],"taints":[{"key":
        "ToBeDeletedByClusterAutoscaler","effect":"NoSchedule"}]},"status":{"addresses":[{
        "type":"InternalIP","address":"192.0.2.10"}]}}}"#,
    r#"{"type":"ADDED","object":{"metadata":{"name":"kubernetes","resourceVersion":"8"},
        "spec":{"cidrs":["10.96.0.0/12","fd00:96::/108"]},"status":{"conditions":[{"type":
        "Ready","status":"True"}]}}}"#,
    r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9",
        "annotations":{"k8s.io/initial-events-end":"true"}}}}"#,
    r#"{"type":"ERROR","object":{"kind":"Status","code":410,"message":"too old"}}"#,
];

#[test]
fn an_object_that_cannot_be_used_is_logged_once_and_when_it_can() {
    let settings = Settings::for_node("node");
    let followed = &followed(&settings)[0];
    let (names, known) = Default::default();
    let mut intake = Intake::new(followed, &names, &known, &settings);
    let log = lines(0, || {
        for (version, ip) in [(1, "x"), (2, "x"), (3, "192.0.2.1"), (4, "192.0.2.1")] {
            let event = json!({"type": "MODIFIED", "object": {
                "metadata": {"name": "a", "namespace": "b", "resourceVersion": version.to_string()},
                "spec": {"clusterIP": "10.0.0.1", "ports": [{"port": 80}], "externalIPs": [ip]},
            }});
            let read = intake.line(event.to_string().as_bytes());
            assert!(read.is_ok(), "{ip}");
        }
    });
    let [wrong, over] = &log[..] else {
        panic!("{log:#?}");
    };
    assert!(
        wrong.contains("Service b/a: ") && wrong.contains("externalIPs"),
        "{wrong}"
    );
    assert!(
        over.contains("Service b/a: the object is valid again"),
        "{over}"
    );
}

/// Returns a Service that can be used.
fn item(name: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "b", "resourceVersion": "7"},
        "spec": {"clusterIP": "10.0.0.1", "ports": [{"port": 80}]},
    })
}

#[test]
fn warnings_of_objects_that_a_list_lacks_are_forgotten() {
    let settings = Settings::for_node("node");
    let followed = &followed(&settings)[0];
    let (names, known) = Default::default();
    let mut intake = Intake::new(followed, &names, &known, &settings);
    let odd = |name: &str| {
        let mut item = item(name);
        item["spec"]["externalIPs"] = json!(["x"]);
        item
    };
    let log = lines(0, || {
        for items in [vec![odd("a"), odd("c")], vec![odd("c")]] {
            intake.begin_list();
            let page = json!({"metadata": {"resourceVersion": "8"}, "items": items});
            assert!(super::page(&mut intake, page.to_string().as_bytes()).is_ok());
        }
    });
    assert_eq!(log.len(), 2, "each is logged once: {log:#?}");
    let left: Vec<_> = intake.warnings.keys().map(ToString::to_string).collect();
    assert_eq!(left, ["Service b/c"]);
}

/// A label that is no text, an invalid time, annotations that are not a map.
#[test]
fn an_object_whose_metadata_cannot_be_read_is_left_out_alone() {
    for (field, value) in [
        ("labels", json!({"a": 1})),
        ("creationTimestamp", json!("yesterday")),
        ("annotations", json!(7)),
    ] {
        let settings = Settings::for_node("node");
        let followed = &followed(&settings)[0];
        let (names, known) = Default::default();
        let mut intake = Intake::new(followed, &names, &known, &settings);
        let mut odd = item("odd");
        odd["metadata"][field] = value;
        let log = lines(0, || {
            intake.begin_list();
            let items = [item("a"), odd.clone(), item("c")];
            let page = json!({"metadata": {"resourceVersion": "8"}, "items": items});
            assert!(
                super::page(&mut intake, page.to_string().as_bytes()).is_ok(),
                "{field}"
            );
        });
        assert_eq!(log.len(), 1, "{log:#?}");
        assert!(
            log[0].contains("Service b/odd: it cannot be read"),
            "{log:#?}"
        );
        assert_eq!(intake.version(), Some("8"));
        odd["metadata"]["resourceVersion"] = json!("9");
        for kind in ["BOOKMARK", "DELETED"] {
            let event = json!({"type": kind, "object": odd});
            let read = intake.line(event.to_string().as_bytes());
            assert!(read.is_ok(), "{field} {kind}");
        }
        assert_eq!(intake.version(), Some("9"));
    }
}

#[test]
fn what_cannot_be_used_is_recorded_until_it_can() {
    let settings = Settings::for_node("node");
    let followed = &followed(&settings)[0];
    let (names, known) = Default::default();
    let mut intake = Intake::new(followed, &names, &known, &settings);
    // A field that is refused, and one that cannot be parsed.
    let refused = |name: &str| {
        let mut item = item(name);
        item["spec"]["externalIPs"] = json!(["192.0.2.1", "x"]);
        item["spec"]["type"] = json!("Cluster");
        item
    };
    let mut unread = item("unread");
    unread["spec"]["ports"] = json!([{"port": "http"}]);
    let list = |intake: &mut Intake<'_>, items: &[Value]| {
        intake.begin_list();
        let page = json!({"metadata": {"resourceVersion": "8"}, "items": items});
        assert!(super::page(intake, page.to_string().as_bytes()).is_ok());
    };
    let line = |intake: &mut Intake<'_>, kind: &str, mut object: Value| {
        object["metadata"]["resourceVersion"] = json!("9");
        let event = json!({"type": kind, "object": object}).to_string();
        assert!(intake.line(event.as_bytes()).is_ok());
    };
    let log = lines(0, || {
        list(
            &mut intake,
            &[item("good"), refused("a"), refused("c"), unread],
        );
        line(&mut intake, "MODIFIED", refused("good"));
    });
    assert_eq!(log.len(), 4, "{log:#?}");
    assert!(log[0].contains("it is not used"), "{log:#?}");
    assert!(
        log[3].contains("last valid version stays in use"),
        "{log:#?}"
    );
    let unusable = || {
        let unusable = settings.health.unusable().into_iter();
        let shown = unusable
            .map(|(name, unusable)| (name.to_string(), unusable.stays, unusable.trouble.why));
        shown.collect::<Vec<_>>()
    };
    let found = unusable();
    let stays: Vec<_> = found
        .iter()
        .map(|(name, stays, _)| (&**name, *stays))
        .collect();
    let expected = [
        ("Service b/a", false),
        ("Service b/c", false),
        ("Service b/good", true),
        ("Service b/unread", false),
    ];
    assert_eq!(stays, expected);
    assert!(
        found[0].2.starts_with("spec.type is \"Cluster\": "),
        "{found:?}"
    );
    assert!(found[3].2.starts_with("it cannot be read: "), "{found:?}");
    let named = ObjectName::new(Kind::Service, Some("b"), Some("a")).expect("a name");
    let named = settings.health.unusable_object(&named);
    let addresses = named.expect("it is recorded").addresses;
    assert_eq!(addresses, [[10, 0, 0, 1], [192, 0, 2, 1]].map(IpAddr::from));
    line(&mut intake, "MODIFIED", item("a"));
    line(&mut intake, "DELETED", refused("c"));
    assert_eq!(unusable().len(), 2);
    list(&mut intake, &[refused("good")]);
    let [(name, stays, _)] = &unusable()[..] else {
        panic!("{:?}", unusable());
    };
    assert!(name == "Service b/good" && *stays);
    list(&mut intake, &[]);
    assert_eq!(unusable(), []);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn no_line_makes_the_reader_panic(
        line in 0..LINES.len(),
        changes in proptest::collection::vec((any::<usize>(), any::<u8>()), 0..6),
        cut in proptest::option::of(any::<usize>()),
    ) {
        let mut bytes = LINES[line].as_bytes().to_vec();
        for (at, byte) in changes {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        bytes.truncate(cut.map_or(bytes.len(), |cut| cut % bytes.len()));
        read_anything(&bytes);
    }
}
