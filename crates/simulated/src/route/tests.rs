//! The model against this machine's kernel: random programs of routes, rules and addresses have the
//! same outcome and leave the same, and packets are routed the same way.

use std::net::{IpAddr, SocketAddr};

use net::{Family, octets};
use netlink::{
    Error, Protocol, Request, Socket, addresses, links,
    routes::{self, Kind, Route, TABLE_LOCAL},
    rules::{self, Action, HIGHEST_PORT, Rule},
};
use nix::{errno::Errno, libc};
use testing::{cases, in_namespace, sh};

use super::Led;
use crate::{
    Faultless, Kernel,
    packet::Packet,
    random_steps::{Step, programs},
};

/// How many random programs there are.
const CASES: u32 = 60;

const RTA_IP_PROTO: u16 = 27;
const RTA_DPORT: u16 = 29;
/// The index of loopback in both.
const LOOPBACK: u32 = 1;
const TABLES: [u32; 4] = [0x5450_0001, 0x5450_0002, 0x5450_0003, TABLE_LOCAL];
const PRIORITIES: [u32; 3] = [77, 79, 80];

fn family(choice: u8) -> Family {
    Family::ALL[usize::from(choice) % 2]
}

fn ip(family: Family, last: u8) -> IpAddr {
    match family {
        Family::V4 => [10, 96, 0, last].into(),
        Family::V6 => [0xfd00, 96, 0, 0, 0, 0, 0, u16::from(last)].into(),
    }
}

fn ip_protocol(family: Family, choice: u8) -> u8 {
    let icmp = match family {
        Family::V4 => libc::IPPROTO_ICMP,
        Family::V6 => libc::IPPROTO_ICMPV6,
    };
    [libc::IPPROTO_TCP, libc::IPPROTO_UDP, icmp][usize::from(choice) % 3] as u8
}

fn route((_, one, other, more): Step) -> Route {
    let family = family(one);
    Route {
        table: TABLES[usize::from(other) % 4],
        destination: ip(family, 1 + one / 2 % 3).into(),
        kind: if more % 3 == 0 {
            Kind::Prohibit
        } else {
            Kind::Local(LOOPBACK)
        },
        source: (more % 2 == 0 && more % 3 != 0).then_some(family.localhost()),
    }
}

fn rule((_, one, other, more): Step) -> Rule {
    let family = family(one);
    let priority = PRIORITIES[usize::from(one / 2) % 3];
    let action = match other % 5 {
        4 => Action::Goto(PRIORITIES[usize::from(other / 5) % 3]),
        table => Action::Lookup(TABLES[usize::from(table) % 3]),
    };
    let ports = [
        None,
        Some((80, 80)),
        Some((1, HIGHEST_PORT)),
        Some((53, 80)),
    ];
    let ports = ports[usize::from(more) % 4];
    let protocol = ip_protocol(family, more / 8);
    Rule {
        ip_protocol: (ports.is_some() || more % 8 < 4).then_some(protocol),
        ports: ports.filter(|_| protocol < 20),
        source: (more % 16 == 15).then_some(source(family).ip()),
        sent_here: other >= 250,
        ..Rule::of_all(family, priority, action)
    }
}

fn source(family: Family) -> SocketAddr {
    let ip: IpAddr = match family {
        Family::V4 => [10, 9, 0, 2].into(),
        Family::V6 => [0xfd00, 9, 0, 0, 0, 0, 0, 2].into(),
    };
    (ip, 40_000).into()
}

fn text_of<T: std::fmt::Debug>(outcome: Result<T, Error>) -> String {
    match outcome {
        Ok(value) => format!("{value:?}"),
        Err(error) => format!("{:?}", error.errno()),
    }
}

/// Describes each outcome.
fn each(outcomes: Result<Vec<Result<(), Error>>, Error>) -> String {
    outcomes
        .expect("a socket")
        .into_iter()
        .map(text_of)
        .collect::<Vec<_>>()
        .join(" ")
}

/// Carries out a step, and describes its outcome.
fn step(socket: &mut Socket, at: Step) -> String {
    let (what, one, ..) = at;
    let address = ip(family(one), 1 + one / 2 % 3);
    match what % 8 {
        0 | 1 => each(routes::add(socket, &[route(at)])),
        2 => text_of(routes::delete(socket, &[route(at)])),
        3 | 4 => each(rules::add(socket, &[rule(at)])),
        5 => text_of(rules::delete(socket, &[rule(at)])),
        6 => each(addresses::assign(socket, LOOPBACK, &[address])),
        _ => text_of(addresses::unassign(socket, LOOPBACK, &[address])),
    }
}

/// Describes the routes, rules and addresses that are there.
fn contents(socket: &mut Socket) -> Vec<String> {
    let mut lines = Vec::new();
    for family in Family::ALL {
        let mut routes = routes::list(socket, family).expect("routes");
        routes.sort();
        lines.extend(routes.iter().map(|one| format!("{one:?}")));
        // Their order counts.
        let rules = rules::list(socket, family).expect("rules");
        lines.extend(rules.iter().map(|one| format!("{one:?}")));
    }
    let mut own: Vec<_> = addresses::list_assigned(socket).expect("addresses");
    own.sort_by_key(|one| one.address);
    lines.extend(own.iter().map(|one| one.address.to_string()));
    lines
}

/// Returns packets that are looked up.
fn packets() -> Vec<(Family, Packet)> {
    let mut all = Vec::new();
    for family in Family::ALL {
        for last in 1..=3 {
            for port in [0, 53, 80, u16::MAX] {
                for protocol in 0..3 {
                    let protocol = ip_protocol(family, protocol);
                    if port > 0 && protocol != 6 && protocol != 17 {
                        continue;
                    }
                    for input in [None, Some("eth0")] {
                        all.push((
                            family,
                            Packet {
                                source: source(family),
                                destination: (ip(family, last), port).into(),
                                protocol,
                                input,
                                established: None,
                            },
                        ));
                    }
                }
            }
        }
    }
    all
}

/// Returns where the kernel routes a packet.
fn led(socket: &mut Socket, family: Family, packet: &Packet, link: u32) -> Led {
    let bits = family.bits();
    let from = packet.input.map_or(0, |_| bits);
    let mut request = Request::new(libc::RTM_GETROUTE, 0, "look up", "a route")
        .header(&[family.number(), bits, from, 0, 0, 0, 0, 0, 0, 0, 0, 0])
        .attribute(libc::RTA_DST, &octets(&packet.destination.ip()))
        .attribute(RTA_IP_PROTO, &[packet.protocol]);
    if packet.input.is_some() {
        let from = octets(&packet.source.ip());
        request = request
            .u32(libc::RTA_IIF, link)
            .attribute(libc::RTA_SRC, &from);
    }
    let port = packet.destination.port();
    if port > 0 {
        request = request.attribute(RTA_DPORT, &port.to_be_bytes());
    }
    let kind = socket.call(&request, |message| {
        Ok(message.header::<12>().ok().map(|h| h[7]))
    });
    match kind.map(|kinds| kinds.first().copied()) {
        Ok(Some(libc::RTN_LOCAL)) => Led::Here,
        Ok(Some(libc::RTN_PROHIBIT)) => Led::Prohibited,
        Ok(Some(libc::RTN_UNICAST)) => Led::Elsewhere,
        Err(error) if error.errno() == Some(Errno::EACCES) => Led::Prohibited,
        other => panic!("{packet:?}: {other:?}"),
    }
}

/// Returns whether a look-up of the packet is equivalent to sending it: the look-up for a packet of
/// this node itself does not tell a rule for sources which source it will have.
fn is_sure(packet: &Packet, socket: &mut Socket, family: Family) -> bool {
    let rules = rules::list(socket, family).expect("rules");
    packet.input.is_some() || rules.iter().all(|rule| rule.source.is_none())
}

const NODE: &str = "
    sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0 \
        net.ipv4.conf.default.rp_filter=0 net.ipv6.conf.all.disable_ipv6=0 \
        net.ipv6.conf.default.disable_ipv6=0 net.ipv6.conf.all.forwarding=1
    ip link add eth0 type veth peer name eth1
    ip link set eth0 up
    ip link set eth1 up
    ip addr add 10.9.0.1/24 dev eth0
    ip -6 addr add fd00:9::1/64 dev eth0 nodad
    ip route add default via 10.9.0.2
    ip -6 route add default via fd00:9::2
";

#[test]
fn random_programs_do_the_same_as_in_the_real_kernel() {
    in_namespace(|| {
        sh(NODE);
        let link = links::index("eth0").expect("a link");
        let mut real = Socket::open(Protocol::Route).unwrap();
        for program in programs(cases(CASES)) {
            let kernel = Kernel::new(Faultless);
            let mut model = {
                let _entered = kernel.enter();
                Socket::open(Protocol::Route).unwrap()
            };
            sh("for f in -4 -6; do ip $f rule flush proto 84; \
                ip $f route flush table all proto 84 2>/dev/null || true; done; \
                ip addr flush label lo:tripod dev lo");
            for at in program {
                let outcomes = [&mut real, &mut model].map(|socket| step(socket, at));
                assert_eq!(
                    outcomes[0],
                    outcomes[1],
                    "{at:?} {:?} {:?}",
                    route(at),
                    rule(at)
                );
                let [real_has, has] = [&mut real, &mut model].map(contents);
                assert_eq!(real_has, has, "{at:?}");
            }
            for (family, packet) in packets() {
                if !is_sure(&packet, &mut real, family) {
                    continue;
                }
                let mut says = None;
                kernel.change(|state| says = Some(state.links.led(family, &packet)));
                let is = led(&mut real, family, &packet, link);
                assert_eq!(says, Some(is), "{packet:?} of {:#?}", contents(&mut real));
            }
        }
    });
}
