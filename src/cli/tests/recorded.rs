//! Whole configurations: one that kube-proxy recorded, kubeadm's, and one with every
//! field.

use super::*;

#[test]
fn flags_alone_make_what_kube_proxy_recorded() {
    let recorded = yaml(DEFAULTS);
    let used = Duration::from_secs(1);
    let iptables = settings(&["--proxy-mode=iptables"]).configuration;
    assert_eq!(iptables.to_configz(used), recorded);
    // Without a mode, Tripod's differs only in the mode, and in where it writes the
    // periods for it.
    let mut ours = settings(&[]).configuration.to_configz(used);
    assert_eq!(ours["mode"], "ipvs");
    ours["mode"] = "iptables".into();
    for period in ["syncPeriod", "minSyncPeriod"] {
        let (of_ipvs, of_iptables) = (ours["ipvs"][period].take(), ours["iptables"][period].take());
        ours["ipvs"][period] = of_iptables;
        ours["iptables"][period] = of_ipvs;
    }
    assert_eq!(ours, recorded);
}

#[test]
fn configz_is_what_kube_proxy_serves() {
    let served = include_str!("../../../tests/config/kube-proxy-1.36.2-configz.json");
    let served: Value = serde_json::from_str(served).expect("JSON");
    let flags = [
        "--kubeconfig=KUBECONFIG",
        "--hostname-override=n1",
        "--proxy-mode=nftables",
        "--cluster-cidr=10.244.0.0/16",
        "--conntrack-max-per-core=0",
    ];
    let configuration = settings(&flags).configuration;
    let ours = configuration.to_configz(Duration::from_secs(1));
    assert_eq!(ours, served["kubeproxy.config.k8s.io"]);
    let ours = configuration.to_configz(Duration::from_millis(10));
    assert_eq!(ours["nftables"]["minSyncPeriod"], "10ms");
}

#[test]
fn what_exists_once_a_mode_is_written_with_the_mode() {
    for (mode, periods, masquerade_all) in [
        ("ipvs", "ipvs", "iptables"),
        ("iptables", "iptables", "iptables"),
        ("userspace", "iptables", "iptables"),
        ("nftables", "nftables", "nftables"),
    ] {
        let mode = format!("--proxy-mode={mode}");
        let written = settings(&[&mode, "--masquerade-all"])
            .configuration
            .to_value();
        for section in ["iptables", "ipvs", "nftables"] {
            let expected = if section == periods { "30s" } else { "0s" };
            assert_eq!(written[section]["syncPeriod"], expected, "{mode} {section}");
        }
        for section in ["iptables", "nftables"] {
            let all = &written[section]["masqueradeAll"];
            assert_eq!(all, &(section == masquerade_all), "{mode} {section}");
        }
    }
}

#[test]
fn what_is_written_means_the_same_when_read() {
    for (file, flags) in [
        (None, &[][..]),
        (
            None,
            &["--proxy-mode=iptables", "--iptables-sync-period=7s"],
        ),
        (None, &["--proxy-mode=nftables"]),
        (
            None,
            &["--proxy-mode=iptables", "--iptables-min-sync-period=1s"],
        ),
        (
            None,
            &["--hostname-override=yes", "--pod-bridge-interface=1e3"],
        ),
        (
            None,
            &["--hostname-override=null", "--pod-bridge-interface=0x1f"],
        ),
        (
            None,
            &["--hostname-override=~", "--pod-bridge-interface=- #: 'a\"b"],
        ),
        (
            None,
            &[
                "--healthz-bind-address=::1",
                "--ipvs-scheduler=sh",
                "--log-text-split-stream",
            ],
        ),
        (Some(EVERY_FIELD), &[]),
        (Some(DEFAULTS), &[]),
    ] {
        let first = match file {
            Some(text) => settings_of_file(text, flags),
            None => settings(flags),
        };
        let written = first.configuration.to_yaml().expect("can be written");
        let again = settings_of_file(&written, &[]);
        assert_eq!(again.configuration, first.configuration, "{written}");
        let mut again = again.effective;
        // The written configuration names the mode.
        assert!(again.is_mode_named);
        again.is_mode_named = first.effective.is_mode_named;
        assert_eq!(again, first.effective);
    }
}

/// Reading such a file gives the same as if it did not have these fields.
#[test]
fn what_a_file_cannot_say_is_named() {
    for (flags, fields) in [
        (&[][..], &[][..]),
        (&["--iptables-min-sync-period=1s"], &[]),
        (
            &["--healthz-port=0", "--metrics-bind-address="],
            &["healthzBindAddress", "metricsBindAddress"],
        ),
        (&["--metrics-port=0"], &["metricsBindAddress"]),
        (
            &["--proxy-mode=nftables", "--iptables-min-sync-period=0"],
            &["nftables.minSyncPeriod"],
        ),
    ] {
        let first = settings(flags);
        let named = first.configuration.unwritable();
        let named: Vec<_> = named
            .iter()
            .filter_map(|line| line.split(':').next())
            .collect();
        assert_eq!(named, fields, "{flags:?}");
        let written = first.configuration.to_yaml().expect("can be written");
        let again = settings_of_file(&written, &[]);
        let values = |of: &Settings| {
            let min = of.configuration.min_sync_period;
            (of.effective.healthz, of.effective.metrics, min)
        };
        let is_same = values(&again) == values(&first);
        assert_eq!(is_same, fields.is_empty(), "{flags:?}: {written}");
    }
}

#[test]
fn the_configuration_of_kubeadm_is_taken() {
    let map: ConfigMap = serde_saphyr::from_str(KUBEADM).expect("a ConfigMap");
    let text = &map.data.expect("has data")["config.conf"];
    let settings = settings_of_file(text, &["--hostname-override=node-1"]);
    let c = settings.configuration;
    assert_eq!(c.to_configz(Duration::from_secs(1)), yaml(KUBEADM_COMPLETE));
    assert_eq!(c.sync_period, Duration::from_secs(30));
    assert_eq!(c.min_sync_period, None);
    assert_eq!(settings.warnings, Vec::<String>::new());
    assert_eq!(settings.job, Job::Serve);
    let effective = settings.effective;
    assert_eq!(effective.mode, ModeName::Ipvs);
    assert_eq!(effective.scheduler, SchedulerName::Rr);
    assert_eq!(effective.masquerade_bit, 14);
    assert_eq!(effective.node_ports, NodePortAddresses::default());
    let cidr = "10.244.0.0/16".parse().expect("CIDR");
    assert_eq!(effective.detect_local, DetectLocal::ClusterCidr(vec![cidr]));
    let kubeconfig = Path::new("/var/lib/kube-proxy/kubeconfig.conf");
    assert_eq!(effective.kubeconfig.as_deref(), Some(kubeconfig));
}

#[test]
fn every_field_is_taken() {
    let settings = settings_of_file(EVERY_FIELD, &[]);
    let c = settings.configuration;
    assert_eq!(c.to_value(), yaml(EVERY_FIELD_COMPLETE));
    assert_eq!(c.sync_period, Duration::from_secs(45));
    assert_eq!(c.min_sync_period, Some(Duration::from_millis(250)));
    assert!(c.masquerade_all);
    let effective = settings.effective;
    assert_eq!(effective.node_ip, "fd00::1".parse().ok());
    assert_eq!(effective.primary_family, net::Family::V6);
    assert_eq!(effective.healthz, "[::]:10256".parse().ok());
    assert_eq!(effective.metrics, "[::]:11249".parse().ok());
    assert_eq!(effective.masquerade_bit, 0);
    assert_eq!(effective.scheduler, SchedulerName::Wlc);
    assert_eq!(effective.ipvs_exclude.len(), 2);
    assert_eq!(
        effective.detect_local,
        DetectLocal::InterfaceNamePrefix("cali".to_owned())
    );
    assert!(!effective.node_ports.primary);
    assert_eq!(effective.node_ports.networks.len(), 2);
    assert_eq!(effective.proxy_ports, Some(20000..=21999));
    let [warning] = settings.warnings.as_slice() else {
        panic!("{:?}", settings.warnings);
    };
    for field in [
        "featureGates (AllAlpha, NFTablesProxyMode)",
        "winkernel.networkName",
        "windowsRunAsService",
        "enableProfiling",
    ] {
        assert!(warning.contains(field), "{warning}");
    }
}
