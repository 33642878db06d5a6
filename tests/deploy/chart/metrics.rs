//! The address that the PodMonitor reads is served: no values of the chart cause an alert.

use serde_json::{Value, json};
use tripod::{
    cli,
    config::{self, decode},
};

use super::{NEW_CLUSTER, Objects, name, proxy, refusal, rendered};

const MONITORING: &str = "monitoring.enabled=true";
const PLAIN: &str = "monitoring.scheme=http";
/// The address of a node.
const NODE: &str = "192.0.2.1";

/// Returns the scheme and the port of the node that the PodMonitor reads.
fn read(objects: &Objects) -> (String, u16) {
    let monitor = &objects[&name("PodMonitor", "kube-proxy")];
    let endpoint = &monitor["spec"]["podMetricsEndpoints"][0];
    let relabelings = endpoint["relabelings"].as_array().expect("relabelings");
    let addresses = relabelings
        .iter()
        .filter(|one| one["targetLabel"] == "__address__");
    let ports: Vec<&str> = addresses
        .map(|one| one["replacement"].as_str().expect("text"))
        .map(|text| text.rsplit_once(':').expect("a port").1)
        .collect();
    // One for each IP family.
    let [port, other] = ports[..] else {
        panic!("{ports:?}");
    };
    assert_eq!(port, other);
    let scheme = endpoint["scheme"].as_str().unwrap_or("http");
    (scheme.to_owned(), port.parse().expect("a port"))
}

/// Returns the schemes and the ports of the node's address at which metrics are served.
fn served(objects: &Objects) -> Vec<(String, u16)> {
    let container = &proxy(objects)["spec"]["template"]["spec"]["containers"][0];
    let command = container["command"].as_array().expect("a command").iter();
    let words = command.map(|word| word.as_str().expect("a word"));
    let flags = words.filter(|word| word.starts_with("--metrics-secure"));
    let flags = flags.map(|flag| flag.replace("$(HOST_IP)", NODE).into());
    let words = std::iter::once("tripod".into()).chain(flags);
    let settings = cli::read(words, |_| unreachable!()).expect("they are taken");
    let secure = settings.own.metrics_secure;
    let secure = secure.filter(|address| address.ip().to_string() == NODE);
    let mut served: Vec<(String, u16)> = secure
        .map(|address| ("https".to_owned(), address.port()))
        .into_iter()
        .collect();
    if let Some(map) = objects.get(&name("ConfigMap", "kube-proxy")) {
        let text = map["data"]["config.conf"].to_string();
        let decoded = decode::decode(&text).expect("a configuration");
        let checked = config::check(decoded.configuration, decoded.problems);
        let plain = checked.expect("a right one").effective.metrics;
        let plain = plain.filter(|address| !address.ip().is_loopback());
        served.extend(plain.map(|address| ("http".to_owned(), address.port())));
    }
    served
}

#[test]
fn what_prometheus_reads_is_served() {
    let everywhere = "config.kubeProxy.metricsBindAddress=0.0.0.0";
    let of_ipv6 = "config.kubeProxy.metricsBindAddress=[::]:10300";
    let other_port = "config.kubeProxy.metricsBindAddress=0.0.0.0:10300";
    let new = |more: &[&'static str]| [&NEW_CLUSTER[..], &[MONITORING], more].concat();
    for values in [
        vec![MONITORING],
        vec![MONITORING, "secureMetrics.enabled=true"],
        new(&[]),
        new(&[other_port]),
        new(&[PLAIN, everywhere]),
        new(&[PLAIN, other_port]),
        new(&[PLAIN, of_ipv6]),
        new(&[PLAIN, other_port, "secureMetrics.enabled=true"]),
    ] {
        let Some(objects) = rendered(&values) else {
            return;
        };
        let (read, served) = (read(&objects), served(&objects));
        assert!(served.contains(&read), "{values:?}: {read:?} {served:?}");
        // Reviews of tokens are allowed where they are needed.
        let reviews = objects.contains_key(&name("ClusterRoleBinding", "tripod:auth-delegator"));
        let is_secure = served.iter().any(|(scheme, _)| scheme == "https");
        assert_eq!(reviews, is_secure, "{values:?}");
    }
    let loopback = new(&[PLAIN]);
    let Some(why) = refusal(&loopback) else {
        return;
    };
    let words = "config.kubeProxy.metricsBindAddress 127.0.0.1 can be reached only from the node";
    assert!(why.contains(words), "{why}");
}

/// As kube-prometheus-stack requires them.
#[test]
fn what_prometheus_selects_has_its_labels() {
    let labels = [MONITORING, "monitoring.labels.release=prometheus"];
    let (Some(with), Some(without)) = (rendered(&labels), rendered(&labels[..1])) else {
        return;
    };
    for (name, mut object) in with {
        if ["PodMonitor", "PrometheusRule"].contains(&&*name.0) {
            let labels = object["metadata"]["labels"].as_object_mut();
            let release = labels.expect("labels").remove("release");
            assert_eq!(release, Some(json!("prometheus")), "{name:?}");
        }
        assert_eq!(object, without[&name], "{name:?}");
    }
}

#[test]
fn alerts_refer_to_the_page_that_is_named() {
    let values = [
        MONITORING,
        "monitoring.runbookUrl=https://docs.example/alerts.html",
    ];
    let Some(objects) = rendered(&values) else {
        return;
    };
    let rule = &objects[&name("PrometheusRule", "tripod")];
    let rules = rule["spec"]["groups"][0]["rules"].as_array();
    for rule in rules.expect("rules") {
        let section = rule["alert"].as_str().expect("a name").to_lowercase();
        let url = format!("https://docs.example/alerts.html#{section}");
        assert_eq!(rule["annotations"]["runbook_url"], Value::String(url));
    }
}
