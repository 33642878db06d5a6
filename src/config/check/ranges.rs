//! Checks of values that have to lie within ranges.

use super::Check;
use crate::{
    config::{KubeProxyConfiguration, ModeName},
    duration,
};

impl Check {
    pub(super) fn ranges(&mut self, c: &KubeProxyConfiguration) {
        let conntrack = &c.conntrack;
        for (field, flag, value, range) in [
            (
                "conntrack.maxPerCore",
                "conntrack-max-per-core",
                conntrack.max_per_core,
                0..=i32::MAX,
            ),
            (
                "conntrack.min",
                "conntrack-min",
                conntrack.min,
                0..=i32::MAX,
            ),
            (
                "clientConnection.burst",
                "kube-api-burst",
                c.client_connection.burst,
                0..=i32::MAX,
            ),
            (
                "oomScoreAdj",
                "oom-score-adj",
                c.oom_score_adj,
                -1000..=1000,
            ),
        ] {
            if !range.contains(&value) {
                let why = match *range.end() {
                    i32::MAX => "it must not be negative".to_owned(),
                    end => format!("it must be from {} to {end}", range.start()),
                };
                self.invalid(field, flag, value, why);
            }
        }
        if c.config_sync_period.is_zero() {
            self.invalid(
                "configSyncPeriod",
                "config-sync-period",
                "0s",
                "it must be greater than 0",
            );
        }
        let section = if self.blank_mode {
            ModeName::Iptables
        } else {
            c.mode_section()
        };
        let flag = match section {
            ModeName::Ipvs => "ipvs-sync-period",
            _ => "iptables-sync-period",
        };
        let field = format!("{}.syncPeriod", section.name());
        let sync = duration::format(c.sync_period);
        if c.sync_period.is_zero() {
            self.invalid(field, flag, sync, "it must be greater than 0");
        } else if let Some(min) = c.min_sync_period.filter(|min| *min > c.sync_period) {
            let min = duration::format(min);
            self.invalid(
                field,
                flag,
                sync,
                format!("it must be at least minSyncPeriod, {min}"),
            );
        }
        self.logging(c);
    }

    fn logging(&mut self, c: &KubeProxyConfiguration) {
        let logging = &c.logging;
        if !["text", "json"].contains(&logging.format.as_str()) {
            let why = "it must be text or json";
            self.invalid("logging.format", "logging-format", &logging.format, why);
        } else if logging.format != "text" && !logging.vmodule.is_empty() {
            let why = "it works with logging.format text only";
            self.invalid("logging.vmodule", "vmodule", &logging.format, why);
        }
        if i32::try_from(logging.verbosity).is_err() {
            let why = format!("it must be at most {}", i32::MAX);
            self.invalid("logging.verbosity", "v", logging.verbosity, why);
        }
        for (i, item) in logging.vmodule.iter().enumerate() {
            if item.file_pattern.is_empty() || item.file_pattern.contains(['=', ',']) {
                let field = format!("logging.vmodule[{i}].filePattern");
                let why = "it must be neither empty nor contain = or a comma";
                self.invalid(field, "vmodule", &item.file_pattern, why);
            }
        }
    }
}
