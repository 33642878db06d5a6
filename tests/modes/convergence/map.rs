//! Random Services and EndpointSlices, as manifests.

use serde_json::{Value, json};

/// A function that takes the next digit of `number`, below the given bound. All digits of 0 are 0,
/// so that a smaller number is a simpler map.
pub fn digits(mut number: u128) -> impl FnMut(usize) -> usize {
    move |below| {
        let below = below as u128;
        let digit = number % below;
        number /= below;
        digit as usize
    }
}

/// A list of the Services that `numbers` choose, with their slices. Services at the same place in
/// two lists have the same name. Their ports have these `protocols`.
pub fn manifests(numbers: &[u128], protocols: &[&str]) -> String {
    let mut items = Vec::new();
    for (at, number) in numbers.iter().enumerate() {
        items.extend(service(at, *number, protocols));
    }
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

fn service(at: usize, number: u128, protocols: &[&str]) -> Vec<Value> {
    let mut pick = digits(number);
    let families: &[&str] = [&["IPv4"][..], &["IPv4", "IPv6"], &["IPv6"]][pick(3)];
    let kind = ["ClusterIP", "NodePort", "LoadBalancer"][pick(3)];
    // It may be the address of the Service at the first place, so that two share one, or an address
    // that the Service does not have in another list.
    let address = [at, at, at + 100, 0][pick(4)] + 1;
    let of = |v4: &str, v6: &str, number: usize| -> Vec<String> {
        let text = |family: &&str| match *family {
            "IPv4" => format!("{v4}.{number}"),
            _ => format!("{v6}::{number}"),
        };
        families.iter().map(text).collect()
    };
    let ports: Vec<Value> = (0..1 + pick(3))
        .map(|port| {
            let mut made = json!({
                "name": format!("p{port}"), "port": 80 + port,
                "protocol": (protocols[pick(protocols.len())]),
            });
            if kind != "ClusterIP" {
                made["nodePort"] = (30_000 + 10 * at + port).into();
            }
            made
        })
        .collect();
    let ips = of("10.96.0", "fd00:96", address);
    let mut spec = json!({
        "type": kind, "clusterIP": ips[0], "clusterIPs": ips, "ipFamilies": families,
        "ports": ports,
        "sessionAffinity": (["None", "None", "ClientIP"][pick(3)]),
        "internalTrafficPolicy": (["Cluster", "Cluster", "Local"][pick(3)]),
    });
    let external: &[usize] = match pick(4) {
        0 => &[],
        1 => &[at + 1],
        2 => &[200],
        _ => &[at + 1, 200],
    };
    let external = external
        .iter()
        .flat_map(|number| of("198.51.100", "2001:db8:51", *number));
    spec["externalIPs"] = external.collect();
    if kind != "ClusterIP" {
        spec["externalTrafficPolicy"] = ["Cluster", "Local"][pick(2)].into();
    }
    let mut made = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": format!("s{at}"), "namespace": "default"},
    });
    if kind == "LoadBalancer" {
        spec["healthCheckNodePort"] = (31_000 + at).into();
        let ranges: &[&str] = [
            &[][..],
            &["192.0.2.0/24", "2001:db8::/64"],
            &["192.168.77.2/32", "10.0.0.0/8", "fd00::/8"],
            &["0.0.0.0/0", "::/0"],
        ][pick(4)];
        spec["loadBalancerSourceRanges"] = json!(ranges);
        let ingress = of("203.0.113", "2001:db8:113", [at + 1, 200][pick(2)]);
        let ingress: Vec<_> = ingress.iter().map(|ip| json!({"ip": ip})).collect();
        made["status"] = json!({"loadBalancer": {"ingress": ingress}});
    }
    let endpoints: Vec<Value> = (0..pick(5)).map(|last| endpoint(last, &mut pick)).collect();
    // More addresses than one chain holds, if many rules are divided into a tree of chains.
    if pick(4) == 3 {
        let many = (1..=40).flat_map(|number| of("198.51.101", "2001:db8:52", number));
        spec["externalIPs"] = many.collect();
    }
    made["spec"] = spec;
    let slices = families
        .iter()
        .map(|family| slice(at, family, &ports, &endpoints));
    [made].into_iter().chain(slices).collect()
}

/// The conditions and the place of an endpoint. Its address follows from its number.
fn endpoint(number: usize, pick: &mut impl FnMut(usize) -> usize) -> Value {
    let (ready, serving, terminating) = [
        (true, true, false),
        (true, true, false),
        (false, true, true),
        (false, false, false),
    ][pick(4)];
    let mut made = json!({
        "addresses": [number.to_string()],
        "conditions": {"ready": ready, "serving": serving, "terminating": terminating},
    });
    if let Some(node) = [None, Some("lab-node"), Some("other-node")][pick(3)] {
        made["nodeName"] = node.into();
    }
    made
}

fn slice(at: usize, family: &str, ports: &[Value], endpoints: &[Value]) -> Value {
    let ports: Vec<Value> = ports
        .iter()
        .map(|port| json!({"name": port["name"], "protocol": port["protocol"], "port": 8080}))
        .collect();
    let endpoints: Vec<Value> = (10..)
        .zip(endpoints)
        .map(|(last, endpoint)| {
            let mut endpoint = endpoint.clone();
            endpoint["addresses"] = match family {
                "IPv4" => json!([format!("10.244.{at}.{last}")]),
                _ => json!([format!("fd00:10:244:{at}::{last}")]),
            };
            endpoint
        })
        .collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": format!("s{at}-{}", family.to_lowercase()), "namespace": "default",
            "labels": {"kubernetes.io/service-name": format!("s{at}")},
        },
        "addressType": family, "ports": ports, "endpoints": endpoints,
    })
}
