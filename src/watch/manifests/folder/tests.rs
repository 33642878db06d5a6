use proptest::prelude::*;

use super::*;

mod typing;

fn service(name: &str, cluster_ip: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\n\
         spec: {{clusterIP: {cluster_ip}, ports: [{{port: 80}}]}}\n"
    )
}

fn text(text: &str) -> Found {
    Found::Text(text.to_owned())
}

/// Applies files and returns events (`+name`, `-name`) and reports.
fn take(folder: &mut Folder, files: &[(&str, Found)]) -> (Vec<String>, Vec<String>) {
    let files = files.iter();
    let outcome = folder.take(files.map(|(name, found)| (OsString::from(name), found.clone())));
    let events = outcome.events.iter().map(|event| match event {
        Event::Changed(Object::Service(service)) => format!("+{}", service.name),
        Event::Gone(ObjectName::Service(name)) => format!("-{name}"),
        Event::Changed(Object::EndpointSlice(slice)) => format!("+slice {}", slice.name),
        Event::Gone(ObjectName::EndpointSlice(name)) => format!("-slice {name}"),
        Event::Changed(Object::Node(node)) => format!("+node {}", node.name),
        Event::Gone(ObjectName::Node(name)) => format!("-node {name}"),
        Event::Changed(Object::ServiceCidr(cidr)) => format!("+service cidr {}", cidr.name),
        Event::Gone(ObjectName::ServiceCidr(name)) => format!("-service cidr {name}"),
        Event::Ejected(ejected) => panic!("no object: {ejected:?}"),
    });
    let reports = outcome.reports.into_iter().map(|report| report.text);
    (events.collect(), reports.collect())
}

fn no_words() -> Vec<String> {
    Vec::new()
}

#[test]
fn only_differences_are_sent() {
    let mut folder = Folder::default();
    let two = format!(
        "{}---\n{}",
        service("a", "10.0.0.1"),
        service("b", "10.0.0.2")
    );
    let changed = take(&mut folder, &[("x.yaml", text(&two))]);
    assert_eq!(
        changed,
        (vec!["+default/a".into(), "+default/b".into()], no_words())
    );

    // The same content in other words.
    let same = format!("# changed\n---\n{two}");
    assert_eq!(
        take(&mut folder, &[("x.yaml", text(&same))]),
        Default::default()
    );

    let one_other = format!(
        "{}---\n{}",
        service("a", "10.0.0.1"),
        service("b", "10.0.0.3")
    );
    let changed = take(&mut folder, &[("x.yaml", text(&one_other))]);
    assert_eq!(changed, (vec!["+default/b".into()], no_words()));

    let one_less = service("b", "10.0.0.3");
    let changed = take(&mut folder, &[("x.yaml", text(&one_less))]);
    assert_eq!(changed, (vec!["-default/a".into()], no_words()));

    let changed = take(&mut folder, &[("x.yaml", Found::Gone)]);
    assert_eq!(changed, (vec!["-default/b".into()], no_words()));
    assert_eq!(folder.files().count(), 0);
}

#[test]
fn an_object_that_moves_between_files_does_not_go_meanwhile() {
    let mut folder = Folder::default();
    take(&mut folder, &[("a.yaml", text(&service("a", "10.0.0.1")))]);
    let moved = [
        ("a.yaml", Found::Gone),
        ("b.yaml", text(&service("a", "10.0.0.1"))),
    ];
    assert_eq!(take(&mut folder, &moved), Default::default());
}

#[test]
fn a_broken_document_does_not_hide_the_others() {
    let mut folder = Folder::default();
    let partly = format!(
        "{}---\nkind: [Service\n---\n{}---\n{}",
        service("a", "10.0.0.1"),
        service("b", "10.0.0.2").replace("port: 80", "port: 0"),
        service("c", "10.0.0.3")
    );
    let (events, reports) = take(&mut folder, &[("x.yaml", text(&partly))]);
    assert_eq!(events, ["+default/a", "+default/c"]);
    assert_eq!(reports.len(), 2, "{reports:?}");
    assert!(
        reports[0].starts_with("x.yaml: document 2, line 6"),
        "{reports:?}"
    );
    assert!(
        reports[0]
            .ends_with("the rest of the file is used, and what cannot be read stays as it was"),
        "{reports:?}"
    );
    assert_eq!(
        reports[1],
        "x.yaml: document 3: Service default/b: spec.ports[0].port is \"0\": a port is a number \
         from 1 to 65535; the rest of the file is used, and what cannot be read stays as it was"
    );
    // It is reported once.
    assert_eq!(
        take(&mut folder, &[("x.yaml", text(&partly))]),
        Default::default()
    );
}

#[test]
fn a_broken_item_of_a_list_does_not_hide_the_others() {
    let item = |name: &str, port: &str| {
        format!(
            "{{\"apiVersion\":\"v1\",\"kind\":\"Service\",\"metadata\":{{\"name\":\"{name}\"}},\
             \"spec\":{{\"clusterIP\":\"10.0.0.1\",\"ports\":[{{\"port\":{port}}}]}}}}"
        )
    };
    let items = [
        item("a", "80"),
        item("b", "\"x\""),
        item("c", "0"),
        item("d", "80"),
    ];
    let list = format!(
        "{{\"apiVersion\":\"v1\",\"kind\":\"List\",\"items\":[\n{}]}}",
        items.join(",\n")
    );
    let (events, reports) = take(&mut Folder::default(), &[("l.json", text(&list))]);
    assert_eq!(events, ["+default/a", "+default/d"]);
    assert_eq!(reports.len(), 2, "{reports:?}");
    let begins = "l.json: document 1, line 3: items[1]: Service default/b: invalid type";
    assert!(reports[0].starts_with(begins), "{reports:?}");
    let begins = "l.json: document 1: items[2]: Service default/c: spec.ports[0].port is \"0\"";
    assert!(reports[1].starts_with(begins), "{reports:?}");
}

/// Joins the documents of a file.
fn file(documents: &[&str]) -> Found {
    text(&documents.join("---\n"))
}

/// The address of each Service in use.
fn in_force(folder: &Folder) -> BTreeMap<String, String> {
    // Of several versions the last one counts.
    let versions = folder.objects.iter();
    versions
        .filter_map(|((key, _), object)| match object {
            Object::Service(service) => {
                let ip = service.serving.as_ref().ok()?.cluster_ips[0];
                Some((key.to_string(), ip.to_string()))
            }
            _ => None,
        })
        .collect()
}

#[test]
fn only_the_broken_object_stays_as_it_was() {
    let [a, b, x] =
        [("a", 1), ("b", 2), ("x", 9)].map(|(name, ip)| service(name, &format!("10.0.0.{ip}")));
    let mut folder = Folder::default();
    take(&mut folder, &[("x.yaml", file(&[&a, &b, &x]))]);
    // A value of the wrong type, and one that is invalid.
    for (broken, reason) in [
        ("eighty", "expected a whole number"),
        ("0", "spec.ports[0].port is"),
    ] {
        // Without b, and with a change of a, which counts at once.
        let a2 = service("a", "10.0.0.3");
        let bad = x.replace("port: 80", &format!("port: {broken}"));
        let (events, reports) = take(&mut folder, &[("x.yaml", file(&[&a2, &bad]))]);
        assert_eq!(events, ["+default/a", "-default/b"]);
        assert_eq!(in_force(&folder)["Service default/x"], "10.0.0.9");
        assert!(
            reports[0].contains(&format!("Service default/x: {reason}")),
            "{reports:?}"
        );
        assert_eq!(
            reports[1..],
            [
                "x.yaml: these objects stay at their last valid version until the invalid part is \
                 corrected or removed: Service default/x"
            ]
        );
        // That it is kept is reported once.
        let (events, reports) = take(&mut folder, &[("x.yaml", file(&[&bad, &a, &b]))]);
        assert_eq!(
            (events.len(), reports.len()),
            (2, 1),
            "{events:?} {reports:?}"
        );
        // It is removed while something else is broken.
        let other = b.replace("port: 80", "port: 0");
        let (events, reports) = take(&mut folder, &[("x.yaml", file(&[&a, &other]))]);
        assert_eq!(events, ["-default/x"]);
        assert_eq!(
            reports.last().map(String::as_str),
            Some("x.yaml: up to date again: Service default/x")
        );
        let (events, reports) = take(&mut folder, &[("x.yaml", file(&[&a, &b, &x]))]);
        assert_eq!(events, ["+default/x"]);
        assert_eq!(
            reports,
            [
                "x.yaml: up to date again: Service default/b",
                "x.yaml: valid again; all of it is used"
            ]
        );
    }
    // The whole file is removed, with the object that was kept.
    let bad = x.replace("port: 80", "port: 0");
    take(&mut folder, &[("x.yaml", file(&[&bad]))]);
    let (events, reports) = take(&mut folder, &[("x.yaml", Found::Gone)]);
    assert_eq!((events, reports.len()), (vec!["-default/x".into()], 1));
}

#[test]
fn what_may_be_in_an_unreadable_part_is_not_removed() {
    let [a, b, c] =
        [("a", 1), ("b", 2), ("c", 3)].map(|(name, ip)| service(name, &format!("10.0.0.{ip}")));
    let nameless = a.replace("{name: a}", "{}").replace("port: 80", "port: x");
    let foreign = a
        .replace("{name: a}", "{name: a, namespace: [x]}")
        .replace("port: 80", "port: x");
    let list = "apiVersion: v1\nkind: List\nitems: [null]\n";
    for unreadable in [
        "kind: [Service\n",
        "kind: Service\n",
        "words\n",
        list,
        &nameless,
        &foreign,
    ] {
        let mut folder = Folder::default();
        take(&mut folder, &[("x.yaml", file(&[&a, &b]))]);
        let changed = service("a", "10.0.0.4");
        let (events, reports) = take(
            &mut folder,
            &[("x.yaml", file(&[unreadable, &changed, &c]))],
        );
        assert_eq!(events, ["+default/a", "+default/c"], "{unreadable}");
        assert!(
            reports[0].ends_with(
                "; the rest of the file is used, and what cannot be read stays as it was"
            ),
            "{reports:?}"
        );
        assert_eq!(
            reports[1..],
            [
                "x.yaml: part of the file cannot be read and may contain these objects, which are \
                 not removed until it is corrected: Service default/b"
            ]
        );
        // If nothing in a file can be parsed, everything is kept.
        let (events, reports) = take(&mut folder, &[("x.yaml", text(unreadable))]);
        assert_eq!(events, no_words());
        assert!(
            reports[1].ends_with("corrected: Service default/a, Service default/c"),
            "{reports:?}"
        );
        let (events, reports) = take(
            &mut folder,
            &[("x.yaml", Found::Unreadable("gone mad".into()))],
        );
        assert_eq!(events, no_words());
        assert_eq!(
            reports,
            ["x.yaml: gone mad; its last content stays applied"]
        );
        let (events, reports) = take(&mut folder, &[("x.yaml", file(&[&c]))]);
        assert_eq!(events, ["-default/a", "-default/b"]);
        assert_eq!(
            reports.last().map(String::as_str),
            Some("x.yaml: valid again; all of it is used")
        );
    }
    let unreadable = [("y.yaml", Found::Unreadable("gone mad".into()))];
    let (_, reports) = take(&mut Folder::default(), &unreadable);
    assert_eq!(reports, ["y.yaml: gone mad; it is not used"]);
}

#[test]
fn an_object_that_is_there_thousands_of_times_is_named_once() {
    let documents = vec![service("a", "10.0.0.1"); 5_000].join("---\n");
    let (_, reports) = take(&mut Folder::default(), &[("x.yaml", text(&documents))]);
    assert_eq!(
        reports,
        ["x.yaml: Service default/a is defined 5000 times; the last definition is used"]
    );
}

#[test]
fn the_last_file_by_name_counts() {
    let mut folder = Folder::default();
    let files = [
        ("1.yaml", text(&service("a", "10.0.0.1"))),
        ("2.yaml", text(&service("a", "10.0.0.2"))),
    ];
    let report = "Service default/a is in 1.yaml and in 2.yaml: the latter is used, because its file name \
         sorts last";
    assert_eq!(
        take(&mut folder, &files),
        (vec!["+default/a".into()], vec![report.into()])
    );
    // Changes in the file that does not count have no effect, and nothing is reported again.
    let loser = [("1.yaml", text(&service("a", "10.0.0.3")))];
    assert_eq!(take(&mut folder, &loser), Default::default());
    let winner = [("2.yaml", text(&service("a", "10.0.0.4")))];
    assert_eq!(
        take(&mut folder, &winner),
        (vec!["+default/a".into()], no_words())
    );
    // Without the winner the other one counts.
    let gone = [("2.yaml", Found::Gone)];
    assert_eq!(
        take(&mut folder, &gone),
        (vec!["+default/a".into()], no_words())
    );
    let ips: Vec<_> = folder
        .objects
        .values()
        .map(|object| match object {
            Object::Service(service) => service.serving.as_ref().map(|s| s.cluster_ips[0]),
            _ => panic!("only Services here"),
        })
        .collect();
    assert_eq!(ips, [Ok("10.0.0.3".parse().expect("address"))]);
}

#[test]
fn oddities_are_named() {
    let mut folder = Folder::default();
    let odd = format!(
        "{0}---\n{0}---\napiVersion: v1\nkind: Pod\n---\napiVersion: v1\nkind: Pod\n---\n\
         apiVersion: v1\nkind: Service\nmetadata: {{name: b, namespace: other}}\n\
         spec: {{clusterIP: 10.0.0.2, externalIPs: [nowhere, 'fd00::1', 192.0.2.1], ports: [{{port: 80}}]}}\n",
        service("a", "10.0.0.1")
    );
    let (events, reports) = take(&mut folder, &[("x.yml", text(&odd))]);
    assert_eq!(events, ["+default/a", "+other/b"]);
    assert_eq!(
        reports,
        [
            "x.yml: v1 Pod is ignored: a service proxy reads v1 Service, v1 Node, \
             discovery.k8s.io/v1 EndpointSlice and networking.k8s.io/v1 ServiceCIDR",
            "x.yml: document 5: Service other/b: spec.externalIPs[0] is \"nowhere\": not an IP \
             address; ignoring this value",
            "x.yml: document 5: Service other/b: spec.externalIPs[1] is \"fd00::1\": the Service \
             has no IPv6 cluster IP; ignoring this value",
            "x.yml: Service default/a is defined 2 times; the last definition is used",
        ]
    );
}

proptest! {
    /// After any changes of the files, the events so far add up to those of a first scan of the
    /// same files.
    #[test]
    fn events_add_up(steps in prop::collection::vec(
        (0..3_u8, prop::option::of(prop::collection::btree_map(0..4_u8, 1..4_u8, 0..4))),
        1..30,
    )) {
        let mut folder = Folder::default();
        let mut files = BTreeMap::new();
        let mut known = BTreeMap::new();
        for (file, content) in steps {
            let name = OsString::from(format!("{file}.yaml"));
            let found = match content {
                None => Found::Gone,
                Some(services) => {
                    let documents = services.iter();
                    let documents = documents.map(|(n, ip)| service(&format!("s{n}"), &format!("10.0.0.{ip}")));
                    Found::Text(documents.collect::<Vec<_>>().join("---\n"))
                }
            };
            files.insert(name.clone(), found.clone());
            for event in folder.take([(name, found)]).events {
                match event {
                    Event::Changed(Object::Service(service)) => {
                        let old = known.insert(service.name.clone(), Arc::clone(&service));
                        prop_assert_ne!(old, Some(service), "sent without a change");
                    }
                    Event::Gone(ObjectName::Service(name)) => prop_assert!(known.remove(&name).is_some()),
                    _ => prop_assert!(false, "only Services here"),
                }
            }
            let fresh = Folder::default().take(files.clone()).events;
            let fresh: BTreeMap<_, _> = fresh
                .into_iter()
                .filter_map(|event| match event {
                    Event::Changed(Object::Service(service)) => Some((service.name.clone(), service)),
                    _ => None,
                })
                .collect();
            prop_assert_eq!(&known, &fresh);
        }
    }

    /// After any change of a file, readable objects are in use, those that may be in the rest are
    /// unchanged, and all others are gone.
    #[test]
    fn what_is_in_force_follows_from_the_file_and_what_it_breaks(versions in prop::collection::vec(
        (prop::collection::btree_map(0..5_u8, (1..4_u8, prop::bool::weighted(0.2)), 0..5), prop::bool::weighted(0.2)),
        1..12,
    )) {
        let mut folder = Folder::default();
        let mut expected: BTreeMap<String, String> = BTreeMap::new();
        for (services, unknown) in versions {
            let mut documents = Vec::from_iter(unknown.then(|| "kind: [\n".to_owned()));
            let mut now = BTreeMap::new();
            for (n, (ip, broken)) in services {
                let (key, ip) = (format!("Service default/s{n}"), format!("10.0.0.{ip}"));
                let document = service(&format!("s{n}"), &ip);
                if broken {
                    documents.push(document.replace("port: 80", "port: x"));
                    now.extend(expected.remove_entry(&key));
                } else {
                    documents.push(document);
                    now.insert(key, ip);
                }
            }
            if unknown {
                for (key, ip) in expected {
                    now.entry(key).or_insert(ip);
                }
            }
            expected = now;
            take(&mut folder, &[("x.yaml", text(&documents.join("---\n")))]);
            prop_assert_eq!(in_force(&folder), expected.clone());
        }
    }
}
