//! Addresses in the configuration of the Helm chart, and their effects.

use serde_json::json;

use super::chart::{NEW_CLUSTER, proxy, refusal, rendered};

/// Probes use the address of `/healthz` in the configuration of the chart.
#[test]
fn probes_follow_the_configuration() {
    for (address, expected) in [
        ("", json!({"port": 10256})),
        ("0.0.0.0:10999", json!({"port": 10999})),
        ("[::]:10999", json!({"port": 10999})),
        ("::", json!({"port": 10256})),
        ("127.0.0.1", json!({"port": 10256, "host": "127.0.0.1"})),
        (
            "127.0.0.1:10999",
            json!({"port": 10999, "host": "127.0.0.1"}),
        ),
        ("[::1]:10999", json!({"port": 10999, "host": "::1"})),
        ("::1", json!({"port": 10256, "host": "::1"})),
    ] {
        let value = format!("config.kubeProxy.healthzBindAddress={address}");
        let values = [&NEW_CLUSTER[..], &[value.as_str()]].concat();
        let Some(objects) = rendered(&values) else {
            return;
        };
        let container = &proxy(&objects)["spec"]["template"]["spec"]["containers"][0];
        for (probe, path) in [("livenessProbe", "/livez"), ("readinessProbe", "/healthz")] {
            let mut expected = expected.clone();
            expected["path"] = json!(path);
            assert_eq!(container[probe]["httpGet"], expected, "{address}: {probe}");
        }
        let surge = [&values[..], &["surge.enabled=true"]].concat();
        let Some(objects) = rendered(&surge) else {
            return;
        };
        let container = &proxy(&objects)["spec"]["template"]["spec"]["containers"][0];
        assert!(container["livenessProbe"]["httpGet"].is_null(), "{address}");
    }
}

#[test]
fn metrics_do_not_take_the_port_of_those_over_tls() {
    for (address, collides) in [
        ("", false),
        ("127.0.0.1:10249", false),
        ("0.0.0.0:10250", false),
        ("[::]:10250", false),
        ("0.0.0.0", true),
        ("[::]:10249", true),
    ] {
        let metrics = format!("config.kubeProxy.metricsBindAddress={address}");
        for (secure, fails) in [("true", collides), ("false", false)] {
            let secure = format!("secureMetrics.enabled={secure}");
            let values = [&NEW_CLUSTER[..], &[metrics.as_str(), secure.as_str()]].concat();
            let Some(errors) = refusal(&values) else {
                return;
            };
            assert_eq!(!errors.is_empty(), fails, "{address}: {errors}");
            let words = format!("metricsBindAddress {address} includes port 10249");
            assert_eq!(errors.contains(&words), fails, "{address}: {errors}");
        }
    }
}
