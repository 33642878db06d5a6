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
    let (given, usual) = (c.to_value(), KubeProxyConfiguration::default().to_value());
    for field in [
        "winkernel.networkName",
        "winkernel.sourceVip",
        "winkernel.enableDSR",
        "winkernel.rootHnsEndpointName",
        "winkernel.forwardHealthCheckVip",
        "windowsRunAsService",
        "enableProfiling",
        "showHiddenMetricsForVersion",
        "configSyncPeriod",
        "clientConnection.contentType",
        "clientConnection.acceptContentTypes",
        "logging.vmodule",
        "logging.options.text",
        "logging.options.json",
    ] {
        let pointer = format!("/{}", field.replace('.', "/"));
        if given.pointer(&pointer) != usual.pointer(&pointer) {
            fields.push(field.to_owned());
        }
    }
    fields
}
