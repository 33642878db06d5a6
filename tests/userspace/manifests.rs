//! Bad input is named, once, and leaves everything else running.

use super::{comes_to_reach, reaches};
use crate::lab::{Lab, Service, ask};

on_local_capture!(
    oddities_are_named_once_and_the_rest_works,
    a_broken_edit_keeps_the_last_good_version,
    a_swapped_volume_is_followed,
    yaml_with_several_documents_works,
);

const YAML: &str = include_str!("hello.yaml");

fn oddities_are_named_once_and_the_rest_works(lab: &mut Lab) {
    let web = Service::new("web", 10);
    lab.three_backends().publish_all(&web);
    lab.write(
        "broken.yaml",
        "apiVersion: v1\nkind: Service\nmetadata: {name: broken\n",
    );
    lab.write(
        "unknown.yaml",
        "apiVersion: example.org/v1\nkind: Gadget\nmetadata: {name: g}\n",
    );
    lab.write("notes.txt", "not a manifest");
    lab.publish(&Service::new("empty", 11), &[]);
    lab.write(
        "orphan.yaml",
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {name: orphan-1, namespace: default, labels: {kubernetes.io/service-name: orphan}}\n\
         addressType: IPv4\nports: [{name: tcp, port: 8080, protocol: TCP}]\n\
         endpoints: [{addresses: [10.244.0.11]}]\n",
    );
    let tripod = lab.tripod();
    let oddities: [&[&str]; 4] = [
        &["broken.yaml"],
        &["Gadget"],
        &["default/empty"],
        &["orphan"],
    ];
    for words in oddities {
        tripod.logs_once(words);
    }
    for to in web.cluster() {
        reaches("the Service in order", &["a", "b", "c"], || {
            ask(&lab.client, to)
        });
    }
    // Another change, so that everything is compared again.
    lab.publish(&web, &["a"]);
    comes_to_reach("the change", &["a"], || ask(&lab.client, web.cluster()[0]));
    for words in oddities {
        tripod.logs_once(words);
    }
    assert!(!tripod.log().contains("notes.txt"));
}

fn a_broken_edit_keeps_the_last_good_version(lab: &mut Lab) {
    let web = Service::new("web", 10);
    lab.three_backends();
    lab.publish(&web, &["a"]);
    let tripod = lab.tripod();
    reaches("at first", &["a"], || ask(&lab.client, web.cluster()[0]));
    lab.write("web.json", "{\"apiVersion\": \"v1\", \"kind\": ");
    tripod.logs_once(&["web.json: document 1"]);
    reaches("after the broken edit", &["a"], || {
        ask(&lab.client, web.cluster()[0])
    });
    lab.publish(&web, &["b"]);
    comes_to_reach("after its repair", &["b"], || {
        ask(&lab.client, web.cluster()[0])
    });
}

/// As kubelet updates a ConfigMap volume: files are links through `..data`,
/// which is swapped as a whole.
fn a_swapped_volume_is_followed(lab: &mut Lab) {
    use std::os::unix::fs::symlink;
    let web = Service::new("web", 10);
    lab.three_backends();
    let folder = lab.manifests().to_owned();
    let version = |name: &str, endpoints: &[&str]| {
        lab.publish(&web, endpoints);
        std::fs::create_dir(folder.join(name)).expect("a version");
        std::fs::rename(folder.join("web.json"), folder.join(name).join("web.json"))
            .expect("moving a manifest");
        symlink(name, folder.join("..data_tmp")).expect("a link");
        std::fs::rename(folder.join("..data_tmp"), folder.join("..data")).expect("the swap");
    };
    version("..2026_01", &["a"]);
    symlink("..data/web.json", folder.join("web.json")).expect("a link");
    let _tripod = lab.tripod();
    reaches("at first", &["a"], || ask(&lab.client, web.cluster()[0]));

    // `publish` renames over the file of that name: prepare elsewhere.
    let text = std::fs::read_to_string(folder.join("web.json")).expect("the manifest");
    let (a, b) = ("10.244.0.11", "10.244.0.12");
    std::fs::create_dir(folder.join("..2026_02")).expect("a version");
    std::fs::write(folder.join("..2026_02/web.json"), text.replace(a, b)).expect("a manifest");
    symlink("..2026_02", folder.join("..data_tmp")).expect("a link");
    std::fs::rename(folder.join("..data_tmp"), folder.join("..data")).expect("the swap");
    std::fs::remove_dir_all(folder.join("..2026_01")).expect("the old version");
    comes_to_reach("after the swap", &["b"], || {
        ask(&lab.client, web.cluster()[0])
    });
}

fn yaml_with_several_documents_works(lab: &mut Lab) {
    lab.three_backends();
    lab.write("hello.yml", YAML);
    let tripod = lab.tripod();
    let to = ([10, 96, 0, 20], 80).into();
    reaches("the example", &["a", "b", "c"], || ask(&lab.client, to));
    assert_eq!(
        tripod.logged(&["hello.yml"]),
        0,
        "nothing odd about it:\n{}",
        tripod.log()
    );
    lab.remove("hello.yml");
    super::comes_to_fail("a removed file", || ask(&lab.client, to));
}
