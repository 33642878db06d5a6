//! Feature gates of kube-proxy.

use super::*;

const IPVS: &str = "--feature-gates=KubeProxyIPVS=false";
const LOCALHOST: &str = "--feature-gates=KubeProxyNFTablesLocalhostNodePorts=false";

#[test]
fn ipvs_mode_is_refused_where_its_gate_is_disabled() {
    let error = refusal("", &[IPVS, "--proxy-mode=ipvs"]);
    assert!(error.contains("KubeProxyIPVS is false"), "{error}");
    assert_eq!(settings(&[IPVS]).effective.mode, ModeName::Nftables);
    let named = settings(&[IPVS, "--proxy-mode=iptables"]);
    assert_eq!(named.effective.mode, ModeName::Iptables);
    let enabled = ["--feature-gates=KubeProxyIPVS=true", "--proxy-mode=ipvs"];
    assert_eq!(settings(&enabled).effective.mode, ModeName::Ipvs);
}

#[test]
fn localhost_node_ports_follow_their_gate() {
    let localhost = "--nodeport-addresses=primary,localhost";
    for (flags, not_relayed, warned) in [
        (&["--proxy-mode=nftables", localhost][..], false, false),
        (&["--proxy-mode=nftables", localhost, LOCALHOST], true, true),
        (&[localhost, LOCALHOST], true, true),
        (&["--proxy-mode=nftables", LOCALHOST], true, false),
        (
            &["--proxy-mode=iptables", localhost, LOCALHOST],
            true,
            false,
        ),
    ] {
        let settings = settings(flags);
        let found = settings.effective.node_ports.not_relayed;
        assert_eq!(found, not_relayed, "{flags:?}");
        let mut warnings = settings.warnings.iter();
        let found = warnings.any(|line| line.contains("names loopback addresses, but"));
        assert_eq!(found, warned, "{flags:?}");
        let mut warnings = settings.warnings.iter();
        assert!(
            !warnings.any(|line| line.contains("without effect")),
            "{flags:?}"
        );
    }
}
