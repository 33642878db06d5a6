//! Limits for parsing YAML from others, derived from its length.

use serde_saphyr::Options;

/// Returns options that keep the cost of a text of `length` bytes in proportion to its length.
/// Aliases are rare in manifests and configurations, and the only way for a short text to become
/// long. Errors do not quote the text. `0120` is 80, as for `kubectl` and kube-proxy (YAML 1.1;
/// `resolve.go` of sigs.k8s.io/yaml).
pub fn limited(length: usize) -> Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: 64,
            max_nodes: length + 1_000,
            max_events: 2 * length + 1_000,
            max_anchors: 1_000,
            max_aliases: 10_000,
            max_merge_keys: 10_000,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: 200_000,
            max_replay_stack_depth: 16,
        },
        legacy_octal_numbers: true,
        with_snippet: false,
    }
}
