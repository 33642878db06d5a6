//! Without endpoints a call is refused, and does not hang.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::time::{Duration, Instant};

use super::{SOON, comes_to_reach};
use crate::lab::{EndpointChoice, Host, Lab, Service, ask, eventually, udp_ask};

on_each_capture!(
    a_service_without_endpoints_refuses,
    unready_endpoints_do_not_count,
    the_last_endpoint_gone_is_refusal_and_back_is_service,
);

on_local_capture!(a_program_of_the_node_gets_no_calls_of_a_service_without_endpoints);

fn refuses(from: &Host, to: SocketAddr) {
    let start = Instant::now();
    for (protocol, answer) in [("TCP", ask(from, to)), ("UDP", udp_ask(from, to))] {
        let what = format!("{protocol} from {} to {to}", from.name());
        match answer {
            Ok(name) => panic!("{what}: answered by {name}"),
            Err(error) => assert_eq!(
                error.kind(),
                ErrorKind::ConnectionRefused,
                "{what}: {error}"
            ),
        }
    }
    assert!(
        start.elapsed() < Duration::from_millis(1500),
        "at once, not {:?}",
        start.elapsed()
    );
}

fn refuses_everywhere(lab: &Lab, web: &Service) {
    for from in lab.cluster_clients() {
        for to in web.cluster() {
            refuses(from, to);
        }
    }
    for ip in lab.node.addresses {
        refuses(&lab.outside, SocketAddr::new(ip, web.node_port()));
    }
    for to in [web.external(), web.ingress()].concat() {
        refuses(&lab.outside, to);
    }
}

fn everywhere() -> Service {
    Service::new("web", 10)
        .with_node_port()
        .with_external_ip()
        .with_load_balancer()
}

fn a_service_without_endpoints_refuses(lab: &mut Lab) {
    let web = everywhere();
    lab.publish(&web, &[]);
    let _tripod = lab.tripod();
    refuses_everywhere(lab, &web);
}

/// The port stays reserved, also from programs that may share the addresses of others' sockets
/// (SO_REUSEADDR, which std sets on TCP listeners).
fn a_program_of_the_node_gets_no_calls_of_a_service_without_endpoints(lab: &mut Lab) {
    let web = everywhere();
    lab.publish(&web, &[]);
    let _tripod = lab.tripod();
    refuses_everywhere(lab, &web);
    for to in web.cluster() {
        for any in ["0.0.0.0", "::"] {
            let any: IpAddr = any.parse().expect("an address");
            if any.is_ipv4() == to.is_ipv6() {
                continue;
            }
            let any = SocketAddr::new(any, to.port());
            let listening = lab.node.enter(|| TcpListener::bind(any));
            let bound = lab.node.enter(|| UdpSocket::bind(any));
            for error in [listening.err(), bound.err()] {
                let kind = error.as_ref().map(std::io::Error::kind);
                assert_eq!(kind, Some(ErrorKind::AddrInUse), "{any} {error:?}");
            }
        }
    }
    refuses_everywhere(lab, &web);
    lab.add_backends(&["a"]).publish_all(&web);
    for to in web.cluster() {
        comes_to_reach("endpoints came", &["a"], || ask(&lab.client, to));
        comes_to_reach("endpoints came", &["a"], || udp_ask(&lab.client, to));
    }
}

fn unready_endpoints_do_not_count(lab: &mut Lab) {
    let web = everywhere();
    lab.add_backends(&["a"]);
    lab.publish_endpoints(&web, &[EndpointChoice::unready("a")]);
    let _tripod = lab.tripod();
    refuses_everywhere(lab, &web);
}

fn the_last_endpoint_gone_is_refusal_and_back_is_service(lab: &mut Lab) {
    let web = Service::new("web", 10);
    lab.add_backends(&["a"]).publish_all(&web);
    let _tripod = lab.tripod();
    for to in web.cluster() {
        comes_to_reach("at first", &["a"], || ask(&lab.client, to));
    }
    lab.publish(&web, &[]);
    for to in web.cluster() {
        for from in lab.cluster_clients() {
            eventually("refusal", SOON, || {
                match (ask(from, to), udp_ask(from, to)) {
                    (Err(tcp), Err(udp))
                        if [tcp.kind(), udp.kind()] == [ErrorKind::ConnectionRefused; 2] =>
                    {
                        Ok(())
                    }
                    other => Err(format!("{other:?}")),
                }
            });
        }
    }
    lab.publish_all(&web);
    for to in web.cluster() {
        for from in lab.cluster_clients() {
            comes_to_reach("TCP is back", &["a"], || ask(from, to));
            comes_to_reach("UDP is back", &["a"], || udp_ask(from, to));
        }
    }
}
