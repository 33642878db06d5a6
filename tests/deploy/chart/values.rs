//! Values take effect in the objects, and nonsensical values are refused.

use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{ConfigMap, Secret, ServiceAccount},
    rbac::v1::{ClusterRole, ClusterRoleBinding},
};
use serde_json::{Value, json};

use super::{NEW_CLUSTER, Objects, attempt, name, proxy, refusal, rendered, template};
use crate::deploy::objects::as_understood;

/// Values of everything that can be added to the pods.
const ADDITIONS: [&str; 14] = [
    "flags={--v=2,--strict-proxy-mode}",
    "resources.limits.memory=200Mi",
    "init.resources.limits.memory=100Mi",
    "holder.resources.requests.cpu=1m",
    "nodeSelector.pool=edge",
    "imagePullSecrets[0].name=registry",
    "podLabels.team=net",
    "podLabels.k8s-app=other",
    "podAnnotations.example\\.com/team=net",
    "extraEnv[0].name=HTTPS_PROXY",
    "extraEnv[0].value=http://192.0.2.1:3128",
    "extraVolumes[0].name=extra",
    "extraVolumeMounts[0].name=extra",
    "extraVolumeMounts[0].mountPath=/extra",
];

/// All containers of a DaemonSet, init containers first.
fn containers(set: &Value) -> Vec<&Value> {
    let pod = &set["spec"]["template"]["spec"];
    let lists = ["initContainers", "containers"].map(|list| pod[list].as_array());
    lists.into_iter().flatten().flatten().collect()
}

fn sets(objects: &Objects) -> [&Value; 2] {
    ["kube-proxy", "tripod-holder"].map(|set| &objects[&name("DaemonSet", set)])
}

#[test]
fn every_field_is_one_of_its_type() {
    let values = [
        &NEW_CLUSTER[..],
        &ADDITIONS,
        &[
            "tolerations[0].key=x",
            "updateStrategy.type=OnDelete",
            "surge.enabled=true",
            "monitoring.enabled=true",
        ],
    ];
    let Some(objects) = rendered(&values.concat()) else {
        return;
    };
    let mut checked = 0;
    for ((kind, name), object) in objects {
        let mut plain = object.clone();
        if let Some(data) = plain.get_mut("data").and_then(Value::as_object_mut) {
            for text in data.values_mut() {
                *text = json!(text.to_string());
            }
        }
        let understood = match kind.as_str() {
            "ConfigMap" => as_understood::<ConfigMap>(&plain),
            "ClusterRole" => as_understood::<ClusterRole>(&plain),
            "ClusterRoleBinding" => as_understood::<ClusterRoleBinding>(&plain),
            "DaemonSet" => as_understood::<DaemonSet>(&plain),
            "Secret" => as_understood::<Secret>(&plain),
            "ServiceAccount" => as_understood::<ServiceAccount>(&plain),
            // tests/deploy/monitoring.rs knows their fields.
            "PodMonitor" | "PrometheusRule" => continue,
            other => panic!("no type for {other} in this test"),
        };
        assert_eq!(understood, plain, "{kind} {name}");
        checked += 1;
    }
    assert_eq!(checked, 13);
}

#[test]
fn additions_reach_the_pods() {
    let (Some(with), Some(without)) = (rendered(&ADDITIONS), rendered(&[])) else {
        return;
    };
    let set = proxy(&with);
    for container in containers(set) {
        let command = container["command"].as_array().expect("words");
        assert!(command.ends_with(&[json!("--v=2"), json!("--strict-proxy-mode")]));
        let env = container["env"].as_array().expect("variables");
        let variable = json!({"name": "HTTPS_PROXY", "value": "http://192.0.2.1:3128"});
        assert_eq!((&env[0]["name"], &env[1]), (&json!("NODE_NAME"), &variable));
        let mounts = container["volumeMounts"].as_array().expect("mounts");
        assert_eq!(
            mounts.last(),
            Some(&json!({"name": "extra", "mountPath": "/extra"}))
        );
    }
    let volumes = set["spec"]["template"]["spec"]["volumes"].as_array();
    let volumes = volumes.expect("volumes");
    assert_eq!(volumes.last(), Some(&json!({"name": "extra"})));
    for (set, before) in sets(&with).into_iter().zip(sets(&without)) {
        let template = &set["spec"]["template"];
        let mut labels = before["spec"]["template"]["metadata"]["labels"].clone();
        labels["team"] = json!("net");
        // The selector of the pods does not change.
        assert_eq!(template["metadata"]["labels"], labels);
        let annotations = &template["metadata"]["annotations"];
        assert_eq!(*annotations, json!({"example.com/team": "net"}));
        let pod = &template["spec"];
        assert_eq!(pod["imagePullSecrets"], json!([{"name": "registry"}]));
        assert_eq!(
            pod["nodeSelector"],
            json!({"kubernetes.io/os": "linux", "pool": "edge"})
        );
    }
    let resources = sets(&with).into_iter().flat_map(containers);
    let resources: Vec<&Value> = resources.map(|one| &one["resources"]).collect();
    assert_eq!(
        resources,
        [
            &json!({"limits": {"memory": "100Mi"}}),
            &json!({"limits": {"memory": "200Mi"}}),
            &json!({"requests": {"cpu": "1m"}}),
        ]
    );
}

#[test]
fn what_is_not_wanted_is_left_out() {
    let values = [
        "affinity.nodeAffinity.x=y",
        "updateStrategy.type=OnDelete",
        "holder.enabled=false",
        "serviceAccount.create=false",
        "rbac.create=false",
    ];
    let Some(objects) = rendered(&values) else {
        return;
    };
    let names: Vec<&str> = objects.keys().map(|(kind, _)| kind.as_str()).collect();
    assert_eq!(names, ["DaemonSet"]);
    let spec = &proxy(&objects)["spec"];
    assert_eq!(spec["updateStrategy"], json!({"type": "OnDelete"}));
    let affinity = &spec["template"]["spec"]["affinity"];
    assert_eq!(*affinity, json!({"nodeAffinity": {"x": "y"}}));
}

#[test]
fn the_image_is_repository_with_tag_or_digest() {
    let version = env!("CARGO_PKG_VERSION");
    let digest = format!("sha256:{}", "0123456789abcdef".repeat(4));
    let of_digest = format!("image.digest={digest}");
    for (values, expected) in [
        (
            &[][..],
            format!("registry.example:5000/net/tripod:{version}"),
        ),
        (
            &["image.tag=1.2.3-rc.1"],
            "registry.example:5000/net/tripod:1.2.3-rc.1".to_owned(),
        ),
        (
            &["image.tag=7"],
            "registry.example:5000/net/tripod:7".to_owned(),
        ),
        (
            &["image.tag=latest", &of_digest],
            format!("registry.example:5000/net/tripod@{digest}"),
        ),
    ] {
        let repository = "image.repository=registry.example:5000/net/tripod";
        let values = [&[repository, "image.pullPolicy=Always"], values].concat();
        let Some(objects) = rendered(&values) else {
            return;
        };
        let all: Vec<&Value> = sets(&objects).into_iter().flat_map(containers).collect();
        assert_eq!(all.len(), 3);
        for container in all {
            assert_eq!(container["image"], expected.as_str(), "{values:?}");
            assert_eq!(container["imagePullPolicy"], "Always");
        }
    }
}

/// The recommended labels of Kubernetes
/// (https://kubernetes.io/docs/concepts/overview/working-with-objects/common-labels/), which do not
/// change the pods of a release when its version changes.
#[test]
fn objects_and_pods_have_the_recommended_labels() {
    let Some(objects) = rendered(&["monitoring.enabled=true"]) else {
        return;
    };
    let version = env!("CARGO_PKG_VERSION");
    let of_pods = [
        ("app.kubernetes.io/name", "tripod".to_owned()),
        ("app.kubernetes.io/instance", "tripod".to_owned()),
    ];
    let of_objects = [
        ("app.kubernetes.io/version", version.to_owned()),
        ("app.kubernetes.io/managed-by", "Helm".to_owned()),
        ("helm.sh/chart", format!("tripod-{version}")),
    ];
    let mut components = std::collections::BTreeSet::new();
    for (name, object) in &objects {
        let labels = &object["metadata"]["labels"];
        for (label, value) in of_pods.iter().chain(&of_objects) {
            assert_eq!(labels[label], value.as_str(), "{name:?}");
        }
        let component = &labels["app.kubernetes.io/component"];
        components.insert(component.as_str().expect("a component"));
        let pod = &object["spec"]["template"]["metadata"]["labels"];
        if pod.is_object() {
            for (label, value) in &of_pods {
                assert_eq!(pod[label], value.as_str(), "{name:?}");
            }
            assert_eq!(pod["app.kubernetes.io/component"], *component);
            assert!(of_objects.iter().all(|(label, _)| pod[label].is_null()));
            let selector = object["spec"]["selector"]["matchLabels"].as_object();
            let selected: Vec<&String> = selector.expect("labels").keys().collect();
            assert_eq!(selected, ["k8s-app"], "a selector cannot change");
        }
    }
    assert!(components.is_superset(&["proxy", "holder", "monitoring"].into()));
}

/// Programs that stay running confine themselves as in kustomize, or as requested; the init
/// container, which ends, does not.
#[test]
fn programs_confine_themselves() {
    for (value, expected) in [
        ("confine=files", "--confine=files"),
        ("confine=calls", "--confine=calls"),
        // As in values of an earlier version, with which an upgrade may continue.
        ("confine=null", "--confine=files"),
    ] {
        let values = [value, "flags={--v=2}"];
        let Some(objects) = rendered(&values) else {
            return;
        };
        let confined = |set: &str, of: &str| {
            let set = &objects[&name("DaemonSet", set)];
            let command = set["spec"]["template"]["spec"][of][0]["command"].clone();
            let words: Vec<String> = serde_json::from_value(command).expect("words");
            let flags = words.into_iter().filter(|word| word.contains("confine"));
            flags.collect::<Vec<_>>()
        };
        for set in ["kube-proxy", "tripod-holder"] {
            assert_eq!(confined(set, "containers"), [expected], "{value}: {set}");
        }
        assert!(confined("kube-proxy", "initContainers").is_empty());
    }
}

#[test]
fn another_namespace_needs_a_configuration() {
    let own = [&NEW_CLUSTER[..], &["monitoring.enabled=true"]].concat();
    let named = ["config.existingConfigMap=settings", "surge.enabled=true"];
    for (values, map) in [(&own[..], "kube-proxy"), (&named, "settings")] {
        let Some(objects) = template("helm/tripod", "proxies", values) else {
            return;
        };
        for ((kind, name), object) in &objects {
            let namespace = &object["metadata"]["namespace"];
            let in_none = kind.starts_with("Cluster");
            assert_eq!(*namespace == "proxies", !in_none, "{kind} {name}");
            let subjects = object["subjects"].as_array().into_iter().flatten();
            for subject in subjects {
                assert_eq!(subject["namespace"], "proxies", "{kind} {name}");
            }
        }
        let volumes = proxy(&objects)["spec"]["template"]["spec"]["volumes"].as_array();
        let mut volumes = volumes.expect("volumes").iter();
        let volume = volumes.find(|volume| volume["name"] == "kube-proxy");
        assert_eq!(volume.expect("a volume")["configMap"]["name"], map);
    }
    let image = ["image.repository=tripod"];
    let Some(refused) = attempt("helm/tripod", "proxies", &image) else {
        return;
    };
    let why = refused.expect_err("there is no ConfigMap");
    for words in [
        "namespace proxies has no configuration",
        "--namespace kube-system",
        "config.create=true",
        "config.existingConfigMap",
    ] {
        assert!(why.contains(words), "{words}: {why}");
    }
}

#[test]
fn an_image_is_required() {
    let Some(refused) = attempt("helm/tripod", "kube-system", &["image.tag=1"]) else {
        return;
    };
    let why = refused.expect_err("there is no default");
    assert!(why.contains("image.repository is needed"), "{why}");
}

#[test]
fn values_that_cannot_be_meant_are_refused() {
    for (values, expected) in [
        (
            &["mode=ipvs"][..],
            "additional properties 'mode' not allowed",
        ),
        (&["image=tripod:1"], "/image"),
        (&["image.repository=tripod:1"], "/image/repository"),
        (&["image.tag=a b"], "/image/tag"),
        (&["image.digest=0123"], "/image/digest"),
        (&["image.pullPolicy=Sometimes"], "/image/pullPolicy"),
        (&["config.kubeProxy.mode=ipsv"], "/config/kubeProxy/mode"),
        (&["flags={v}"], "/flags/0"),
        (&["confine=all"], "/confine"),
        (&["imagePullSecrets={registry}"], "/imagePullSecrets/0"),
        (&["extraEnv[0].value=x"], "/extraEnv/0"),
        (&["extraVolumes={x}"], "/extraVolumes/0"),
        (&["init.resources.limit.cpu=1"], "/init/resources"),
        (&["podLabels.a=1"], "/podLabels/a"),
        (&["affinity.nodeAfinity.x=y"], "/affinity"),
        (&["updateStrategy.type=Recreate"], "/updateStrategy/type"),
        (&["monitoring.labels.release=true"], "/monitoring/labels"),
        (&["monitoring.scheme=ftp"], "/monitoring/scheme"),
        (
            &["updateStrategy.rollingUpdate.maxSurge=1"],
            "maxSurge needs surge.enabled",
        ),
        (&["config.create=true"], "config.server is needed"),
        (&NEW_CLUSTER[..2], "config.kubeProxy.clusterCIDR is needed"),
        (
            &["config.create=true", "config.existingConfigMap=settings"],
            "set only one of them",
        ),
    ] {
        let Some(why) = refusal(values) else { return };
        assert!(why.contains(expected), "{values:?}: {why}");
    }
}

/// Tripod reads the ConfigMap only when it starts.
#[test]
fn another_configuration_replaces_the_pods() {
    let new = &NEW_CLUSTER[..];
    let sum = |values: &[&str]| {
        let objects = rendered(values)?;
        let pod = &proxy(&objects)["spec"]["template"]["metadata"];
        Some(pod["annotations"]["checksum/config"].clone())
    };
    let mode = [new, &["config.kubeProxy.mode=iptables"]].concat();
    let holder = [new, &["holder.enabled=false"]].concat();
    let (Some(before), Some(mode), Some(holder), Some(none)) =
        (sum(new), sum(&mode), sum(&holder), sum(&[]))
    else {
        return;
    };
    assert!(before.is_string() && none.is_null(), "{before} {none}");
    assert_ne!(before, mode);
    assert_eq!(before, holder);
}
