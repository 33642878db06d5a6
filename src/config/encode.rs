//! Writes a configuration as kube-proxy 1.36 does for `--write-config-to`.

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    KubeProxyConfiguration, ModeName,
    decode::{API_VERSION, KIND},
};
use crate::duration;

impl KubeProxyConfiguration {
    /// Returns the configuration in the form of `v1alpha1`. A value that exists for each
    /// mode is written for the mode to which it applies, and zero for the others; a
    /// `minSyncPeriod` that is not configured is zero.
    pub fn to_value(&self) -> Value {
        // Every key is text, so this does not fail.
        let mut value = json!(self);
        value["apiVersion"] = json!(API_VERSION);
        value["kind"] = json!(KIND);
        self.put_once_a_mode(&mut value);
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
