//! Values of the API's objects that are used, skipped and refused.

use k8s_openapi::api::core::v1 as core;
use serde::de::DeserializeOwned;

use super::{service_ports::service_name, *};

fn yaml<T: DeserializeOwned>(text: &str) -> T {
    serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{text}\n{error}"))
}

fn service(text: &str) -> Result<Reduced<Service>, Invalid> {
    Service::reduce(&yaml::<wire::Service>(text), &mut Names::default())
}

fn slice(text: &str) -> Result<Reduced<EndpointSlice>, Invalid> {
    EndpointSlice::reduce(
        &yaml::<wire::EndpointSlice>(text),
        Loopback::Refused,
        &mut Names::default(),
    )
}

/// Returns a served Service with this in its spec, and the skipped values.
fn serving(spec: &str) -> (Serving, Vec<String>) {
    let reduced = service(&format!("{{metadata: {{name: a}}, spec: {{{spec}}}}}"));
    let reduced = reduced.unwrap_or_else(|error| panic!("{spec}: {error}"));
    let warnings = reduced.warnings.iter().map(ToString::to_string).collect();
    (reduced.object.serving.expect("served"), warnings)
}

#[test]
fn services_that_are_none_of_our_business() {
    let cases = [
        (
            "{metadata: {name: a}, spec: {clusterIP: None}}",
            NotServed::Headless,
        ),
        (
            "{metadata: {name: a}, spec: {clusterIPs: [None], ports: [{port: 99999}]}}",
            NotServed::Headless,
        ),
        (
            "{metadata: {name: a}, spec: {type: ExternalName, externalName: b.example}}",
            NotServed::ExternalName,
        ),
        (
            "{metadata: {name: a, labels: {service.kubernetes.io/service-proxy-name: b}}, spec: {clusterIP: 10.0.0.1}}",
            NotServed::OtherProxy,
        ),
        (
            "{metadata: {name: a}, spec: {ports: [{port: 80}]}}",
            NotServed::NoClusterIp,
        ),
        (
            "{metadata: {name: a}, spec: {clusterIP: ''}}",
            NotServed::NoClusterIp,
        ),
        ("{metadata: {name: a}}", NotServed::NoClusterIp),
    ];
    for (text, reason) in cases {
        let reduced = service(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(reduced.object.serving, Err(reason), "{text}");
        assert_eq!(&*reduced.object.name.namespace, "default", "{text}");
    }
}

/// The label is for EndpointSlices; kube-proxy ignores it on a Service.
#[test]
fn a_service_with_the_label_of_headless_slices_is_served() {
    let labelled = "{metadata: {name: a, labels: {service.kubernetes.io/headless: ''}}, \
                    spec: {clusterIP: 10.0.0.1}}";
    assert!(service(labelled).expect("good").object.serving.is_ok());
}

/// A refused spec, the field that causes it, and the value of that field.
type RefusedSpec = (&'static str, &'static str, &'static str);

fn are_refused<const N: usize>(cases: [RefusedSpec; N]) {
    let good = "clusterIP: 10.0.0.1, ports: [{port: 80}]";
    for (spec, field, value) in cases {
        let spec = spec.replace("GOOD", good);
        let error = service(&format!(
            "{{metadata: {{name: a, namespace: n}}, spec: {{{spec}}}}}"
        ));
        let error = error.expect_err(&spec);
        assert_eq!((error.kind, &*error.name), ("Service", "n/a"), "{spec}");
        assert_eq!((&*error.field, &*error.value), (field, value), "{spec}");
    }
}

#[test]
fn services_whose_addresses_or_ports_are_refused() {
    are_refused([
        ("clusterIP: ten, ports: []", "spec.clusterIP", "ten"),
        ("clusterIP: 0.0.0.0, ports: []", "spec.clusterIP", "0.0.0.0"),
        (
            "clusterIP: 127.0.0.1, ports: []",
            "spec.clusterIP",
            "127.0.0.1",
        ),
        ("clusterIP: '::1', ports: []", "spec.clusterIP", "::1"),
        (
            "clusterIP: 10.0.0.1, ports: [{port: 1, name: \"a\\nb\"}]",
            "spec.ports[0].name",
            "a\nb",
        ),
        (
            "clusterIPs: [10.0.0.1, 10.0.0.2]",
            "spec.clusterIPs[1]",
            "10.0.0.2",
        ),
        (
            "clusterIPs: [10.0.0.1, None6]",
            "spec.clusterIPs[1]",
            "None6",
        ),
        (
            "clusterIP: 10.0.0.1, ports: [{name: a}]",
            "spec.ports[0].port",
            "0",
        ),
        (
            "clusterIP: 10.0.0.1, ports: [{port: 1}, {port: 65536, name: b}]",
            "spec.ports[1].port",
            "65536",
        ),
        (
            "clusterIP: 10.0.0.1, ports: [{port: -1}]",
            "spec.ports[0].port",
            "-1",
        ),
        (
            "clusterIP: 10.0.0.1, ports: [{port: 1, nodePort: 70000}]",
            "spec.ports[0].nodePort",
            "70000",
        ),
        (
            "clusterIP: 10.0.0.1, ports: [{port: 1, protocol: tcp}]",
            "spec.ports[0].protocol",
            "tcp",
        ),
        (
            "clusterIP: 10.0.0.1, ports: [{port: 1}, {port: 2}]",
            "spec.ports[1].name",
            "",
        ),
    ]);
}

#[test]
fn services_whose_other_fields_are_refused() {
    are_refused([
        ("GOOD, type: Ingress", "spec.type", "Ingress"),
        (
            "GOOD, sessionAffinity: Cookie",
            "spec.sessionAffinity",
            "Cookie",
        ),
        (
            "GOOD, sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 0}}",
            "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
            "0",
        ),
        (
            "GOOD, sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 86401}}",
            "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
            "86401",
        ),
        (
            "GOOD, externalTrafficPolicy: Node",
            "spec.externalTrafficPolicy",
            "Node",
        ),
        (
            "GOOD, internalTrafficPolicy: local",
            "spec.internalTrafficPolicy",
            "local",
        ),
        (
            "GOOD, type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: 99999",
            "spec.healthCheckNodePort",
            "99999",
        ),
    ]);
    assert_eq!(
        service("{metadata: {}}").expect_err("no name").field,
        "metadata.name"
    );
}

#[test]
fn addresses_that_are_skipped() {
    let (serving, warnings) = serving(
        "clusterIP: 10.0.0.1, ports: [{port: 80}], \
         externalIPs: [192.0.2.1, 'x', 127.0.0.1, 'fd00::1', 192.0.2.01], \
         loadBalancerSourceRanges: [' 10.1.2.3/8 ', nonsense, 'fd00::/129']",
    );
    assert_eq!(
        *serving.external_ips,
        ["192.0.2.1".parse::<std::net::IpAddr>().expect("ip")]
    );
    // The Service has no IPv6 address: nothing is open for lack of an IPv6 range.
    let ranges = ["10.0.0.0/8"].map(|range| range.parse::<IpNet>().expect("net"));
    assert_eq!(*serving.load_balancer_source_ranges, ranges);
    let fields: Vec<_> = warnings
        .iter()
        .map(|text| text.split(" is ").next())
        .collect();
    assert_eq!(
        fields,
        [
            Some("Service default/a: spec.externalIPs[1]"),
            Some("Service default/a: spec.externalIPs[2]"),
            Some("Service default/a: spec.externalIPs[3]"),
            Some("Service default/a: spec.loadBalancerSourceRanges[1]"),
            Some("Service default/a: spec.loadBalancerSourceRanges[2]"),
        ]
    );
}

#[test]
fn load_balancers() {
    let reduced = service(
        "{metadata: {name: a}, spec: {type: LoadBalancer, clusterIP: 10.0.0.1, ports: [{port: 80}]}, \
         status: {loadBalancer: {ingress: [{ip: 192.0.2.1}, {ip: 192.0.2.2, ipMode: VIP}, \
         {ip: 192.0.2.3, ipMode: Proxy}, {hostname: lb.example}, {ip: x}]}}}",
    );
    let reduced = reduced.expect("good");
    let ips = ["192.0.2.1", "192.0.2.2"].map(|ip| ip.parse::<std::net::IpAddr>().expect("ip"));
    assert_eq!(
        *reduced.object.serving.expect("served").load_balancer_ips,
        ips
    );
    assert_eq!(reduced.warnings.len(), 1);
    assert_eq!(
        reduced.warnings[0].field,
        "status.loadBalancer.ingress[4].ip"
    );
}

#[test]
fn policies_affinity_and_health_check_port() {
    use TrafficPolicy::{Cluster, Local};
    let good = "clusterIP: 10.0.0.1, ports: [{port: 80}]";
    let cases = [
        ("", Cluster, Cluster, None),
        (", internalTrafficPolicy: Local", Local, Cluster, None),
        // Not reachable from outside: the policy applies to nothing.
        (", externalTrafficPolicy: Local", Cluster, Cluster, None),
        (
            ", externalTrafficPolicy: Local, externalIPs: [192.0.2.1]",
            Cluster,
            Local,
            None,
        ),
        (
            ", externalTrafficPolicy: Local, type: NodePort, healthCheckNodePort: 32000",
            Cluster,
            Local,
            None,
        ),
        (
            ", externalTrafficPolicy: Local, type: LoadBalancer, healthCheckNodePort: 32000",
            Cluster,
            Local,
            Some(32000),
        ),
        (
            ", type: LoadBalancer, healthCheckNodePort: 32000",
            Cluster,
            Cluster,
            None,
        ),
    ];
    for (spec, internal, external, health) in cases {
        let (serving, _) = serving(&format!("{good}{spec}"));
        assert_eq!(serving.internal_traffic_policy, internal, "{spec}");
        assert_eq!(serving.external_traffic_policy, external, "{spec}");
        assert_eq!(serving.health_check_node_port, health, "{spec}");
    }
    let timeout = |spec: &str| {
        serving(&format!("{good}, sessionAffinity: {spec}"))
            .0
            .session_affinity
    };
    let seconds = |seconds| Some(std::time::Duration::from_secs(seconds));
    assert_eq!(timeout("None"), None);
    assert_eq!(timeout("ClientIP"), seconds(10_800));
    assert_eq!(
        timeout("ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 5}}"),
        seconds(5)
    );
}

#[test]
fn slices() {
    let reduced = slice(
        "{metadata: {name: s, labels: {kubernetes.io/service-name: web}}, addressType: IPv4, \
         ports: [{port: 80}, {name: all}, {port: 0}, {port: 1, protocol: X}], endpoints: [{addresses: [10.1.0.1, 10.1.0.9]}, \
         {addresses: [10.1.0.2], conditions: {ready: false, serving: true, terminating: true}, nodeName: n}, \
         {addresses: ['fd00::1']}, {addresses: [pod.example]}, {addresses: []}, {addresses: [0.0.0.0]}]}",
    )
    .expect("good");
    let endpoints = &reduced.object.endpoints;
    let conditions = endpoints
        .iter()
        .map(|e| (e.ready, e.serving, e.terminating));
    assert_eq!(
        conditions.collect::<Vec<_>>(),
        [(true, true, false), (false, true, true)]
    );
    assert_eq!(endpoints[1].node_name.as_deref(), Some("n"));
    let skipped: Vec<_> = reduced
        .warnings
        .iter()
        .map(|warning| &*warning.field)
        .collect();
    assert_eq!(
        skipped,
        [
            "ports[1].port",
            "ports[2].port",
            "ports[3].protocol",
            "endpoints[2].addresses[0]",
            "endpoints[3].addresses[0]",
            "endpoints[4].addresses[0]",
            "endpoints[5].addresses[0]",
        ]
    );

    let owners = [
        ("{}", Owner::Unlabelled),
        ("{kubernetes.io/service-name: ''}", Owner::Unlabelled),
        (
            "{kubernetes.io/service-name: a, service.kubernetes.io/headless: ''}",
            Owner::NotServed,
        ),
        // That label counts only on the Service.
        (
            "{kubernetes.io/service-name: a, service.kubernetes.io/service-proxy-name: b}",
            Owner::Service(service_name("a")),
        ),
    ];
    for (labels, owner) in owners {
        let reduced = slice(&format!(
            "{{metadata: {{name: s, labels: {labels}}}, addressType: FQDN}}"
        ));
        let reduced = reduced.expect("good");
        assert_eq!(reduced.object.owner, owner, "{labels}");
        assert_eq!(reduced.warnings.len(), 1, "FQDN is skipped");
    }

    let refused = [
        ("{metadata: {}, addressType: IPv4}", "metadata.name"),
        ("{metadata: {name: s}}", "addressType"),
        ("{metadata: {name: s}, addressType: ipv4}", "addressType"),
    ];
    for (text, field) in refused {
        assert_eq!(slice(text).expect_err(text).field, field, "{text}");
    }
}

#[test]
fn nodes() {
    let node = |text: &str| Node::reduce(&yaml::<wire::Node>(text), &mut Names::default());
    let reduced = node(
        "{metadata: {name: n, labels: {topology.kubernetes.io/zone: z}, deletionTimestamp: 2026-01-01T00:00:00Z}, \
         spec: {podCIDR: 10.244.0.0/24, podCIDRs: [10.244.0.0/24, x], \
         taints: [{key: ToBeDeletedByClusterAutoscaler, effect: NoSchedule}]}, \
         status: {addresses: [{type: ExternalIP, address: 192.0.2.1}, {type: Hostname, address: n}, \
         {type: InternalIP, address: 10.0.0.1}]}}",
    )
    .expect("good");
    let node_object = reduced.object;
    assert_eq!(node_object.zone.as_deref(), Some("z"));
    assert!(node_object.deleting && node_object.to_be_deleted);
    assert_eq!(node_object.pod_cidrs.len(), 1);
    let addresses = ["10.0.0.1", "192.0.2.1"].map(|ip| ip.parse::<std::net::IpAddr>().expect("ip"));
    assert_eq!(*node_object.addresses, addresses);
    assert_eq!(reduced.warnings.len(), 1);
    let plain = node("{metadata: {name: n}, spec: {podCIDR: 10.244.0.0/24}}")
        .expect("good")
        .object;
    assert!(!plain.deleting && !plain.to_be_deleted && plain.zone.is_none());
    assert_eq!(plain.pod_cidrs.len(), 1);
    assert!(node("{metadata: {}}").is_err());
}

/// An address that only the node itself can reach is no endpoint, except for a loopback address in
/// a file on the node.
#[test]
fn endpoints_that_would_lead_to_the_node() {
    let mapped = |address: &str| address.starts_with("::ffff:");
    let cases = [
        ("IPv4", "127.0.0.1", true),
        ("IPv4", "127.9.9.9", true),
        ("IPv6", "::1", true),
        ("IPv4", "169.254.169.254", false),
        ("IPv6", "fe80::1", false),
        ("IPv4", "0.0.0.0", false),
        ("IPv6", "::", false),
        ("IPv4", "224.0.0.1", false),
        ("IPv6", "ff02::1", false),
        ("IPv4", "255.255.255.255", false),
        // IPv4 in IPv6 is parsed as IPv4, which is no IPv6 address.
        ("IPv6", "::ffff:127.0.0.1", false),
        ("IPv4", "::ffff:169.254.169.254", false),
    ];
    for (family, address, in_file) in cases {
        let text = format!(
            "{{metadata: {{name: s}}, addressType: {family}, endpoints: [{{addresses: ['{address}']}}]}}"
        );
        let object = yaml::<wire::EndpointSlice>(&text);
        let mut names = Names::default();
        for (reduced, used) in [
            (
                EndpointSlice::reduce(&object, Loopback::Refused, &mut names),
                false,
            ),
            (
                EndpointSlice::reduce(&object, Loopback::Allowed, &mut names),
                in_file,
            ),
        ] {
            let reduced = reduced.expect("the rest can be used");
            assert_eq!(reduced.object.endpoints.len(), usize::from(used), "{text}");
            assert_eq!(reduced.warnings.len(), usize::from(!used), "{text}");
            // An address of another family than the slice's is not shown.
            let shown = !(used || family == "IPv6" && mapped(address));
            assert_eq!(reduced.object.forbidden.len(), usize::from(shown), "{text}");
        }
    }
}

#[test]
fn names_that_the_api_has_not() {
    let long = "a".repeat(1 << 20);
    for name in [&*long, "a b", "a/b", "a\nb", "\u{e4}"] {
        let quoted = serde_json::to_string(name).expect("a string");
        for metadata in [
            format!("{{name: {quoted}}}"),
            format!("{{name: a, namespace: {quoted}}}"),
        ] {
            let service = service(&format!("{{metadata: {metadata}, spec: {{}}}}"));
            let slice = slice(&format!("{{metadata: {metadata}, addressType: IPv4}}"));
            for error in [service.expect_err("a name"), slice.expect_err("a name")] {
                let text = error.to_string();
                assert!(text.len() < 2000, "{} characters", text.len());
            }
        }
    }
}

#[test]
fn an_object_full_of_mistakes_is_reported_in_a_few_lines() {
    let mut object = yaml::<wire::EndpointSlice>("{metadata: {name: s}, addressType: IPv4}");
    let endpoint = yaml::<wire::Endpoint>("{addresses: [127.0.0.1]}");
    object.endpoints = Some(vec![endpoint; 65_000]);
    let reduced =
        EndpointSlice::reduce(&object, Loopback::Refused, &mut Names::default()).expect("a slice");
    assert_eq!(reduced.warnings.len(), 20);
    let last = reduced.warnings.last().map(ToString::to_string);
    let last = last.unwrap_or_default();
    assert!(last.contains("64980 more values are ignored"), "{last}");
}

/// As many as an object of 1.5 MiB, the limit of etcd, may have.
#[test]
fn a_service_with_as_many_ports_and_addresses_as_there_can_be() {
    let mut object = yaml::<wire::Service>(
        "{metadata: {name: a}, spec: {type: LoadBalancer, clusterIP: 10.0.0.1, ports: [{port: 1}]}}",
    );
    let spec = object.spec.as_mut().expect("a spec");
    let port = spec.ports.as_ref().expect("ports")[0].clone();
    let ports = (1..=65_535).map(|number| core::ServicePort {
        name: Some(format!("p{number}")),
        port: number,
        ..port.clone()
    });
    spec.ports = Some(ports.collect());
    let address = |number: u32| std::net::Ipv4Addr::from_bits(0x0b00_0000 + number).to_string();
    spec.external_ips = Some((0..65_535).map(address).collect());
    let ranges = (0..65_535).map(|number| address(number) + "/32");
    spec.load_balancer_source_ranges = Some(ranges.collect());
    let begun = std::time::Instant::now();
    let reduced = Service::reduce(&object, &mut Names::default()).expect("a Service");
    // Compared pairwise, they would take minutes.
    assert!(begun.elapsed() < std::time::Duration::from_secs(20));
    let serving = reduced.object.serving.expect("served");
    assert_eq!(serving.ports.len(), 65_535);
    assert_eq!(serving.external_ips.len(), 1);
    assert_eq!(serving.load_balancer_source_ranges.len(), 0);
}
