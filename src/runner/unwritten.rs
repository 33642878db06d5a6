//! How often a mode could not write its rules, under the names that kube-proxy uses for the same
//! mode (`RegisterMetrics` of `pkg/proxy/metrics`). iptables mode counts its own
//! (`modes/iptables/counters.rs`).

use prometheus::{IntCounterVec, Registry};

use crate::{
    family_metrics::counter,
    modes::{Unwritten, UnwrittenCounter},
    net::Family,
};

/// The counters of one mode.
#[derive(Clone, Debug, Default)]
pub(super) struct UnwrittenRules(Vec<(Unwritten, IntCounterVec)>);

impl UnwrittenRules {
    /// Returns these `counters`, at zero, which `registry` shows.
    ///
    /// # Errors
    /// When `registry` has metrics of these names already.
    pub(super) fn register(
        registry: &Registry,
        counters: &[UnwrittenCounter],
    ) -> prometheus::Result<Self> {
        let counters = counters.iter().map(|(what, name, help)| {
            let name = format!("kubeproxy_sync_proxy_rules_{name}_failures_total");
            Ok((*what, counter(registry, &name, help)?))
        });
        Ok(UnwrittenRules(counters.collect::<prometheus::Result<_>>()?))
    }

    pub(super) fn count(&self, family: Family, what: Unwritten) {
        let counters = self.0.iter().filter(|(of, _)| *of == what);
        counters.for_each(|(_, counter)| counter.with_label_values(&[family.name()]).inc());
    }
}

#[cfg(test)]
mod tests {
    use prometheus::TextEncoder;

    use super::*;
    use crate::modes::{ipvs, nftables};

    #[test]
    fn each_mode_has_the_counters_that_kube_proxy_has() {
        let cases: [(&[_], &[&str]); 3] = [
            (&ipvs::UNWRITTEN, &["iptables_restore"]),
            (&nftables::UNWRITTEN, &["nftables_cleanup", "nftables_sync"]),
            (&[], &[]),
        ];
        for (counters, expected) in cases {
            let registry = Registry::new();
            let unwritten = UnwrittenRules::register(&registry, counters).unwrap();
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
            assert_eq!(shown, lines.collect::<Vec<_>>(), "{counters:?}");
        }
    }
}
