//! Settings of the kernel that ipvs mode depends on, as kube-proxy has them.

use netlink::{setting::Setting, sysctl};
use nix::sys::utsname::uname;

use super::plan::Options;
use crate::kernel::probe;

/// Before this, connections of a client that uses a port again waited a second under
/// `conn_reuse_mode` 1 (kubernetes issue 81775); since then the kernel needs no setting
/// (commit f0a5e4d7a594).
const REUSE_MODE_IS_FIXED: (u32, u32) = (5, 9);
/// Kernels before this have no such setting.
const REUSE_MODE_EXISTS: (u32, u32) = (4, 1);

/// A setting of the kernel as ipvs mode needs it.
struct Sysctl {
    setting: Setting,
    /// The consequence of not having it, for the log.
    without: &'static str,
}

/// Corrects settings that differ. Returns a line for the log for each setting that the kernel
/// refused.
pub fn apply(options: &Options) -> Vec<String> {
    let mut refused = Vec::new();
    for Sysctl { setting, without } in settings(options.strict_arp, release()) {
        let Setting { name, value, .. } = setting;
        if let Err(error) = sysctl::write(name, &value.to_string()) {
            refused.push(format!("{error}; without {name}={value} {without}"));
        }
    }
    refused
}

/// Returns the settings that ipvs mode needs.
pub fn desired(options: &Options) -> impl Iterator<Item = Setting> {
    let settings = settings(options.strict_arp, release());
    settings.into_iter().map(|needed| needed.setting)
}

fn settings(strict_arp: bool, release: Option<(u32, u32)>) -> Vec<Sysctl> {
    let setting = |name, value, without| Sysctl {
        setting: Setting::exactly(name, value),
        without,
    };
    let mut settings = vec![
        setting(
            probe::Setting::VsConntrack.name(),
            1,
            "sources are not masqueraded",
        ),
        setting(
            "net.ipv4.vs.expire_nodest_conn",
            1,
            "clients of an endpoint that is gone wait for a timeout",
        ),
        setting(
            "net.ipv4.vs.expire_quiescent_template",
            1,
            "clients with session affinity stick to an endpoint that is leaving",
        ),
        setting(
            "net.ipv4.ip_forward",
            1,
            "no packet from other hosts is forwarded to endpoints",
        ),
    ];
    if release.is_some_and(|r| (REUSE_MODE_EXISTS..REUSE_MODE_IS_FIXED).contains(&r)) {
        settings.push(setting(
            "net.ipv4.vs.conn_reuse_mode",
            0,
            "a client that uses a port again waits for a second",
        ));
    }
    if strict_arp {
        settings.push(setting(
            "net.ipv4.conf.all.arp_ignore",
            1,
            "this node answers ARP requests for addresses of Services",
        ));
        settings.push(setting(
            "net.ipv4.conf.all.arp_announce",
            2,
            "this node may send ARP requests with an address of a Service as source",
        ));
    }
    settings
}

/// Returns the version and patch level of the kernel, or `None` if its name of the
/// release does not begin with them.
fn release() -> Option<(u32, u32)> {
    let name = uname().ok()?;
    parse_release(name.release().to_str()?)
}

fn parse_release(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reuse_mode_is_set_where_it_hurts() {
        for (release, set) in [
            ("3.10.0-1160.el7.x86_64", false),
            ("4.18.0", true),
            ("5.8.1", true),
            ("5.9.0-rc1+", false),
            ("6.1.90", false),
            ("strange", false),
        ] {
            let settings = settings(false, parse_release(release));
            let reuse = settings
                .iter()
                .any(|needed| needed.setting.name.ends_with("conn_reuse_mode"));
            assert_eq!(reuse, set, "{release}");
            let arp = |needed: &Sysctl| needed.setting.name.contains("arp");
            assert!(!settings.iter().any(arp));
        }
    }
}
