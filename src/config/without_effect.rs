//! Fields that are accepted for compatibility with kube-proxy and have no
//! effect here.

use super::{FeatureGate, KubeProxyConfiguration};

/// Returns one log line for all fields without effect; `None` if there are none.
pub(super) fn without_effect(c: &KubeProxyConfiguration) -> Option<String> {
    let fields = fields_without_effect(c).join(", ");
    (!fields.is_empty()).then(|| format!("accepted, but without effect in Tripod: {fields}"))
}

/// Returns the fields that are set in `c` and have no effect here.
pub fn fields_without_effect(c: &KubeProxyConfiguration) -> Vec<String> {
    let mut fields: Vec<String> = Vec::new();
    let gates = c.feature_gates.keys().map(String::as_str);
    let names: Vec<_> = gates
        .filter(|name| !FeatureGate::is_honoured(name))
        .collect();
    if !names.is_empty() {
        fields.push(format!("featureGates ({})", names.join(", ")));
    }
    let usual = KubeProxyConfiguration::default();
    let (client, usual_client) = (&c.client_connection, &usual.client_connection);
    let (windows, text, json) = (&c.winkernel, &c.logging.text, &c.logging.json);
    for (field, given) in [
        ("winkernel.networkName", !windows.network_name.is_empty()),
        ("winkernel.sourceVip", !windows.source_vip.is_empty()),
        ("winkernel.enableDSR", windows.enable_dsr),
        (
            "winkernel.rootHnsEndpointName",
            !windows.root_hns_endpoint_name.is_empty(),
        ),
        (
            "winkernel.forwardHealthCheckVip",
            windows.forward_health_check_vip,
        ),
        ("windowsRunAsService", c.windows_run_as_service),
        ("enableProfiling", c.enable_profiling),
        (
            "showHiddenMetricsForVersion",
            !c.show_hidden_metrics_for_version.is_empty(),
        ),
        (
            "configSyncPeriod",
            c.config_sync_period != usual.config_sync_period,
        ),
        (
            "clientConnection.contentType",
            client.content_type != usual_client.content_type,
        ),
        (
            "clientConnection.acceptContentTypes",
            !client.accept_content_types.is_empty(),
        ),
        ("logging.vmodule", !c.logging.vmodule.is_empty()),
        ("logging.options.text", *text != Default::default()),
        ("logging.options.json", *json != Default::default()),
    ] {
        if given {
            fields.push(field.to_owned());
        }
    }
    fields
}
