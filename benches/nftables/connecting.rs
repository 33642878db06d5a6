//! The time to connect to a Service.

use std::{
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    sync::mpsc::{Receiver, Sender, channel},
    time::{Duration, Instant},
};

use tripod::services::ServiceMap;

use crate::{
    full, median,
    node::{Node, in_namespace, sh},
    services::{self, single},
};

/// Number of connections in each turn, and number of turns.
const CALLS: usize = 100;
const TURNS: usize = 60;

/// A namespace with this number of Services, in which connections are made on request.
struct Caller {
    name: String,
    ask: Sender<()>,
    answer: Receiver<Vec<Duration>>,
    times: Vec<Duration>,
}

impl Caller {
    /// `mode` creates the mode; the last Service is called.
    fn of_mode(name: &str, services: u32, mode: fn() -> Node) -> Caller {
        let name = format!("{name}, {services} Services");
        Caller::new(name, services, move |backend| {
            let map: ServiceMap = (0..services)
                .map(|number| single(number, backend))
                .collect();
            let mut node = mode();
            node.sync(&map, &full());
            node
        })
    }

    /// The least that a translation of the kernel takes.
    fn of_one_rule() -> Caller {
        Caller::new("one rule with dnat".to_owned(), 1, |backend| {
            let called = services::address(0);
            sh(&format!(
                "nft 'table ip one {{ chain output {{ type nat hook output priority -100; \
                 ip daddr {called} tcp dport {} dnat to {backend}; }}; }}'",
                services::PORT
            ));
        })
    }

    /// `serve` makes a number of Services, the last of which is called, have this endpoint. What it
    /// returns lives as long as the namespace.
    fn new<T>(
        name: String,
        services: u32,
        serve: impl FnOnce(SocketAddr) -> T + Send + 'static,
    ) -> Caller {
        let (ask, asked) = channel();
        let (answers, answer) = channel();
        in_namespace(move || {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
            let backend = listener.local_addr().expect("its address");
            std::thread::spawn(move || listener.incoming().for_each(drop));
            sh("ip route add local default dev lo table 100; ip route add default dev lo");
            sh("sysctl -qw net.ipv4.conf.all.route_localnet=1 net.ipv4.tcp_tw_reuse=1");
            let _served = serve(backend);
            let last = IpAddr::from(services::address(services - 1));
            let last = SocketAddr::new(last, services::PORT);
            for () in asked {
                let times = (0..CALLS).map(|_| call(last)).collect();
                if answers.send(times).is_err() {
                    return;
                }
            }
        });
        Caller {
            name,
            ask,
            answer,
            times: Vec::new(),
        }
    }

    fn turn(&mut self) {
        self.ask.send(()).expect("the namespace is there");
        self.times
            .extend(self.answer.recv().expect("calls are answered"));
    }
}

fn call(to: SocketAddr) -> Duration {
    let begun = Instant::now();
    TcpStream::connect(to).expect("a connection");
    begun.elapsed()
}

/// They are called in turns, so that a slow moment does not affect only one of them.
pub fn measure() {
    println!();
    let mut callers = [
        Caller::of_one_rule(),
        Caller::of_mode("nftables", 1, Node::nftables),
        Caller::of_mode("nftables", 20_000, Node::nftables),
        Caller::of_mode("nftables", 10, Node::nftables),
        Caller::of_mode("iptables (nft)", 10, || Node::iptables("nft")),
        Caller::of_mode("iptables (legacy)", 10, || Node::iptables("legacy")),
    ];
    for _ in 0..TURNS {
        callers.iter_mut().for_each(Caller::turn);
    }
    let only = median(callers[0].times.clone()).as_secs_f64();
    for caller in callers {
        let time = median(caller.times).as_secs_f64();
        println!(
            "connecting: {:<34} {:6.1} us, {:.2} of the first",
            caller.name,
            time * 1e6,
            time / only
        );
    }
}
