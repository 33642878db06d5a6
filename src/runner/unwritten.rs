//! Counts writes that the kernel refused, for rules, under the names that kube-proxy uses for the
//! same mode (`RegisterMetrics` of `pkg/proxy/metrics`).

use net::Family;
use prometheus::{IntCounterVec, Registry};

use crate::{
    family_metrics::counter,
    modes::{Unwritten, UnwrittenCounter},
};

/// The counters of one mode.
#[derive(Clone, Debug, Default)]
pub(super) struct UnwrittenRules(Vec<(Unwritten, IntCounterVec)>);

impl UnwrittenRules {
    /// Registers these `counters` with `registry`, at zero.
    ///
    /// # Errors
    /// When `registry` has metrics of these names already.
    pub(super) fn register(
        registry: &Registry,
        counters: &[UnwrittenCounter],
    ) -> prometheus::Result<Self> {
        let counters = counters.iter();
        let counters =
            counters.map(|(what, name, help)| Ok((*what, counter(registry, name, help)?)));
        Ok(UnwrittenRules(counters.collect::<prometheus::Result<_>>()?))
    }

    pub(super) fn count(&self, family: Family, what: Unwritten, count: u64) {
        let counters = self.0.iter().filter(|(of, _)| *of == what);
        counters.for_each(|(_, counter)| {
            counter.with_label_values(&[family.name()]).inc_by(count);
        });
    }
}

#[cfg(test)]
mod tests {
    use prometheus::TextEncoder;

    use super::*;
    use crate::modes::{iptables, ipvs, nftables};

    #[test]
    fn each_mode_has_its_counters() {
        let cases: [(&[_], &[&str]); 4] = [
            (
                &iptables::UNWRITTEN,
                &[
                    "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total",
                    "kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
                ],
            ),
            (
                &ipvs::UNWRITTEN,
                &["kubeproxy_sync_proxy_rules_iptables_restore_failures_total"],
            ),
            (
                &nftables::UNWRITTEN,
                &[
                    "kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total",
                    "kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
                    "tripod_nftables_affinity_refused_total",
                ],
            ),
            (&[], &[]),
        ];
        for (counters, expected) in cases {
            let registry = Registry::new();
            let unwritten = UnwrittenRules::register(&registry, counters).unwrap();
            for what in [
                Unwritten::Rules,
                Unwritten::Changes,
                Unwritten::Remnants,
                Unwritten::Clients,
            ] {
                unwritten.count(Family::V6, what, 1);
            }
            let text = TextEncoder::new().encode_to_string(&registry.gather());
            let text = text.unwrap();
            let shown: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
            let lines = expected.iter().flat_map(|what| {
                let of = |family, count| format!("{what}{{ip_family=\"{family}\"}} {count}");
                [of("IPv4", 0), of("IPv6", 1)]
            });
            assert_eq!(shown, lines.collect::<Vec<_>>(), "{counters:?}");
        }
    }
}
