//! How often a mode could not write its rules, under the names that kube-proxy uses for the same
//! mode (`RegisterMetrics` of `pkg/proxy/metrics`). iptables mode counts its own
//! (`modes/iptables/counters.rs`).

use prometheus::{IntCounterVec, Registry};

use crate::{
    family_metrics::counter,
    modes::Unwritten,
    net::{Family, ModeName},
};

/// The counters of one mode; `None` where kube-proxy has none for it.
#[derive(Clone, Debug, Default)]
pub(super) struct UnwrittenRules {
    rules: Option<IntCounterVec>,
    remnants: Option<IntCounterVec>,
}

impl UnwrittenRules {
    /// Returns the counters of `mode`, at zero, which `registry` shows.
    ///
    /// # Errors
    /// When `registry` has metrics of these names already.
    pub(super) fn register(registry: &Registry, mode: ModeName) -> prometheus::Result<Self> {
        let shown = |what: &str, help: &str| {
            let name = format!("kubeproxy_sync_proxy_rules_{what}_failures_total");
            counter(registry, &name, help).map(Some)
        };
        Ok(match mode {
            ModeName::Ipvs => UnwrittenRules {
                rules: shown("iptables_restore", "Rules that could not be written.")?,
                remnants: None,
            },
            ModeName::Nftables => UnwrittenRules {
                rules: shown("nftables_sync", "Changes that could not be written.")?,
                remnants: shown(
                    "nftables_cleanup",
                    "Removals of what is no longer needed that failed.",
                )?,
            },
            ModeName::Iptables | ModeName::Userspace => UnwrittenRules::default(),
        })
    }

    pub(super) fn count(&self, family: Family, what: Unwritten) {
        let counter = match what {
            Unwritten::Rules => &self.rules,
            Unwritten::Remnants => &self.remnants,
        };
        if let Some(counter) = counter {
            counter.with_label_values(&[family.name()]).inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus::TextEncoder;

    use super::*;

    #[test]
    fn each_mode_has_the_counters_that_kube_proxy_has() {
        let cases: [(_, &[&str]); 4] = [
            (ModeName::Ipvs, &["iptables_restore"]),
            (ModeName::Nftables, &["nftables_cleanup", "nftables_sync"]),
            (ModeName::Iptables, &[]),
            (ModeName::Userspace, &[]),
        ];
        for (mode, expected) in cases {
            let registry = Registry::new();
            let unwritten = UnwrittenRules::register(&registry, mode).unwrap();
            unwritten.count(Family::V6, Unwritten::Rules);
            unwritten.count(Family::V6, Unwritten::Remnants);
            let text = TextEncoder::new().encode_to_string(&registry.gather());
            let text = text.unwrap();
            let shown: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
            let lines = expected.iter().flat_map(|what| {
                let of = |family, count| {
                    format!(
                        "kubeproxy_sync_proxy_rules_{what}_failures_total\
                         {{ip_family=\"{family}\"}} {count}"
                    )
                };
                [of("IPv4", 0), of("IPv6", 1)]
            });
            assert_eq!(shown, lines.collect::<Vec<_>>(), "{mode}");
        }
    }
}
