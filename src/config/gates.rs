//! Feature gates of kube-proxy that Tripod honours.

use super::KubeProxyConfiguration;

/// A feature gate of kube-proxy that Tripod honours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeatureGate {
    /// Whether ipvs mode may run (kube-proxy 1.37, `pkg/features/kube_features.go`).
    Ipvs,
    /// Whether modes of the kernel serve node ports on loopback addresses that
    /// `nodePortAddresses` names (KEP-6032). In kube-proxy it is disabled by default.
    LocalhostNodePorts,
    /// Whether histograms are native ones as well (kube-proxy 1.37, kubernetes #137781).
    NativeHistograms,
}

impl FeatureGate {
    /// All of them, sorted by name.
    pub const ALL: [FeatureGate; 3] = [
        FeatureGate::Ipvs,
        FeatureGate::LocalhostNodePorts,
        FeatureGate::NativeHistograms,
    ];

    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            FeatureGate::Ipvs => "KubeProxyIPVS",
            FeatureGate::LocalhostNodePorts => "KubeProxyNFTablesLocalhostNodePorts",
            FeatureGate::NativeHistograms => "NativeHistograms",
        }
    }

    /// Returns the stage in kube-proxy 1.37, as the metric `kubernetes_feature_enabled` shows it.
    pub fn stage(self) -> &'static str {
        match self {
            FeatureGate::Ipvs => "DEPRECATED",
            FeatureGate::LocalhostNodePorts | FeatureGate::NativeHistograms => "ALPHA",
        }
    }

    /// Returns whether it is enabled where the configuration does not name it.
    fn default(self) -> bool {
        self != FeatureGate::NativeHistograms
    }

    /// Returns whether Tripod honours the gate of that name.
    pub(super) fn is_honoured(name: &str) -> bool {
        FeatureGate::ALL.iter().any(|gate| gate.name() == name)
    }
}

impl KubeProxyConfiguration {
    /// Returns whether `gate` is enabled.
    pub fn is_enabled(&self, gate: FeatureGate) -> bool {
        let named = self.feature_gates.get(gate.name()).copied();
        named.unwrap_or_else(|| gate.default())
    }
}
