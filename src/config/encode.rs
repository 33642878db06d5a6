//! Writes a configuration as kube-proxy 1.36 does for `--write-config-to`.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::{
    KubeProxyConfiguration, Logging, ModeName, StreamOptions,
    decode::{API_VERSION, KIND},
};
use crate::duration;

impl KubeProxyConfiguration {
    /// Returns the configuration in the form of `v1alpha1`. A value that exists for each
    /// mode is written for the mode to which it applies, and zero for the others; a
    /// `minSyncPeriod` that is not configured is zero.
    pub fn to_value(&self) -> Value {
        let mut value = json!({
            "apiVersion": API_VERSION,
            "kind": KIND,
            "clientConnection": {
                "acceptContentTypes": self.client_connection.accept_content_types,
                "burst": self.client_connection.burst,
                "contentType": self.client_connection.content_type,
                "kubeconfig": self.client_connection.kubeconfig,
                "qps": number(self.client_connection.qps),
            },
            "logging": logging(&self.logging),
            "hostnameOverride": self.hostname_override,
            "bindAddress": self.bind_address,
            "healthzBindAddress": self.healthz_bind_address,
            "metricsBindAddress": self.metrics_bind_address,
            "bindAddressHardFail": self.bind_address_hard_fail,
            "enableProfiling": self.enable_profiling,
            "showHiddenMetricsForVersion": self.show_hidden_metrics_for_version,
            "mode": self.mode,
            "iptables": {
                "localhostNodePorts": self.iptables.localhost_node_ports,
                "masqueradeBit": self.iptables.masquerade_bit,
            },
            "ipvs": {
                "excludeCIDRs": list(&self.ipvs.exclude_cidrs),
                "scheduler": self.ipvs.scheduler,
                "strictARP": self.ipvs.strict_arp,
                "tcpFinTimeout": duration::format(self.ipvs.tcp_fin_timeout),
                "tcpTimeout": duration::format(self.ipvs.tcp_timeout),
                "udpTimeout": duration::format(self.ipvs.udp_timeout),
            },
            "nftables": {
                "masqueradeBit": self.nftables.masquerade_bit,
            },
            "winkernel": {
                "enableDSR": self.winkernel.enable_dsr,
                "forwardHealthCheckVip": self.winkernel.forward_health_check_vip,
                "networkName": self.winkernel.network_name,
                "rootHnsEndpointName": self.winkernel.root_hns_endpoint_name,
                "sourceVip": self.winkernel.source_vip,
            },
            "detectLocalMode": self.detect_local_mode,
            "detectLocal": {
                "bridgeInterface": self.detect_local.bridge_interface,
                "interfaceNamePrefix": self.detect_local.interface_name_prefix,
            },
            "clusterCIDR": self.cluster_cidr,
            "nodePortAddresses": list(&self.node_port_addresses),
            "oomScoreAdj": self.oom_score_adj,
            "conntrack": {
                "maxPerCore": self.conntrack.max_per_core,
                "min": self.conntrack.min,
                "tcpBeLiberal": self.conntrack.tcp_be_liberal,
                "tcpCloseWaitTimeout": duration::format(self.conntrack.tcp_close_wait_timeout),
                "tcpEstablishedTimeout": duration::format(self.conntrack.tcp_established_timeout),
                "udpStreamTimeout": duration::format(self.conntrack.udp_stream_timeout),
                "udpTimeout": duration::format(self.conntrack.udp_timeout),
            },
            "configSyncPeriod": duration::format(self.config_sync_period),
            "portRange": self.port_range,
        });
        self.put_once_a_mode(&mut value);
        if !self.feature_gates.is_empty() {
            value["featureGates"] = json!(self.feature_gates);
        }
        if self.windows_run_as_service {
            value["windowsRunAsService"] = json!(true);
        }
        value
    }

    /// Returns the configuration as kube-proxy serves it at `/configz` since 1.36, with the shortest
    /// time between two syncs that is used, which may be Tripod's own default.
    pub fn to_configz(&self, min_sync_period: Duration) -> Value {
        let used = KubeProxyConfiguration {
            min_sync_period: Some(min_sync_period),
            ..self.clone()
        };
        used.to_value()
    }

    /// Returns [`to_value`](Self::to_value) as the text of a file, which means the same when it is
    /// read: kube-proxy also reads a `minSyncPeriod` of zero as if it were not given
    /// (`SetDefaults_KubeProxyConfiguration` of its `pkg/proxy/apis/config/v1alpha1`).
    ///
    /// # Errors
    /// When the YAML writer refuses it.
    pub fn to_yaml(&self) -> Result<String, String> {
        serde_saphyr::to_string(&self.to_value()).map_err(|e| e.to_string())
    }

    /// Returns a line for each value that [`to_yaml`](Self::to_yaml) cannot write, because Tripod
    /// as well as kube-proxy reads it as if it were not given
    /// (`SetDefaults_KubeProxyConfiguration`).
    pub fn unwritable(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (field, address, what) in [
            ("healthzBindAddress", &self.healthz_bind_address, "/healthz"),
            ("metricsBindAddress", &self.metrics_bind_address, "/metrics"),
        ] {
            if address.is_empty() {
                lines.push(format!(
                    "{field}: a file cannot say that {what} is served nowhere; with this file it \
                     is served at the default address"
                ));
            }
        }
        if self.min_sync_period == Some(Duration::ZERO) {
            lines.push(format!(
                "{}.minSyncPeriod: in a file 0s means the default; write 1ns to apply each change \
                 at once",
                self.mode_section().name()
            ));
        }
        lines
    }

    fn put_once_a_mode(&self, value: &mut Value) {
        let own = self.mode_section();
        for section in [ModeName::Iptables, ModeName::Ipvs, ModeName::Nftables] {
            let (sync, min) = match section == own {
                true => (self.sync_period, self.min_sync_period.unwrap_or_default()),
                false => (Duration::ZERO, Duration::ZERO),
            };
            let fields = &mut value[section.name()];
            fields["syncPeriod"] = json!(duration::format(sync));
            fields["minSyncPeriod"] = json!(duration::format(min));
        }
        let nftables = own == ModeName::Nftables;
        value["iptables"]["masqueradeAll"] = json!(self.masquerade_all && !nftables);
        value["nftables"]["masqueradeAll"] = json!(self.masquerade_all && nftables);
    }
}

/// Returns a number as Go writes it: whole numbers without a decimal point.
fn number(value: f32) -> Value {
    if value.fract() == 0.0 && value.abs() < 1e9 {
        json!(value as i64)
    } else {
        json!(value)
    }
}

/// Returns a list as Go writes it: an empty one, which Go never created, is null.
fn list(items: &[String]) -> Value {
    match items {
        [] => Value::Null,
        items => json!(items),
    }
}

fn logging(logging: &Logging) -> Value {
    let mut value = json!({
        "flushFrequency": duration::format(logging.flush_frequency),
        "format": logging.format,
        "options": {
            "json": stream(&logging.json),
            "text": stream(&logging.text),
        },
        "verbosity": logging.verbosity,
    });
    if !logging.vmodule.is_empty() {
        let items = logging
            .vmodule
            .iter()
            .map(|item| json!({ "filePattern": item.file_pattern, "verbosity": item.verbosity }));
        value["vmodule"] = items.collect();
    }
    value
}

fn stream(options: &StreamOptions) -> Value {
    let mut fields = Map::new();
    fields.insert("infoBufferSize".into(), json!(options.info_buffer_size));
    if options.split_stream {
        fields.insert("splitStream".into(), json!(true));
    }
    Value::Object(fields)
}
