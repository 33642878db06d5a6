//! Connections that are open when one process takes over from another, for each ordered pair of
//! (mode, capture) that the host's kernel can run: they last as long as whatever forwards them.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    time::{Duration, Instant},
};

use socket2::{Domain, Socket, Type};

use super::super::{
    probe::kernel,
    stale_state::{feed, program},
};
use super::{SOON, from_kube_proxy::join_cluster, under_load};
use crate::lab::{
    Capture, Host, Lab, Service, Tripod, ask, eventually, run, say, tcp, udp, udp_say,
};

/// How long a UDP client may go without an answer.
const SILENCE: Duration = Duration::from_secs(20);

/// A mode with its capture, or with the engine of its rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Nftables,
    Iptables(&'static str),
    Redirect,
    Local,
}

impl Kind {
    fn mode(self) -> &'static str {
        match self {
            Kind::Nftables => "nftables",
            Kind::Iptables(_) => "iptables",
            Kind::Redirect | Kind::Local => "userspace",
        }
    }

    /// The engine of the node's other components when a process of this kind starts.
    fn engine(self) -> &'static str {
        match self {
            Kind::Iptables(engine) => engine,
            _ => "nft",
        }
    }

    fn start(self, lab: &Lab, number: u16) -> Tripod {
        let capture = match self {
            Kind::Local => "--userspace-capture=local",
            _ => "--userspace-capture=redirect",
        };
        let flags = [
            "--strict-proxy-mode",
            "--cluster-cidr=10.244.0.0/24,fd00:244::/64",
            "--nodeport-addresses=all",
            "--userspace-workers=2",
            "--userspace-drain-timeout=30s",
            "--iptables-sync-period=1s",
            capture,
        ];
        Tripod::start_beside(lab, self.mode(), number, &flags)
    }
}

/// Moves the kubelet's rules to `engine`.
fn kubelet_moves(lab: &Lab, engine: &str) {
    for of in ["iptables", "ip6tables"] {
        for other in super::super::stale_state::engines() {
            let restore = format!("{} --noflush", program(of, other, "restore"));
            let hint = "*mangle\n:KUBE-IPTABLES-HINT - [0:0]\nCOMMIT\n";
            feed(&lab.node, &restore, hint);
            if *other != engine {
                let gone = "*mangle\n-X KUBE-IPTABLES-HINT\nCOMMIT\n";
                feed(&lab.node, &restore, gone);
            }
        }
    }
}

/// An open conversation between a client and a Service.
enum Talk {
    Tcp(TcpStream),
    Udp(UdpSocket),
}

/// A client of a Service with a socket that it keeps.
struct Client {
    what: String,
    talk: Talk,
    /// Who answered first.
    endpoint: String,
}

impl Client {
    fn tcp(from: &Host, to: SocketAddr) -> Client {
        let mut stream = tcp(from, to).unwrap_or_else(|e| panic!("{} {to}: {e}", from.name()));
        let endpoint = say(&mut stream, "name").expect("an answer");
        let what = format!("tcp from {} to {to}", from.name());
        let talk = Talk::Tcp(stream);
        Client {
            what,
            talk,
            endpoint,
        }
    }

    fn udp(from: &Host, to: SocketAddr) -> Client {
        let socket = udp(from, to).expect("a socket");
        socket
            .set_read_timeout(Some(Duration::from_secs(1)))
            .expect("a timeout");
        let endpoint = udp_say(&socket, "name").expect("an answer");
        let what = format!("udp from {} to {to}", from.name());
        let talk = Talk::Udp(socket);
        Client {
            what,
            talk,
            endpoint,
        }
    }

    /// Says something. On a connection the same endpoint has to answer. Datagrams may be
    /// lost, and may go to another endpoint if another process or the kernel chooses it.
    fn says(&mut self) -> Result<(), String> {
        let answer = match &mut self.talk {
            Talk::Tcp(stream) => say(stream, "name"),
            Talk::Udp(socket) => {
                let until = Instant::now() + SILENCE;
                loop {
                    match udp_say(socket, "name") {
                        Err(_) if Instant::now() < until => {}
                        answer => break answer.map(|_| self.endpoint.clone()),
                    }
                }
            }
        };
        match answer {
            Ok(answer) if answer == self.endpoint => Ok(()),
            Ok(answer) => Err(format!("{}: answered by {answer}", self.what)),
            Err(error) => Err(format!("{}: {error}", self.what)),
        }
    }
}

#[derive(Default)]
struct Talking {
    stop: AtomicBool,
    said: AtomicUsize,
}

struct Stop<'a>(&'a Talking);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Relaxed);
    }
}

impl Talking {
    /// Makes `client` say one thing after another until the end, or until one fails.
    fn goes_on(&self, mut client: Client) -> Result<(), String> {
        let mut said = 0;
        while !self.stop.load(Relaxed) {
            let words = |error| format!("{error} (message {said})");
            client.says().map_err(words)?;
            said += 1;
            self.said.fetch_add(1, Relaxed);
        }
        Ok(())
    }

    fn more(&self) {
        let enough = self.said.load(Relaxed) + 200;
        eventually("more is said", SOON, || match self.said.load(Relaxed) {
            said if said >= enough => Ok(()),
            said => Err(format!("{said} of {enough}")),
        });
    }
}

/// Clients on an outside host of everything that it calls: cluster IPs and node ports.
fn clients(lab: &Lab, web: &Service, open: fn(&Host, SocketAddr) -> Client) -> Vec<Client> {
    let mut clients = Vec::new();
    for (to, address) in web.cluster().into_iter().zip(lab.node.addresses) {
        clients.push(open(&lab.outside, to));
        let node_port = SocketAddr::new(address, web.node_port());
        clients.push(open(&lab.outside, node_port));
    }
    clients
}

/// The failures of those `clients` that no longer get an answer.
fn failures(clients: &mut [Client]) -> Vec<String> {
    let said = clients.iter_mut().map(Client::says);
    let failed = said.filter_map(Result::err);
    failed.map(|error| format!("idle {error}")).collect()
}

/// A process of kind `old` gives way to one of kind `new` while connections are open.
fn switch(old: Kind, new: Kind) {
    let mut lab = Lab::new(Capture::Redirect);
    let web = Service::new("web", 10).with_node_port();
    lab.three_backends().publish_all(&web);
    let lab = &lab;
    join_cluster(lab, old.engine());
    lab.outside.ip(&[
        "route add 10.96.0.0/16 via 192.0.2.10",
        "route add fd00:96::/64 via 2001:db8::10",
    ]);
    let mut before = old.start(lab, 0);
    let mut talking = clients(lab, &web, Client::tcp);
    let mut idle = clients(lab, &web, Client::tcp);
    talking.extend(clients(lab, &web, Client::udp));
    let inside = web.cluster().into_iter();
    let inside = inside.flat_map(|to| [Client::tcp(&lab.node, to), Client::udp(&lab.node, to)]);
    // With local capture a datagram socket of the node has the loopback address as its source
    // while it is connected, and nothing can be sent on from there.
    let moves = |client: &Client| old != Kind::Local || matches!(client.talk, Talk::Tcp(_));
    talking.extend(inside.filter(moves));
    idle.extend(web.cluster().map(|to| Client::tcp(&lab.node, to)));
    let talk = &Talking::default();
    let [fresh, _] = web.cluster();
    let (mut failed, mut after) = (Vec::new(), None);
    under_load(
        |_| ask(&lab.outside, fresh),
        |calls| {
            std::thread::scope(|scope| {
                let stop = Stop(talk);
                let talkers: Vec<_> = talking
                    .into_iter()
                    .map(|client| scope.spawn(move || talk.goes_on(client)))
                    .collect();
                talk.more();
                kubelet_moves(lab, new.engine());
                let after = after.insert(new.start(lab, 1));
                let cleared = ["still has connections", "there are no rules of other modes"];
                eventually("stale state is dealt with", SOON, || {
                    let dealt = cleared.iter().any(|sign| after.logged(&[sign]) > 0);
                    if dealt { Ok(()) } else { Err(after.log()) }
                });
                calls.wait(10);
                talk.more();
                before.ask_to_end();
                calls.wait(10);
                talk.more();
                drop(stop);
                let ended = talkers
                    .into_iter()
                    .map(|talker| talker.join().expect("no panic"));
                failed.extend(ended.filter_map(Result::err));
                failed.extend(failures(&mut idle));
                // Until then an old process may write its removed rules again.
                for to in web.cluster() {
                    eventually("the node calls", SOON, || {
                        ask(&lab.node, to).map_err(|error| error.to_string())
                    });
                }
                assert!(failed.is_empty(), "{old:?} to {new:?}: {failed:#?}");
                drop(idle);
                assert!(before.ended_within(SOON).success(), "{old:?} ended badly");
                calls.wait(10);
            });
        },
    );
}

macro_rules! switch {
    ($($name:ident: $kernel:literal, $old:expr, $new:expr;)+) => { $(
        #[test]
        fn $name() {
            run(|| {
                if kernel() == $kernel {
                    switch($old, $new);
                }
            });
        }
    )+ };
}

switch! {
    nftables_to_nft: "host", Kind::Nftables, Kind::Iptables("nft");
    nftables_to_legacy: "host", Kind::Nftables, Kind::Iptables("legacy");
    nftables_to_redirect: "host", Kind::Nftables, Kind::Redirect;
    nftables_to_local: "host", Kind::Nftables, Kind::Local;
    nft_to_nftables: "host", Kind::Iptables("nft"), Kind::Nftables;
    nft_to_legacy: "host", Kind::Iptables("nft"), Kind::Iptables("legacy");
    nft_to_redirect: "host", Kind::Iptables("nft"), Kind::Redirect;
    nft_to_local: "host", Kind::Iptables("nft"), Kind::Local;
    legacy_to_nftables: "host", Kind::Iptables("legacy"), Kind::Nftables;
    legacy_to_nft: "host", Kind::Iptables("legacy"), Kind::Iptables("nft");
    legacy_to_redirect: "host", Kind::Iptables("legacy"), Kind::Redirect;
    legacy_to_local: "host", Kind::Iptables("legacy"), Kind::Local;
    redirect_to_nftables: "host", Kind::Redirect, Kind::Nftables;
    redirect_to_nft: "host", Kind::Redirect, Kind::Iptables("nft");
    redirect_to_legacy: "host", Kind::Redirect, Kind::Iptables("legacy");
    redirect_to_local: "host", Kind::Redirect, Kind::Local;
    local_to_nftables: "host", Kind::Local, Kind::Nftables;
    local_to_nft: "host", Kind::Local, Kind::Iptables("nft");
    local_to_legacy: "host", Kind::Local, Kind::Iptables("legacy");
    local_to_redirect: "host", Kind::Local, Kind::Redirect;
}

/// Objects kept for open connections send no new connection to other listeners on the node: neither
/// when the Service is removed nor when the old process ends.
fn leads_nobody_elsewhere(new: Kind) {
    let mut lab = Lab::new(Capture::Redirect);
    let web = Service::new("web", 10);
    lab.three_backends().publish_all(&web);
    let lab = &lab;
    join_cluster(lab, Kind::Local.engine());
    lab.outside.ip(&[
        "route add 10.96.0.0/16 via 192.0.2.10",
        "route add fd00:96::/64 via 2001:db8::10",
    ]);
    let mut before = Kind::Local.start(lab, 0);
    let mut open: Vec<_> = web.cluster().map(|to| Client::tcp(&lab.outside, to)).into();
    kubelet_moves(lab, new.engine());
    let after = new.start(lab, 1);
    eventually("what connections need stays", SOON, || {
        match after.logged(&["still has connections"]) {
            0 => Err(after.log()),
            _ => Ok(()),
        }
    });
    let _others =
        [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()].map(|any: IpAddr| {
            lab.node
                .enter(|| listener((any, web.cluster()[0].port()).into()))
        });
    lab.withdraw(&web);
    for to in web.cluster() {
        eventually("the Service is closed", SOON, || {
            match tcp(&lab.outside, to) {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
    }
    assert_eq!(failures(&mut open), Vec::<String>::new());
    let refused = |to: SocketAddr| {
        for _ in 0..20 {
            assert!(!connects(lab, to), "{to} is answered");
        }
    };
    web.cluster().into_iter().for_each(refused);
    before.kill();
    let gone = || after.logged(&["there are no rules of other modes"]) > 0;
    while !gone() {
        for to in web.cluster() {
            assert!(!connects(lab, to), "{to} is answered");
        }
    }
    let rules = lab.node.show("ip rule") + &lab.node.show("ip -6 rule");
    assert!(!rules.contains("dport 80"), "{rules}");
    let tables = lab.node.show("nft list tables");
    assert!(!tables.contains("tripod-draining"), "{tables}");
}

/// Whether a connection of the outside host is accepted. Without a route nothing answers.
fn connects(lab: &Lab, to: SocketAddr) -> bool {
    let within = Duration::from_millis(300);
    let called = lab
        .outside
        .enter(|| TcpStream::connect_timeout(&to, within));
    called.is_ok()
}

fn listener(at: SocketAddr) -> Socket {
    let socket = Socket::new(Domain::for_address(at), Type::STREAM, None).expect("a socket");
    // The old process has the port at the service address.
    socket.set_reuse_port(true).expect("an option");
    if at.is_ipv6() {
        socket.set_only_v6(true).expect("an option");
    }
    socket.bind(&at.into()).expect("an address");
    socket.listen(4096).expect("a listener");
    socket
}

macro_rules! leads_nobody_elsewhere {
    ($($name:ident: $new:expr;)+) => { $(
        #[test]
        fn $name() {
            run(|| {
                if kernel() == "host" {
                    leads_nobody_elsewhere($new);
                }
            });
        }
    )+ };
}

leads_nobody_elsewhere! {
    left_for_nftables_leads_nobody_elsewhere: Kind::Nftables;
    left_for_nft_leads_nobody_elsewhere: Kind::Iptables("nft");
    left_for_redirect_leads_nobody_elsewhere: Kind::Redirect;
}
