//! Session affinity: which endpoint a client stays on, and how many clients fit.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    io::Write as _,
    net::{Ipv4Addr, SocketAddr},
    process::Stdio,
    time::Duration,
};

use super::start_with;
use crate::lab::{EndpointChoice, Host, Lab, Service, ask, eventually};

const NODE_PORTS: &str = "--nodeport-addresses=all";

/// Time within which counters are read.
const SOON: Duration = Duration::from_secs(30);

/// A map has room for this many clients.
const ROOM: u32 = 65_535;

/// The names of all endpoints that answer `calls` calls to each address.
fn answers(from: &Host, to: &[SocketAddr], calls: usize) -> BTreeSet<String> {
    let each = to.iter().flat_map(|to| (0..calls).map(move |_| to));
    let answer = |to: &SocketAddr| {
        let answer = ask(from, *to);
        answer.unwrap_or_else(|error| panic!("{}, {to}: {error}", from.name()))
    };
    each.map(answer).collect()
}

/// Makes nft run `script` on the node.
fn nft(node: &Host, script: &str) {
    let mut command = node.command("nft");
    let mut child = command
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("nft runs");
    let mut stdin = child.stdin.take().expect("it is piped");
    stdin.write_all(script.as_bytes()).expect("nft reads");
    drop(stdin);
    assert!(child.wait().expect("nft ends").success());
}

#[test]
fn a_client_keeps_its_endpoint_across_the_addresses_of_a_service() {
    Lab::run(|lab| {
        // A client of so many Services does not get the same endpoints by chance.
        let named = |kind: &str, first: u8| {
            let service = |number: u8| {
                let service = Service::new(&format!("{kind}-{number}"), number);
                service.sticky(600).with_external_ip().with_node_port()
            };
            (first..first + 8).map(service).collect::<Vec<_>>()
        };
        let cluster = named("cluster", 10);
        let local = named("local", 20).into_iter();
        let local: Vec<_> = local
            .map(|of| of.spec("externalTrafficPolicy", "Local"))
            .collect();
        let (here, elsewhere) = (["a", "b"], ["c"]);
        let endpoints = here
            .iter()
            .map(|name| EndpointChoice::ready(name).on("node"));
        let others = elsewhere
            .iter()
            .map(|name| EndpointChoice::ready(name).on("other"));
        let endpoints: Vec<_> = endpoints.chain(others).collect();
        for service in cluster.iter().chain(&local) {
            lab.publish_endpoints(service, &endpoints);
        }
        let _tripod = start_with(lab, &[NODE_PORTS]);
        for family in [0, 1] {
            let external = |service: &Service| {
                let node = lab.node.addresses[family];
                [
                    service.external()[family],
                    SocketAddr::new(node, service.node_port()),
                ]
            };
            // The cluster CIDR, an IPv4 one, distinguishes pods of the node from clients outside.
            let of_pods = local.iter().filter(|_| family == 0);
            for service in cluster.iter().chain(of_pods) {
                let all = [&external(service)[..], &[service.cluster()[family]]].concat();
                let found = answers(&lab.client, &all, 2);
                assert_eq!(found.len(), 1, "{}: {found:?}", service.name);
            }
            for service in &local {
                let found = answers(&lab.outside, &external(service), 2);
                assert_eq!(found.len(), 1, "{}: {found:?}", service.name);
                assert!(!found.contains(elsewhere[0]), "{}: {found:?}", service.name);
            }
        }
    });
}

#[test]
fn a_full_service_port_leaves_others_their_affinity() {
    Lab::run(|lab| {
        let [full, other] = [1, 2].map(|number| {
            let name = ["full", "other"][usize::from(number) - 1];
            Service::new(name, number).sticky(600)
        });
        lab.publish_all(&full);
        lab.publish_all(&other);
        let mut tripod = start_with(lab, &[]);
        assert_eq!(answers(&lab.client, &[full.cluster()[0]], 10).len(), 1);
        // While nothing runs, the map gets as many clients as it has room for. The next process
        // keeps them.
        tripod.kill();
        let to = lab.backends[0].direct();
        let map = "ip tripod affinity/default/full/tcp/tcp";
        let mut text = format!("flush map {map}\nadd element {map} {{");
        for client in (0..ROOM).map(|number| Ipv4Addr::from(0x6440_0000 + number)) {
            let (ip, port) = (to.ip(), to.port());
            let _ = write!(text, "{client} timeout 1h : {ip} . {port},");
        }
        nft(&lab.node, &(text + "}\n"));
        eventually("the kernel lists all of them", SOON, || {
            let listed = lab.node.show(&format!("nft list map {map}"));
            let count = listed.matches("expires").count();
            (count == ROOM as usize)
                .then_some(())
                .ok_or(format!("{count}"))
        });
        let tripod = start_with(lab, &[]);
        let metric = "tripod_nftables_affinity_refused_total";
        assert_eq!(tripod.metric(&lab.node, metric), Some(0.0));
        let spread = || {
            let found = answers(&lab.client, &[full.cluster()[0]], 10);
            (found.len() > 1).then_some(()).ok_or(format!("{found:?}"))
        };
        eventually(
            "new clients of the full ServicePort are spread",
            SOON,
            spread,
        );
        assert_eq!(answers(&lab.client, &[other.cluster()[0]], 20).len(), 1);
        assert_eq!(answers(&lab.client, &[full.cluster()[1]], 20).len(), 1);
        eventually("they are counted", SOON, || {
            let found = tripod.metric(&lab.node, metric);
            (found > Some(0.0))
                .then_some(())
                .ok_or(format!("{found:?}"))
        });
        tripod.logs_once(&["WARN", "default/full:tcp", "session affinity"]);
        assert_eq!(
            tripod.logged(&["WARN", "default/other"]),
            0,
            "{}",
            tripod.log()
        );
    });
}
