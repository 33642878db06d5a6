//! Bad input is reported once, and everything else keeps working.

use std::fs;

use super::{SOON, comes_to_reach, reaches};
use crate::lab::{Lab, Service, Tripod, ask, eventually, tripod_binary};

on_local_capture!(
    oddities_are_named_once_and_the_rest_works,
    a_broken_edit_keeps_the_last_good_version,
    a_swapped_volume_is_followed,
    yaml_with_several_documents_works,
    files_are_read_regularly_where_inotify_is_used_up,
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

/// Like kubelet's updates of a ConfigMap volume: files are links through `..data`, which is swapped
/// as a whole.
fn a_swapped_volume_is_followed(lab: &mut Lab) {
    use std::os::unix::fs::symlink;
    let web = Service::new("web", 10);
    lab.three_backends();
    let folder = lab.manifests().to_owned();
    let version = |name: &str, endpoints: &[&str]| {
        lab.publish(&web, endpoints);
        fs::create_dir(folder.join(name)).expect("a version");
        fs::rename(folder.join("web.json"), folder.join(name).join("web.json"))
            .expect("moving a manifest");
        symlink(name, folder.join("..data_tmp")).expect("a link");
        fs::rename(folder.join("..data_tmp"), folder.join("..data")).expect("the swap");
    };
    version("..2026_01", &["a"]);
    symlink("..data/web.json", folder.join("web.json")).expect("a link");
    let _tripod = lab.tripod();
    reaches("at first", &["a"], || ask(&lab.client, web.cluster()[0]));

    // `publish` renames over the file of that name, so the new version is prepared elsewhere.
    let text = fs::read_to_string(folder.join("web.json")).expect("the manifest");
    let (a, b) = ("10.244.0.11", "10.244.0.12");
    fs::create_dir(folder.join("..2026_02")).expect("a version");
    fs::write(folder.join("..2026_02/web.json"), text.replace(a, b)).expect("a manifest");
    symlink("..2026_02", folder.join("..data_tmp")).expect("a link");
    fs::rename(folder.join("..data_tmp"), folder.join("..data")).expect("the swap");
    fs::remove_dir_all(folder.join("..2026_01")).expect("the old version");
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

/// Limits of inotify are per user, whose other programs may have used them up.
fn files_are_read_regularly_where_inotify_is_used_up(lab: &mut Lab) {
    let file = "/run/config.yaml";
    let text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n\
                mode: userspace\nhostnameOverride: node\n\
                healthzBindAddress: 127.0.0.1:11000\nmetricsBindAddress: 127.0.0.1:12000\n";
    for (limit, says) in [
        ("max_inotify_instances", "the file is read every 10s"),
        ("max_inotify_watches", "scanning every 1 s instead"),
    ] {
        fs::write(file, text).expect("a configuration file");
        let manifests = lab.manifests().to_owned();
        let mut command = lab.node.command("unshare");
        let limited =
            format!("echo 0 > /proc/sys/user/{limit} && ip link set lo up && exec \"$@\"");
        command.args(["-Urn", "sh", "-c", &limited, "sh"]);
        command
            .arg(tripod_binary())
            .args(["--config", file, "--userspace-capture=local"]);
        command.arg("--manifests").arg(&manifests);
        let mut tripod = Tripod::spawn(command);
        let comes = |tripod: &Tripod, words: &str| {
            eventually(words, 4 * SOON, || match tripod.logged(&[words]) {
                0 => Err(tripod.log()),
                _ => Ok(()),
            });
        };
        comes(&tripod, says);
        comes(&tripod, "scanning every 1 s instead");
        comes(&tripod, "INFO serving");
        lab.write("broken.yaml", "kind: [");
        comes(&tripod, "broken.yaml");
        fs::write(file, format!("{text}oomScoreAdj: -998\n")).expect("a change");
        comes(&tripod, "has changed: ending");
        assert!(!tripod.ended().success());
        fs::remove_file(manifests.join("broken.yaml")).expect("it is there");
    }
}
