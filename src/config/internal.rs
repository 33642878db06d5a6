//! Writes a configuration as kube-proxy 1.36 serves it at `/configz`: under the names of its
//! internal type (`pkg/proxy/apis/config/types.go`), which are those of the Go fields.

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    KubeProxyConfiguration,
    encode::{list, logging, number},
};
use crate::duration;

impl KubeProxyConfiguration {
    /// Returns the configuration as `/configz` shows it, with the shortest time between two syncs
    /// that is in force, which may be Tripod's own default.
    pub fn to_internal_value(&self, min_sync_period: Duration) -> Value {
        let gates = (!self.feature_gates.is_empty()).then_some(&self.feature_gates);
        let (client, detect) = (&self.client_connection, &self.detect_local);
        let (conntrack, winkernel) = (&self.conntrack, &self.winkernel);
        json!({
            "Linux": {
                "Conntrack": {
                    "MaxPerCore": conntrack.max_per_core,
                    "Min": conntrack.min,
                    "TCPEstablishedTimeout": duration::format(conntrack.tcp_established_timeout),
                    "TCPCloseWaitTimeout": duration::format(conntrack.tcp_close_wait_timeout),
                    "TCPBeLiberal": conntrack.tcp_be_liberal,
                    "UDPTimeout": duration::format(conntrack.udp_timeout),
                    "UDPStreamTimeout": duration::format(conntrack.udp_stream_timeout),
                },
                "MasqueradeAll": self.masquerade_all,
                "OOMScoreAdj": self.oom_score_adj,
            },
            "Windows": { "RunAsService": self.windows_run_as_service },
            "FeatureGates": gates,
            "ClientConnection": {
                "Kubeconfig": client.kubeconfig,
                "AcceptContentTypes": client.accept_content_types,
                "ContentType": client.content_type,
                "QPS": number(client.qps),
                "Burst": client.burst,
            },
            // Unlike the others, this type has JSON names of its own.
            "Logging": logging(&self.logging),
            "HostnameOverride": self.hostname_override,
            "BindAddress": self.bind_address,
            "HealthzBindAddress": self.healthz_bind_address,
            "MetricsBindAddress": self.metrics_bind_address,
            "BindAddressHardFail": self.bind_address_hard_fail,
            "EnableProfiling": self.enable_profiling,
            "ShowHiddenMetricsForVersion": self.show_hidden_metrics_for_version,
            "Mode": self.mode,
            "IPTables": {
                "MasqueradeBit": self.iptables.masquerade_bit,
                "LocalhostNodePorts": self.iptables.localhost_node_ports,
            },
            "IPVS": {
                "Scheduler": self.ipvs.scheduler,
                "ExcludeCIDRs": list(&self.ipvs.exclude_cidrs),
                "StrictARP": self.ipvs.strict_arp,
                "TCPTimeout": duration::format(self.ipvs.tcp_timeout),
                "TCPFinTimeout": duration::format(self.ipvs.tcp_fin_timeout),
                "UDPTimeout": duration::format(self.ipvs.udp_timeout),
            },
            "Winkernel": {
                "NetworkName": winkernel.network_name,
                "SourceVip": winkernel.source_vip,
                "EnableDSR": winkernel.enable_dsr,
                "RootHnsEndpointName": winkernel.root_hns_endpoint_name,
                "ForwardHealthCheckVip": winkernel.forward_health_check_vip,
            },
            "NFTables": { "MasqueradeBit": self.nftables.masquerade_bit },
            "DetectLocalMode": self.detect_local_mode,
            "DetectLocal": {
                "BridgeInterface": detect.bridge_interface,
                "ClusterCIDRs": list(&detect.cluster_cidrs),
                "InterfaceNamePrefix": detect.interface_name_prefix,
            },
            "NodePortAddresses": list(&self.node_port_addresses),
            "SyncPeriod": duration::format(self.sync_period),
            "MinSyncPeriod": duration::format(min_sync_period),
            "ConfigSyncPeriod": duration::format(self.config_sync_period),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_go() {
        let configuration = KubeProxyConfiguration {
            mode: "ipvs".to_owned(),
            masquerade_all: true,
            node_port_addresses: vec!["primary".to_owned()],
            ..KubeProxyConfiguration::default()
        };
        let value = configuration.to_internal_value(Duration::from_millis(10));
        for (pointer, expected) in [
            ("/Mode", json!("ipvs")),
            ("/Linux/MasqueradeAll", json!(true)),
            ("/Linux/Conntrack/MaxPerCore", json!(32_768)),
            ("/Linux/OOMScoreAdj", json!(-999)),
            ("/IPTables/MasqueradeBit", json!(14)),
            ("/IPVS/ExcludeCIDRs", Value::Null),
            ("/FeatureGates", Value::Null),
            ("/NodePortAddresses", json!(["primary"])),
            ("/ConfigSyncPeriod", json!("15m0s")),
            ("/MinSyncPeriod", json!("10ms")),
        ] {
            assert_eq!(value.pointer(pointer), Some(&expected), "{pointer}");
        }
        let capital = |name: &String| name.starts_with(|c: char| c.is_ascii_uppercase());
        assert!(value.as_object().unwrap().keys().all(capital), "{value}");
    }
}
