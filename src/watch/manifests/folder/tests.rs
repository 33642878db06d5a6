use proptest::prelude::*;

use super::*;

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
        Event::Service(service) => format!("+{}", service.name),
        Event::ServiceGone(name) => format!("-{name}"),
        Event::EndpointSlice(slice) => format!("+slice {}", slice.name),
        Event::EndpointSliceGone(name) => format!("-slice {name}"),
        Event::Node(node) => format!("+node {}", node.name),
        Event::NodeGone(name) => format!("-node {name}"),
        Event::ServiceCidr(cidr) => format!("+service cidr {}", cidr.name),
        Event::ServiceCidrGone(name) => format!("-service cidr {name}"),
        Event::Ejected(ejected) => panic!("no object: {ejected:?}"),
    });
    let reports = outcome.reports.iter().map(ToString::to_string);
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

    // The same meaning in other words.
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
        reports[0].ends_with("the rest of the file is used"),
        "{reports:?}"
    );
    assert_eq!(
        reports[1],
        "x.yaml: document 3: Service default/b: spec.ports[0].port is \"0\": a port is a number \
         from 1 to 65535; the rest of the file is used"
    );
    // It is reported once.
    assert_eq!(
        take(&mut folder, &[("x.yaml", text(&partly))]),
        Default::default()
    );
    // While it was never good, its good documents count.
    let less = format!("{}---\nkind: [Service\n", service("a", "10.0.0.1"));
    let (events, reports) = take(&mut folder, &[("x.yaml", text(&less))]);
    assert_eq!(
        (events.as_slice(), reports.len()),
        (&["-default/c".to_owned()][..], 1)
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

#[test]
fn the_last_good_version_stays_until_the_file_is_good_again() {
    let mut folder = Folder::default();
    let good = service("a", "10.0.0.1");
    take(&mut folder, &[("x.yaml", text(&good))]);
    let broken = format!("{}---\nkind: [\n", service("b", "10.0.0.2"));
    let (events, reports) = take(&mut folder, &[("x.yaml", text(&broken))]);
    assert_eq!(events, no_words());
    assert!(
        reports[0].ends_with("the file's last good version stays in force"),
        "{reports:?}"
    );
    let (events, reports) = take(
        &mut folder,
        &[("x.yaml", Found::Unreadable("gone mad".into()))],
    );
    assert_eq!(events, no_words());
    assert_eq!(
        reports,
        ["x.yaml: gone mad; the file's last good version stays in force"]
    );
    let (events, reports) = take(&mut folder, &[("x.yaml", text(&service("b", "10.0.0.2")))]);
    assert_eq!(events, ["-default/a", "+default/b"]);
    assert_eq!(reports, ["x.yaml: good again"]);
}

#[test]
fn the_last_file_by_name_counts() {
    let mut folder = Folder::default();
    let files = [
        ("1.yaml", text(&service("a", "10.0.0.1"))),
        ("2.yaml", text(&service("a", "10.0.0.2"))),
    ];
    let report =
        "Service default/a is in 1.yaml and in 2.yaml: the latter counts, being last by name";
    assert_eq!(
        take(&mut folder, &files),
        (vec!["+default/a".into()], vec![report.into()])
    );
    // Changes in the file that does not count change nothing, and nothing is
    // reported again.
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
    let events = folder.versions.values().filter_map(Versions::winner);
    let ips: Vec<_> = events
        .map(|(_, object)| match object {
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
            "x.yml: Service default/a is there more than once: the last one counts",
            "x.yml: v1 Pod is ignored: a service proxy reads v1 Service, v1 Node, \
             discovery.k8s.io/v1 EndpointSlice and networking.k8s.io/v1 ServiceCIDR",
            "x.yml: document 5: Service other/b: spec.externalIPs[0] is \"nowhere\": not an IP \
             address; this value is left out",
            "x.yml: document 5: Service other/b: spec.externalIPs[1] is \"fd00::1\": the Service \
             has no IPv6 cluster IP; this value is left out",
        ]
    );
}

proptest! {
    /// Whatever happens to the files, the events sent so far add up to those of
    /// a first scan of the same files.
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
                    Event::Service(service) => {
                        let old = known.insert(service.name.clone(), Arc::clone(&service));
                        prop_assert_ne!(old, Some(service), "sent without a change");
                    }
                    Event::ServiceGone(name) => prop_assert!(known.remove(&name).is_some()),
                    _ => prop_assert!(false, "only Services here"),
                }
            }
            let fresh = Folder::default().take(files.clone()).events;
            let fresh: BTreeMap<_, _> = fresh
                .into_iter()
                .filter_map(|event| match event {
                    Event::Service(service) => Some((service.name.clone(), service)),
                    _ => None,
                })
                .collect();
            prop_assert_eq!(&known, &fresh);
        }
    }
}
